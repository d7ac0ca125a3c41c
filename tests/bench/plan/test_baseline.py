"""``--baseline CELL`` and targets that predict masked tokens: what a run compares, and refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.errors import UsageError
from bench.extras.sections.estimators import prompt_table
from bench.plan.checks import check_first
from bench.plan.dry_run import describe, dry_run
from bench.records.plan import Block, Cell, Plan
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.runs import resume, run
from bench.settings.config import load_config
from bench.stats.workers import noise_floor
from tests.command_line import bench
from tests.conftest import RecordedProgress
from tests.core.hf.test_masked import changed
from tests.tiny_checkpoint import save_checkpoint

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_checkpoint(tmp_path_factory.mktemp("masked") / "masked")
    return changed(folder, is_causal=False, mask_token_id=2, block_size=4)


def test_speedups_floor_and_pairs_refer_to_the_baseline_and_tokens_to_ar(
    small: Any, opener: Any, tmp_path: Path
) -> None:
    config = small(decoders="spec,lookup", baseline="lookup")
    ended = run(config, tmp_path, RecordedProgress(), opener, report=None)
    measured = load_run(ended.run_dir)
    assert measured.plan.baseline == "lookup"
    assert {r.decoder for r in measured.records} == {"lookup", "lookup@aa", "ar", "spec"}
    slowed = [
        replace(r, total_s=2 * r.total_s) if r.total_s and "lookup" in r.decoder else r
        for r in measured.records
    ]
    findings = Findings(replace(measured, records=tuple(slowed)))
    rows = findings.summary[findings.summary["family"] == "all"].set_index("decoder")
    assert list(rows.index) == ["lookup", "ar", "spec"]
    assert set(rows["baseline"]) == {"lookup"}
    assert [rows["speedup"]["lookup"], rows["speedup_low"]["lookup"]] == [1, 1]
    # the fake clock gives all answers one time
    assert rows.loc[["ar", "spec"], "speedup"].tolist() == pytest.approx([2, 2])
    assert rows["aa_speedup"].tolist() == pytest.approx([1, 1, 1])
    assert (rows["identical_to_ar"].dropna() == 1).all()
    assert rows["nll_over_ar"].notna().all()
    pairs = prompt_table(slowed, findings.decoders)
    assert set(pairs["decoder"]) == {"ar", "spec", "lookup@aa"}
    assert noise_floor(measured.records).num == len(set(pairs["prompt"]))
    assert "lookup against a second lookup" in findings.floor_sentence
    assert "as fast as lookup" in findings.conclusion


def test_the_time_of_a_plan_is_estimated_at_the_speed_of_its_baseline(
    small: Any, opener: Any
) -> None:
    lines = dry_run(small(decoders="lookup", baseline="lookup"), RecordedProgress(), opener)
    assert "if every decoder were as fast as lookup (" in lines[-1]


def test_an_interrupted_run_resumes_with_its_baseline(
    small: Any, opener: Any, tmp_path: Path
) -> None:
    config = small(decoders="spec", baseline="spec", repeats=2)
    stopped = RecordedProgress(stop_at=20)
    ended = run(config, tmp_path, stopped, opener, report=None)
    assert load_run(ended.run_dir).status.status == "interrupted"
    resume(ended.run_dir, RecordedProgress(), opener, report=None)
    measured = load_run(ended.run_dir)
    assert measured.status.complete
    assert measured.plan.baseline == measured.config["baseline"] == "spec"
    assert {r.decoder for r in measured.records} == {"ar", "spec", "spec@aa"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"decoders": "lookup", "baseline": "spec"}, "--baseline spec: allowed are ar, lookup"),
        ({"decoders": "lookup@aa"}, "'lookup@aa' is a baseline's second arm"),
        ({"decoders": "lookup", "baseline": "lookup", "primary": "lookup"}, "--primary lookup"),
        ({"decoders": "dllm"}, "'dllm' needs a target that predicts masked tokens"),
    ],
)
def test_an_invalid_choice_of_baseline_or_decoders_is_refused_in_one_line(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        check_first(load_config(None, settings), lambda _: None, brings_models=True)


def test_a_masked_model_is_measured_without_ar(masked: Path, tmp_path: Path) -> None:
    cells = "dllm@t90:threshold=0.9,dllm@t2:passes=2"
    shown = bench(
        *("run", "--model", masked, "--decoders", cells, "--tasks", "qa", "--limit", 3),
        *("--repeats", 1, "--quality-limit", 2, "--max-new-tokens", 10, "--no-compile"),
        *("--output", tmp_path, "--run-name", "masked", "--progress", "none"),
    )
    assert shown.code == 0, shown.err
    assert "bench explain" in shown.out
    assert "bench verify" not in shown.out  # which needs ar
    (folder,) = (path for path in tmp_path.iterdir() if not path.is_symlink())
    measured = load_run(folder)
    status = json.loads((folder / "run.json").read_text())
    assert (status["verdict"], status["differences"]) == ("VALID", [])
    assert measured.plan.baseline == "dllm@t90"
    assert {r.decoder for r in measured.records} == {"dllm@t90", "dllm@t90@aa", "dllm@t2"}
    assert all(r.nll is None and r.entropy is None for r in measured.records)
    assert all(2 not in (r.tokens or ()) for r in measured.records)
    rows = pd.read_csv(folder / "summary.csv")
    meaningless = ["identical_to_ar", "shared_with_ar", "nll_over_ar", "base_nll", "base_entropy"]
    assert rows[meaningless].isna().all(axis=None)
    assert rows["tpf"].notna().all()
    report = (folder / "report.md").read_text()
    assert "dllm@t90 against a second dllm@t90" in report
    assert "entropy of ar's next token" not in report
    shutil.rmtree(folder)


@pytest.mark.parametrize("decoder", ["ar", "spec", "lookup", "hf", "nar", "dllm,ptp"])
def test_a_causal_decoder_refuses_a_masked_model_in_one_line(masked: Path, decoder: str) -> None:
    shown = bench("run", "--model", masked, "--decoders", decoder, "--tasks", "qa")
    assert shown.code == 2
    assert shown.err.count("\n") == 1
    assert "needs a causal target, but the model predicts masked tokens" in shown.err


def test_a_run_of_a_masked_model_that_names_no_decoder_runs_dllm(masked: Path) -> None:
    resolved = check_first(load_config(None, {"model": str(masked)}), lambda _: None)
    assert list(resolved.decoders) == ["dllm"]
    assert resolved.config.baseline == "dllm"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("verify", "--decoders", "ar"), "needs a causal target"),
        (("train", "eagle", "--data", "text=README.md"), "training needs a causal model"),
    ],
)
def test_verify_and_train_refuse_a_masked_model(
    masked: Path, arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    output = ("--output", tmp_path / "adapter") if arguments[0] == "train" else ()
    shown = bench(*arguments, "--model", masked, *output)
    assert shown.code != 0
    assert says in shown.err.splitlines()[-1]
    assert "Traceback" not in shown.err


def test_a_dry_run_omits_empty_options_and_names_the_baseline_that_runs_twice() -> None:
    cells = (
        Cell(cell="spec", lossless=True, options={"k": "4", "stop": "0.0", "cascade": ""}),
        Cell(cell="lookup", lossless=True, options={"cascade": ""}),
    )
    block = Block(block=0, repeat=0, prompts=("a#1",), order=("spec", "spec@aa", "lookup"))
    first, second, *_, last = describe(Plan(cells=cells, blocks=(block,)))
    assert first == "spec: k=4, stop=0.0"
    assert second == "lookup: no options"
    assert last == "1 block, 3 timed answers (spec twice)"


def test_a_law_that_leaves_a_masked_model_without_a_decoder_is_refused_in_one_line(
    masked: Path,
) -> None:
    config = load_config(None, {"model": str(masked), "law": "a.py:Law"})
    line = "^dllm is skipped: it .*; no decoder is left to run; name one that suits the model"
    with pytest.raises(UsageError, match=line):
        check_first(config, lambda _: None)
