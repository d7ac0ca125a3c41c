"""The command line on a tiny random checkpoint: what it prints, and the code it ends with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import runs as bench_run
from bench.machine.env import ROOT
from bench.records.run_folder import load_run
from tests.command_line import Output, bench
from tests.conftest import RecordedProgress, only_svg
from tests.tiny_checkpoint import save_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Folders of random Llamas over characters, by name and number of extra tokens."""
    home = tmp_path_factory.mktemp("models")

    def save(name: str, num_extra: int = 0) -> Path:
        folder = home / name
        return folder if folder.exists() else save_checkpoint(folder, num_extra)

    return save


@pytest.fixture(scope="session")
def finished(
    checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Output, Path]:
    """One run of the whole command, and its results folder."""
    results = tmp_path_factory.mktemp("results")
    model = checkpoint("target")
    with only_svg():
        ended = bench(
            "run", "--decoders", "spec:k=2", "--model", model, "--draft", model,
            "--tasks", "qa,rag", "--limit", 4, "--quality-limit", 1, "--repeats", 1,
            "--max-new-tokens", 8, "--output", results, "--progress", "plain",
        )  # fmt: skip
    return ended, results


def test_a_run_prints_a_table_on_stdout_and_its_progress_on_stderr(
    finished: tuple[Output, Path],
) -> None:
    ended, results = finished
    assert ended.code == 0, ended.err
    assert "spec" in ended.out
    assert str(results) in ended.out.replace("\n", "")
    assert "timing 12/12" in ended.err
    assert "timing" not in ended.out


def test_a_run_leaves_tables_and_figures(finished: tuple[Output, Path]) -> None:
    run_dir = finished[1] / "latest"
    for name in ("summary.csv", "report.md", "samples.parquet", "config.toml", "vocab.json"):
        assert (run_dir / name).stat().st_size > 0
    assert list((run_dir / "figures").iterdir())
    status = json.loads((run_dir / "run.json").read_text())
    assert (status["status"], status["verdict"]) == ("complete", "VALID")


def test_the_recorded_environment_holds_no_absolute_path(
    finished: tuple[Output, Path],
) -> None:
    env = (finished[1] / "latest" / "env.json").read_text()
    assert str(finished[1].parent) not in env
    assert str(ROOT) not in env


def test_a_complete_run_is_not_resumed(finished: tuple[Output, Path]) -> None:
    ended = bench("resume", "latest", "--output", finished[1])
    assert ended.code == 0
    assert "complete: nothing to resume" in ended.err


@pytest.mark.slow
def test_a_report_is_written_again_without_a_model(finished: tuple[Output, Path]) -> None:
    (finished[1] / "latest" / "report.md").unlink()
    ended = bench("report", finished[1] / "latest")
    assert ended.code == 0
    assert (finished[1] / "latest" / "report.md").is_file()
    assert "spec" in ended.out


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_report_ends_with_the_exit_code_and_reason_of_its_verdict(
    finished: tuple[Output, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree((finished[1] / "latest").resolve(), run)
    status = json.loads((run / "run.json").read_text())
    left = {"cell": "spec", "num_answers": 1, "num_compared": 4, "num_wrong": 1, "example": "c"}
    (run / "run.json").write_text(json.dumps(status | {"differences": [left]}))
    ended = bench("report", run)
    assert ended.code == 3
    assert "Reason: spec is WRONG: it claims to be lossless" in " ".join(ended.out.split())
    (run / "samples.jsonl").write_text("")
    ended = bench("report", run)
    assert ended.code == 4
    lost = "samples.jsonl holds 0 of the "
    for words in ("DAMAGED", lost, "4 of 4 timing blocks", " are missing"):
        assert words in " ".join(ended.out.split())
    assert "VALID" not in ended.out


def test_an_answer_is_shown_step_by_step(finished: tuple[Output, Path]) -> None:
    ended = bench("show", "latest", "--output", finished[1], "--decoders", "spec")
    assert ended.code == 0
    assert "spec" in ended.out


@pytest.mark.parametrize(
    ("what", "contains"), [("decoders", "spec"), ("tasks", "mt_bench"), ("runs", "complete")]
)
def test_lists_name_all_items(finished: tuple[Output, Path], what: str, contains: str) -> None:
    ended = bench("ls", what, "--output", finished[1])
    assert ended.code == 0
    assert contains in ended.out


@pytest.mark.slow
def test_a_run_compared_with_itself_passes_and_can_be_exported(
    finished: tuple[Output, Path],
) -> None:
    _, results = finished
    same = bench("compare", "latest", "latest", "--output", results)
    assert same.code == 0, same.err
    assert same.out.rstrip().endswith("pass")
    for kind in ("github-action-benchmark", "csv", "parquet"):
        ended = bench("export", "latest", "--to", kind, "--output", results)
        assert ended.code == 0, ended.err
        files = ended.out.split()
        assert files
        assert all(Path(file).stat().st_size > 0 for file in files)
    paper = bench("paper", "latest", "--venue", "acl", "--output", results)
    assert paper.code == 0, paper.err
    names = {Path(file).name for file in paper.out.split()}
    assert {"main.tex", "speedup.pdf", "references.bib"} <= names


@pytest.fixture(scope="session")
def stored(finished: tuple[Output, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as it is kept in a repository."""
    folder = tmp_path_factory.mktemp("stored") / "reference"
    latest = finished[1] / "latest"
    ended = bench("export", latest, "--to", "reference", "--folder", folder, "--figure", "speedup")
    assert ended.code == 0, ended.err
    return folder


def test_a_stored_run_omits_prompts_and_includes_only_the_figures_named(
    finished: tuple[Output, Path], stored: Path
) -> None:
    files = {str(file.relative_to(stored)) for file in stored.rglob("*") if file.is_file()}
    assert files == {
        *("config.toml", "env.json", "manifest.json", "phases.json", "run.json", "vocab.json"),
        *("samples.parquet", "summary.csv", "report.md", "figures/speedup.png"),
        "tables/by_prompt.csv",
    }
    assert re.findall(r"figures/\w+", (stored / "report.md").read_text()) == ["figures/speedup"]
    run, kept = load_run(finished[1] / "latest"), load_run(stored)
    assert run.records == kept.records
    assert (run.plan, run.events, run.status) == (kept.plan, kept.events, kept.status)
    assert run.events
    assert "prompts.jsonl" in {file.name for file in run.path.iterdir()}


def test_a_stored_run_shortens_local_paths_to_their_last_part(
    finished: tuple[Output, Path], stored: Path, tmp_path: Path
) -> None:
    latest, named = (finished[1] / "latest").resolve(), tmp_path / "texts" / "question.jsonl"
    run = shutil.copytree(latest, tmp_path / "run")
    text = (run / "config.toml").read_text(encoding="utf-8")
    model = load_run(run).config["model"]
    tasks = f'tasks = "specbench={named}"'
    (run / "config.toml").write_text(text.replace('tasks = "qa,rag"', tasks), encoding="utf-8")
    ended = bench("export", run, "--to", "reference", "--folder", tmp_path / "kept")
    assert ended.code == 0, ended.err
    kept = load_run(tmp_path / "kept").config
    assert kept["tasks"] == "specbench=question.jsonl"
    assert kept["model"] == load_run(stored).config["model"] == Path(str(model)).name
    assert Path(str(model)).is_absolute()
    lines = (tmp_path / "kept" / "config.toml").read_text(encoding="utf-8").splitlines()
    pairs = zip(text.splitlines(), lines, strict=True)
    assert {old.split(" = ")[0] for old, new in pairs if old != new} == {"draft", "model", "tasks"}


@pytest.mark.slow
def test_every_verb_reads_a_stored_run_like_the_original_run(
    finished: tuple[Output, Path], stored: Path, tmp_path: Path
) -> None:
    latest, parent = (finished[1] / "latest").resolve(), tmp_path / "out"
    folder = shutil.copytree(stored, parent / latest.name)
    costs = ROOT / "results" / "reference" / "costs" / "zoo"
    for verb in (
        ("report",), ("show",), ("explain",), ("export", "--to", "csv"), ("paper",),
        ("explain", "--cost", costs), ("export", "--to", "reference"),
    ):  # fmt: skip
        of_run, of_stored = (bench(verb[0], run, *verb[1:]) for run in (latest, folder))
        assert of_stored.code == of_run.code == 0, (verb, of_stored.err)
        if verb[0] in ("show", "explain"):  # but for the texts of prompts
            assert set(of_stored.out.splitlines()) <= set(of_run.out.splitlines())
    assert (folder / "samples.parquet").read_bytes() == (stored / "samples.parquet").read_bytes()
    assert (folder / "summary.csv").read_bytes() == (stored / "summary.csv").read_bytes()
    assert (folder / "report.html").stat().st_size > 10_000
    assert "pass" in bench("compare", folder, folder).out
    listed = bench("ls", "runs", "--output", parent)
    assert "VALID" in listed.out
    other = shutil.copytree(folder, parent / "other")
    status = json.loads((other / "run.json").read_text()) | {"started_utc": "2026-01-01T00:00:00Z"}
    (other / "run.json").write_text(json.dumps(status))
    assert bench("pool", folder, other, "--folder", parent / "pool").code == 0


def test_a_stored_run_cannot_be_resumed_and_a_damaged_stored_run_is_reported_in_one_line(
    stored: Path, tmp_path: Path
) -> None:
    refused = bench("resume", stored)
    assert refused.code == 2
    assert "is a stored run (samples.parquet without samples.jsonl), which is only" in refused.err
    folder = tmp_path / "damaged"
    shutil.copytree(stored, folder)
    data = (stored / "samples.parquet").read_bytes()
    (folder / "samples.parquet").write_bytes(data[: len(data) // 2])
    for verb in (("report",), ("show",), ("compare", stored), ("export", "--to", "csv")):
        ended = bench(verb[0], folder, *verb[1:])
        assert ended.code == 4
        assert ended.err.startswith("bench: ")
        assert ended.err.count("\n") == 1
        assert "samples.parquet is damaged: " in ended.err
    assert "DAMAGED" in bench("ls", "runs", "--output", tmp_path).out
    (folder / "manifest.json").unlink()
    assert "manifest.json is missing" in bench("report", folder).err


def test_storing_a_run_fails_for_an_unknown_figure_or_without_a_report(
    finished: tuple[Output, Path], tmp_path: Path
) -> None:
    store = ("--to", "reference", "--folder", tmp_path / "stored")
    ended = bench("export", finished[1] / "latest", *store, "--figure", "speedups")
    assert ended.code == 2
    assert "no figure 'speedups' in report.md; did you mean 'speedup'?" in ended.err
    folder = shutil.copytree((finished[1] / "latest").resolve(), tmp_path / "bare")
    (folder / "report.md").unlink()
    ended = bench("export", folder, *store)
    assert (ended.code, "has no report.md; write it: bench report" in ended.err) == (2, True)
    assert not (tmp_path / "stored").exists()
    ended = bench("export", finished[1] / "latest", "--to", "reference", "--folder", folder)
    assert (ended.code, "is a run's own folder: give another --folder" in ended.err) == (2, True)


@pytest.mark.slow
def test_prompts_of_a_split_can_be_shown_and_run(checkpoint: Callable[..., Path]) -> None:
    shown = {
        split: set(re.findall(r"zoo-qa-\d+", bench("show-prompts", "-t", "qa", *given).out))
        for split, given in (("tune", ("--split", "tune")), ("test", ("--split", "test")), ("", ()))
    }
    assert shown["tune"]
    assert not shown["tune"] & shown["test"]
    asked = ("-m", checkpoint("target"), "-d", "ar", "--tasks", "qa", "--dry-run")
    assert bench("run", *asked, "--split", "tune").code == 0


def test_prompts_can_be_read_without_a_model() -> None:
    ended = bench("show-prompts", "--tasks", "qa", "--limit", 2)
    assert ended.code == 0
    assert "#1" in ended.out


@pytest.mark.slow
def test_a_dry_run_prints_the_plan_and_writes_no_run_folder(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    ended = bench(
        "run", "-m", checkpoint("target"), "-t", "qa", "-L", 2, "--max-new-tokens", 4,
        "--quality-limit", 0, "-o", tmp_path / "r", "--dry-run",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert "2 prompts timed (qa 2)" in ended.out
    assert "about " in ended.out
    assert "spec is skipped: it needs a draft model" in ended.err
    assert not (tmp_path / "r").exists()
    asked = ("-m", checkpoint("target"), "-t", "qa", "-d", "ar", "--quality-limit", 4, "-L", 5)
    part = bench("run", *asked, "--dry-run", "--repeats", 1, "--part", "1/2")
    assert "3 blocks, 6 timed answers" in part.out, part.err
    for wrong in ("3/2", "9/9"):
        ended = bench("run", *asked, "--dry-run", "--repeats", 1, "--part", wrong)
        assert (ended.code, f"--part {wrong}" in ended.err.replace("'", "")) == (2, True)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_prompt_longer_than_the_context_is_skipped_visibly(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "short?"}\n{"prompt": "%s"}\n' % ("long " * 300))
    arguments = (
        "run", "-d", "ar", "-m", checkpoint("target"), "-t", f"jsonl={file}", "--repeats", 1,
        "--max-new-tokens", 4, "-o", tmp_path / "r", "--progress", "none",
    )  # fmt: skip
    ended = bench(*arguments)
    assert ended.code == 0, ended.err
    assert "1 of 2 prompts skipped" in ended.err
    cut = bench(*arguments, "--overlong", "truncate")
    assert cut.code == 0
    assert "1 of 2 prompts were cut at the beginning" in cut.err


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_prompts_from_a_users_file_form_the_family_other_and_are_reported_as_not_scored(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    import pandas as pd

    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "one?", "answer": "1"}\n{"prompt": "two?"}\n')
    ended = bench(
        "run", "-d", "ar", "-m", checkpoint("target"), "-t", f"jsonl={file}", "--repeats", 1,
        "--max-new-tokens", 4, "-o", tmp_path / "r", "--progress", "plain",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert "1 of 2 prompts have a reference but no family, so they are not scored" in ended.err
    summary = pd.read_csv(tmp_path / "r" / "latest" / "summary.csv")
    assert list(summary["family"]) == ["other", "all"]
    assert list(summary["prompts"]) == [2, 2]
    assert summary["quality"].isna().all()
    assert summary["quality_metric"].isna().all()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("-d", "spce"), 2, "unknown decoder 'spce'; did you mean 'spec'?"),
        (("-d", "ar:kk=1"), 2, "unknown option 'kk' of decoder 'ar'"),
        (("-d", "ar,ar"), 2, "two cells are called 'ar'"),
        (("-d", "spec"), 2, "decoder 'spec' needs a draft model; pass --draft"),
        (("-t", "translaton"), 2, "did you mean 'translation'"),
        (("-t", "jsonl=missing.jsonl"), 2, "missing.jsonl"),
        (("-t", "specbench=missing.jsonl"), 2, "missing.jsonl"),
        (("-c", "missing.toml"), 2, "cannot read missing.toml"),
        (("-m", "./missing"), 5, "there is no such folder"),
        (("--top-p", "2"), 2, "bench: --top-p: it must be 1 or less (got 2.0)"),
        (("--max-new-tokens", "0"), 2, "--max-new-tokens: it must be 1 or more (got 0)"),
        (("--temperature", "nan"), 2, "--temperature: it must be a finite number (got nan)"),
        (("--run-name", "a/b"), 2, "--run-name: 'a/b' may hold only letters, digits and"),
        (("--run-name", "a" * 400), 2, "--run-name: it has 400 characters; at most 100"),
        (("-d", "lookup:n=3:n=4"), 2, "'lookup:n=3:n=4' gives option 'n' twice"),
        (
            ("--seed", "99999999999999999999999"),
            2,
            "--seed: it must be 1,000,000,000,000,000,000 or less",
        ),
        (("--threads", "10000", "--dry-run"), 2, "threads: 10000 is more than the"),
        (("--temperature", "inf"), 2, "--temperature: it must be a finite number"),
        (("-d", ""), 2, "what follows -d is empty"),
        (("--run-name=",), 2, "--run-name is empty"),
        (("--output", " "), 2, "what follows --output is empty"),
        (("--adapter", "x"), 2, "NAME=PATH"),
        (("--adapter", "x=a", "--adapter", "x=b"), 2, "--adapter names 'x' twice"),
        (("-d", "ar", "--adapter", "x=a"), 2, "--adapter x=…: none of ar needs it"),
        (("-d", "ptp"), 2, "decoder 'ptp' needs an adapter named 'ptp' of the target; pass "),
        (("-d", "ptp", "--adapter", "ptp=./missing"), 5, "'ptp': there is no folder 'missing'"),
        (
            ("-d", "ptp", "--adapter", "ptp=."),
            5,
            "cannot be loaded: [Errno 2] No such file or directory: 'adapter.json'",
        ),
        (("-d", "ptp:adapter=none", "--adapter", "none=zoo"), 5, "'none': there is no folder"),
        (("--device", "cuda:77"), 5, "device 'cuda:77' is missing"),
        (("--device", "gpu"), 2, "'gpu' is not a device"),
        (("--split", "dev"), 2, "--split: it must be 'tune' or 'test' (got 'dev')"),
        (("--device", "mps"), 2, "is not supported"),
        (("--dtype", "int4"), 2, "dtype"),
        (("--max-new-tokens", "5000"), 2, "context is 1024 tokens, so answers of 5000 leave none"),
    ],
)
def test_invalid_input_ends_with_one_line_and_a_documented_exit_code(
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    model = () if "-m" in arguments else ("-m", checkpoint("target"))
    ended = bench("run", *model, "-o", tmp_path / "r", "--progress", "none", *arguments)
    lines = [line for line in ended.err.splitlines() if line.startswith("bench: ")]
    assert ended.code == code, ended.err
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in ended.err
    assert not (tmp_path / "r").exists() or not list((tmp_path / "r").iterdir())


def test_a_draft_of_another_vocabulary_is_refused(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    draft = tmp_path / "draft"  # without a tokenizer, nothing tells which ids are the same
    shutil.copytree(checkpoint("other", 5), draft, ignore=shutil.ignore_patterns("tokenizer*"))
    ended = bench(
        "run", "-d", "spec", "-m", checkpoint("target"), "--draft", draft,
        "-o", tmp_path / "r", "--progress", "none",
    )  # fmt: skip
    assert ended.code == 2
    assert "the draft has no tokenizer that shows which of them are the same" in ended.err


@pytest.fixture
def adapter(checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Folders of random adapters of the checkpoint `target`, by name and seed."""
    import torch
    from transformers import LlamaForCausalLM

    from decoders.core.adapter.gating import layer_shapes
    from decoders.core.adapter.module import SlotAdapter
    from decoders.core.adapter_config import AdapterConfig
    from decoders.core.hf.checkpoint import weights_sha256

    def save(name: str, seed: int = 0, width: int = 16) -> Path:
        shapes = layer_shapes(LlamaForCausalLM.from_pretrained(checkpoint("target")))
        config = AdapterConfig(
            layers=shapes,
            width=width,
            rank=2,
            num_slots=4,
            temperatures=(0.5, 1.0),
            base={"weights_sha256": weights_sha256(checkpoint("target"))},
        )
        made = SlotAdapter(config, seed)
        with torch.no_grad():
            for number, weights in enumerate(made.lora_b.parameters()):
                weights.normal_(generator=torch.Generator().manual_seed(seed + number))
        made.save(tmp_path / name)
        return tmp_path / name

    return save


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_ptp_runs_with_an_adapter_and_gives_the_baselines_tokens(
    checkpoint: Callable[..., Path],
    adapter: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pandas as pd

    ended = bench(
        "run", "-d", "ptp,ptp@s:mode=sequential", "-m", checkpoint("target"),
        "--adapter", f"ptp={adapter('a')}", "-t", "qa", "-L", 2, "--quality-limit", 1,
        "--repeats", 1, "--max-new-tokens", 8, "-o", tmp_path / "r", "--progress", "plain",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    line = "adapter 'ptp' is used outside its training (temperature 0, trained without greedy text)"
    assert ended.err.count(line) == 1
    run_dir = tmp_path / "r" / "latest"
    summary = pd.read_csv(run_dir / "summary.csv")
    overall = summary[summary["family"] == "all"].set_index("decoder")
    assert list(overall.loc[["ptp", "ptp@s"], "identical_to_ar"]) == [1.0, 1.0]
    memory = overall["peak_memory_bytes"]
    assert memory["ptp"] == memory["ptp@s"] > memory["ar"]
    status = json.loads((run_dir / "run.json").read_text())
    assert sum(line in warning for warning in status["warnings"]) == 1
    facts = json.loads((run_dir / "env.json").read_text())["models"]["adapters"]["ptp"]
    assert (facts["variant"], facts["rank"], facts["slots"]) == ("o-ptp", 2, 4)
    assert facts["code"] == "dyadic"
    assert facts["parameters"] > 0
    assert len(facts["weights_sha256"]) == 64

    run_dir = run_dir.resolve()
    samples, status_file = run_dir / "samples.jsonl", run_dir / "run.json"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:6]))  # the first block, its load, and one answer
    status_file.write_text(json.dumps(status | {"status": "interrupted"}))
    resumed = bench_run.resume(
        run_dir, RecordedProgress(), report=None
    )  # the verb writes a report again
    assert resumed.exit_code == 0
    assert json.loads(status_file.read_text())["num_records"] == status["num_records"]

    status_file.write_text(json.dumps(status | {"status": "interrupted"}))
    adapter("a", seed=9)
    other = bench("resume", run_dir, "--progress", "none")
    assert other.code == 5
    assert "the adapter has changed since the run began" in other.err


def test_an_adapter_of_another_model_is_refused(
    checkpoint: Callable[..., Path], adapter: Callable[..., Path], tmp_path: Path
) -> None:
    ended = bench(
        "run", "-d", "ptp", "-m", checkpoint("target"), "-t", "zoo", "-o", tmp_path / "r",
        "--adapter", f"ptp={adapter('wide', width=24)}", "--progress", "none",
    )  # fmt: skip
    assert ended.code == 2
    assert ended.err.splitlines() == [
        "bench: adapter 'ptp': the adapter was made for a model 24 wide, not 16"
    ]


def test_a_file_in_place_of_the_results_folder_is_reported_in_one_line(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "r").write_text("")
    ended = bench("run", "-d", "ar", "-m", checkpoint("target"), "-t", "zoo", "-o", tmp_path / "r")
    assert ended.code == 1
    assert ended.err.startswith("bench: cannot write ")


def test_an_error_about_an_unknown_key_in_a_config_file_suggests_the_nearest_key(
    tmp_path: Path,
) -> None:
    (tmp_path / "c.toml").write_text("batchsize = 2\n")
    ended = bench("run", "-c", tmp_path / "c.toml")
    assert ended.code == 2
    assert "did you mean 'batch_size'" in ended.err


@pytest.mark.parametrize(
    "arguments", [("resume", "nowhere"), ("report", "nowhere"), ("show", "nowhere")]
)
def test_a_missing_run_folder_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    ended = bench(*arguments)
    assert ended.code == 2
    assert ended.err.startswith("bench: no run folder 'nowhere'")


def test_a_missing_embedded_model_is_refused_with_the_command_that_trains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.plan import sources

    monkeypatch.setattr(sources, "ROOT", tmp_path)
    ended = bench("run", "-o", tmp_path / "r", "--progress", "none")
    assert ended.code == 5
    assert "bench: the embedded target is missing (zoo/target); train it with" in ended.err


def verify(checkpoint: Callable[..., Path], decoders: str, *options: object) -> Output:
    model = checkpoint("target")
    return bench(
        "verify", "-d", decoders, "-m", model, "--draft", model, "-t", "qa", "-L", 2,
        "--max-new-tokens", 8, "--draws", 2000, "--progress", "none", *options,
    )  # fmt: skip


@pytest.mark.slow
def test_verify_prints_a_verdict_and_writes_its_results_as_json(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    ended = verify(checkpoint, "spec", "--json", tmp_path / "found.json")
    assert ended.code == 0, ended.err
    assert "lossless" in ended.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert [one["verdict"] for one in found["decoders"]] == ["lossless", "lossless"]


def test_verify_ends_with_exit_code_3_if_a_decoder_that_claims_lossless_is_wrong(
    checkpoint: Callable[..., Path],
) -> None:
    ended = verify(checkpoint, f"spec,{ROOT / 'examples' / 'wrong.py'}:LeaksCache", "--draws", 500)
    assert ended.code == 3, ended.err
    assert "wrong" in ended.out


def test_verify_refuses_unusable_options_before_it_starts(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    ended = verify(checkpoint, "spec", "--json", tmp_path / "nowhere" / "found.json")
    assert ended.code == 2
    assert "does not exist" in ended.err
    ended = verify(checkpoint, "spec", "--draws", 0)
    assert ended.code == 2
    assert ended.err == "bench: --draws: it must be 1 or more (got 0)\n"


@pytest.mark.parametrize("margin", ["-1", "0", "nan", "inf"])
def test_the_doctor_refuses_a_margin_that_is_not_positive_and_finite(margin: str) -> None:
    ended = bench("doctor", "--margin", margin)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("bench: --margin: it must be ")


def test_no_verb_takes_an_empty_argument() -> None:
    for verb in ("report", "show", "explain", "resume", "compare", "paper"):
        ended = bench(verb, "")
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert f"what follows {verb} is empty" in ended.err


def test_wrong_usage_ends_with_code_2() -> None:
    assert bench("run", "--limt", 3).code == 2
    assert bench("nonsense").code == 2
    assert bench("ls", "cats").code == 2


def test_help_lists_every_verb_under_a_heading() -> None:
    shown = bench("--help").out
    headings = ("Measure:", "Read results:", "Guard against regressions:", "Make models")
    assert [heading in shown for heading in headings] == [True] * 4
    assert "Commands:" not in shown
    for verb in ("run", "compare", "ab", "doctor", "export", "paper", "train", "import"):
        assert f"\n  {verb} " in shown


def test_the_options_of_a_run_stand_under_headings() -> None:
    shown = bench("run", "--help").out
    below = dict(re.findall(r"^(\S.*):\n((?:  .*\n)+)", shown, re.MULTILINE))
    assert list(below) == [
        *("What is compared", "How much is measured", "Sampling", "Precision and devices"),
        *("Plan, progress and results", "Several workers", "Several sessions", "Other options"),
    ]
    assert "--tasks" in below["What is compared"]
    assert "--temperature" in below["Sampling"]
    assert "--output" in below["Plan, progress and results"]
    assert below["Other options"].split()[0] == "--help"


def test_the_version_is_shown() -> None:
    ended = bench("--version")
    assert (ended.code, ended.out.split()[0]) == (0, "bench")


def test_help_is_there_for_every_verb_and_loads_nothing_heavy() -> None:
    verbs = ("", "run", "verify", "resume", "show", "train zoo", "export", "paper", "compare", "ab")
    code = (
        "import sys, cli\n"
        f"for verb in {(*verbs, 'doctor')!r}:\n"
        "    sys.argv = ['bench', *verb.split(), '--help']\n"
        "    try:\n        cli.main()\n"
        "    except SystemExit as end:\n        assert not end.code, verb\n"
        "    heavy = {'torch', 'transformers', 'pandas', 'rich'} & set(sys.modules)\n"
        "    assert not heavy, (verb, heavy)\n"
        "    print('end of help')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    *pages, rest = done.stdout.split("end of help\n")
    assert not rest
    assert [("--help" in page) for page in pages] == [True] * (len(verbs) + 1)
