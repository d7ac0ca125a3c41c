"""Acceptance for serving engines: what vLLM, llama.cpp, AIPerf and Model-Optimizer check holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.extras.exports.export import export as write
from bench.extras.external.table import read_external
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.stats.counters import timed
from tests.command_line import bench


@pytest.fixture
def exported(reported_run: Path, tmp_path: Path) -> tuple[Findings, Path]:
    findings = Findings(load_run(reported_run))
    write(findings, "acceptance", tmp_path)
    return findings, tmp_path


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_only_decoders_that_drafted_are_exported(exported: tuple[Findings, Path]) -> None:
    _, folder = exported
    assert list(read(folder / "synthetic.json")) == ["spec", "nar"]
    names = {path.name for path in folder.iterdir()}
    assert names == {"requests", "spec", "nar", "synthetic.json"}


def test_synthetic_options_keep_the_rules_of_their_engines(exported: tuple[Findings, Path]) -> None:
    """vLLM and llama.cpp: one of rates and length, K rates from 1 to 0 that do not rise."""
    findings, folder = exported
    (row,) = findings.summary.query("decoder == 'spec' and family == 'all'").to_dict("records")
    options = read(folder / "synthetic.json")["spec"]
    rates, most = options["vllm"]["synthetic_acceptance_rates"], 7
    assert len(rates) == options["vllm"]["num_speculative_tokens"] == most
    assert all(1 >= one >= other >= 0 for one, other in pairwise([*rates, 0]))
    assert 1 + sum(rates) == pytest.approx(row["acceptance_length"], abs=1e-5)
    length = options["vllm_length"]["synthetic_acceptance_length"]
    assert length == pytest.approx(1 + sum(rates))
    assert not {"synthetic_acceptance_rates"} & options["vllm_length"].keys()
    flags = options["llama_cpp"].split()
    assert flags[:3] == ["--spec-draft-n-max", "7", "--spec-synth-rates"]
    assert [float(rate) for rate in flags[3].split(",")] == pytest.approx(rates, abs=1e-5)
    assert options["llama_cpp_length"] == f"--spec-draft-n-max 7 --spec-synth-len {length:g}"


def test_every_answer_is_exported_as_a_response_whose_counts_pass_aiperfs_checks(
    exported: tuple[Findings, Path],
) -> None:
    findings, folder = exported
    lines = (folder / "requests" / "spec.jsonl").read_text().splitlines()
    answers = [r for r in timed(findings.run.records) if r.decoder == "spec"]
    assert len(lines) == len(answers)
    for line, answer in zip(map(json.loads, lines), answers, strict=True):
        of, counts = line["metrics"]["speculative_decoding"], answer.steps
        assert counts is not None
        histogram = of["acceptance_histogram"]
        assert len(histogram) == of["num_spec_tokens"] + 1 == 8
        assert sum(histogram) == of["num_spec_steps"] == len(of["per_step_accepted"])
        weighed = sum(j * num for j, num in enumerate(histogram))
        assert weighed == of["num_accepted_draft_tokens"] == sum(of["per_step_accepted"])
        assert sum(of["per_step_drafted"]) == of["num_draft_tokens"] == sum(counts.drafted)
        pairs = zip(of["per_step_accepted"], of["per_step_drafted"], strict=True)
        assert all(accepted <= drafted for accepted, drafted in pairs)
        mean = 1 + of["num_accepted_draft_tokens"] / of["num_spec_steps"]
        assert of["mean_acceptance_length"] == pytest.approx(mean)
        assert line["usage"]["completion_tokens"] == len(answer.tokens or ())


def test_the_profile_equals_model_optimizers_profile_of_the_same_lengths(
    exported: tuple[Findings, Path],
) -> None:
    """Its build_profile: position i is length i + 2, conditionals are ratios of marginals."""
    findings, folder = exported
    profile = read(folder / "spec" / "speculation_profile.json")
    lengths = {int(n): num for n, num in profile["acceptance_length_histogram"].items()}
    total = sum(lengths.values())
    at_least = [sum(n for x, n in lengths.items() if x >= i + 2) / total for i in range(7)]
    assert profile["schema_version"] == "1.0"
    assert profile["marginal_accept_rates"] == pytest.approx(at_least, abs=1e-6)
    products = list(accumulate(profile["conditional_accept_rates"], lambda a, b: a * b))
    assert products == pytest.approx(at_least, abs=1e-5)
    mean = sum(n * num for n, num in lengths.items()) / total
    assert profile["mean_accept_length"] == pytest.approx(mean, abs=1e-6)
    assert all(check["passed"] for check in profile["validation"].values())
    rows = findings.summary[findings.summary["decoder"] == "spec"].set_index("family")
    for family, of in profile["per_category"].items():
        length = rows.loc[family, "acceptance_length"]
        assert of["mean_accept_length"] == pytest.approx(length, abs=1e-6)


def test_a_wrong_decoder_and_a_run_without_drafts_have_no_acceptance(
    synthetic_run: Callable[..., Path], tmp_path: Path
) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {"status": "complete", "verdict": "VALID", "differences": [left]}
    write(Findings(load_run(synthetic_run(status=status))), "acceptance", tmp_path / "out")
    assert list(read(tmp_path / "out" / "synthetic.json")) == ["ptp"]
    bare = Findings(load_run(synthetic_run({"nar": 3.0}, name="bare", lossy=["nar"])))
    with pytest.raises(BenchError, match="no decoder that drafted") as refused:
        write(bare, "acceptance", tmp_path)
    assert refused.value.exit_code == Exit.UNAVAILABLE


@pytest.mark.usefixtures("undrawn")
def test_exported_responses_are_read_back_as_answers_of_another_engine(
    synthetic_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = synthetic_run()
    assert bench("export", run, "--to", "acceptance", "--folder", tmp_path).code == 0
    file = tmp_path / "requests" / "spec.jsonl"
    done = bench("external", run, "--engine", "vllm", "--read", file)
    assert done.code == 0, done.err
    answers = read_external(run)
    records = [r for r in timed(load_run(run).records) if r.decoder == "spec"]
    assert [a.num_tokens for a in answers] == [len(r.tokens or ()) for r in records]
    assert sum(a.accepted or 0 for a in answers) == sum(
        sum(r.steps.accepted) for r in records if r.steps
    )
    (line,) = [line for line in done.out.splitlines() if line.startswith("vllm:spec")]
    steps = sum(a.num_steps or 0 for a in answers)
    assert f"{1 + sum(a.accepted or 0 for a in answers) / steps:.2f}" in line
    assert bench("report", run).code == 0
    assert "vllm:spec (other engine)" in (run / "report.md").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metrics": {}}, "--per-request-spec-decode-metrics summary"),
        ({"num_spec_steps": 99}, "of 99 steps"),
        ({"num_draft_tokens": 0}, "of 0 drafts"),
        ({"acceptance_histogram": [-1]}, "acceptance_histogram [-1]"),
        ({"num_draft_tokens": "many"}, "'many'"),
    ],
)
def test_contradictory_responses_are_refused_with_one_line(
    change: dict[str, Any],
    said: str,
    synthetic_run: Callable[..., Path],
    tmp_path: Path,
) -> None:
    run = synthetic_run()
    bench("export", run, "--to", "acceptance", "--folder", tmp_path)
    line = json.loads((tmp_path / "requests" / "spec.jsonl").read_text().splitlines()[0])
    if "metrics" in change:
        line |= change
    else:
        line["metrics"]["speculative_decoding"] |= change
    (tmp_path / "bad.jsonl").write_text(json.dumps(line))
    done = bench("external", run, "--engine", "vllm", "--read", tmp_path / "bad.jsonl")
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert said in done.err
    assert not (run / "external.jsonl").exists()
    done = bench("external", run, "--engine", "llamacpp", "--read", tmp_path / "bad.jsonl")
    assert (done.code, "--read is for --engine vllm" in done.err) == (2, True)


def test_acceptance_by_set_follows_the_definition_of_aiperf(
    synthetic_run: Callable[..., Path], tmp_path: Path
) -> None:
    """Pooled over steps that drafted."""
    sets, path = {"qa": "gsm8k", "rag": "mbpp"}, synthetic_run({"spec": 3.0, "ptp": 4.0})
    lines = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        line["family"] = sets.get(line["family"], line["family"])
    (path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    findings = Findings(load_run(path))
    write(findings, "acceptance", tmp_path / "out")
    lengths = read(tmp_path / "out" / "spec_al.json")
    assert {*lengths} == {"spec", "ptp"}
    for name in sets.values():
        answers = [
            r.steps
            for r in timed(findings.run.records)
            if (r.decoder, r.family) == ("spec", name) and r.steps is not None
        ]
        accepted = sum(sum(steps.accepted) for steps in answers)
        steps = sum(sum(map(bool, each.drafted)) for each in answers)
        assert lengths["spec"][f"spec_al_{name}"] == pytest.approx(1 + accepted / steps)
    assert {*lengths["spec"]} == {"spec_al_gsm8k", "spec_al_mbpp"}


def test_a_run_of_other_prompts_has_no_acceptance_by_set(exported: tuple[Findings, Path]) -> None:
    assert not (exported[1] / "spec_al.json").exists()
