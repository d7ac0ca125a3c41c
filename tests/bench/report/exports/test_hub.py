"""A run as the Hugging Face hub takes it: its own readers read it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from bench.errors import BenchError, Exit
from bench.records.files import write_files
from bench.records.run_folder import load_run
from bench.report.exports.export import Choices
from bench.report.exports.export import export as write
from bench.report.exports.hub import dataset
from bench.report.findings import Findings
from tests.command_line import bench

ROOT = Path(__file__).parents[4]


@pytest.fixture
def findings(reported_run: Path) -> Findings:
    return Findings(load_run(reported_run))


def export(findings: Findings, *given: Any) -> list[Path]:
    return [Path(path) for path in write(findings, *given)]


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


# ---------------------------------------------------------------- the dataset


def test_the_card_names_tables_that_the_datasets_library_loads(
    findings: Findings, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    folder, cache = tmp_path / "hub", str(tmp_path / "cache")
    export(findings, "hub", folder)
    names = datasets.get_dataset_config_names(str(folder))
    assert set(names) == {"summary", "answers", "by_prompt"}
    loaded = {
        name: datasets.load_dataset(str(folder), name, split="train", cache_dir=cache)
        for name in names
    }
    summary = loaded["summary"].to_pandas().set_index(["decoder", "family"])
    ours = findings.summary.set_index(["decoder", "family"])
    assert summary["speedup"]["spec", "all"] == pytest.approx(ours["speedup"]["spec", "all"])
    assert len(loaded["answers"]) == len(findings.run.records)
    assert len(loaded["by_prompt"]) == len(findings.by_prompt)


def test_the_hubs_own_reader_understands_the_card(findings: Findings, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card_file = write_files(tmp_path, dataset(findings, "cc-by-4.0"))[0]
    card = hub.DatasetCard.load(card_file)
    assert card.data.license == "cc-by-4.0"
    assert card.data.size_categories == ["n<1K"]
    assert [each["config_name"] for each in card.data.configs if each.get("default")] == ["summary"]
    for each in card.data.configs:
        assert all((tmp_path / one["path"]).is_file() for one in each["data_files"])
    assert findings.conclusion.split(" (")[0] in card.text
    assert 'load_dataset("OWNER/NAME", "summary"' in card.text


def test_every_figure_of_the_card_lies_beside_it(findings: Findings, tmp_path: Path) -> None:
    card = export(findings, "hub", tmp_path)[0].read_text()
    drawn = {file.name for file in (findings.run.path / "figures").glob("*.png")}
    assert drawn
    for name in drawn:
        assert f"](figures/{name})" in card
        assert (tmp_path / "figures" / name).is_file()


def test_neither_texts_nor_paths_of_this_machine_are_in_the_dataset(
    findings: Findings, tmp_path: Path
) -> None:
    export(findings, "hub", tmp_path / "hub")
    answers = pd.read_parquet(tmp_path / "hub" / "data" / "answers.parquet")
    assert "text" not in answers
    assert answers["tokens"].dtype.kind == "i"  # how many, not which
    for name, content in _bytes(tmp_path / "hub").items():
        assert str(findings.run.path.parent).encode() not in content, name


def test_exports_for_the_hub_are_the_same_bytes_each_time(
    findings: Findings, tmp_path: Path
) -> None:
    chosen: tuple[tuple[str, Choices], ...] = (
        ("hub", Choices()),
        ("eval-results", Choices(benchmarks=["qa=owner/data#x"])),
    )
    for kind, choices in chosen:
        export(Findings(findings.run), kind, tmp_path / "once", choices)
        export(Findings(findings.run), kind, tmp_path / "again", choices)
    assert _bytes(tmp_path / "once") == _bytes(tmp_path / "again")
    assert len(_bytes(tmp_path / "once")) > 6


# ---------------------------------------------------------------- evaluation results


def test_the_hubs_own_parser_reads_the_results_of_every_decoder(
    findings: Findings, tmp_path: Path
) -> None:
    hub = pytest.importorskip("huggingface_hub", minversion="1.10")
    choices = Choices(benchmarks=["qa=owner/qa-data#open", "rag=owner/rag"], repo="me/runs")
    files = export(findings, "eval-results", tmp_path, choices)
    assert {file.parent.name for file in files} == {".eval_results"}
    summary = findings.summary.set_index(["decoder", "family"])["quality"]
    for file, decoder in zip(files, ("ar", "spec", "nar"), strict=True):
        entries = hub.parse_eval_result_entries(yaml.safe_load(file.read_text()))
        assert [(e.dataset_id, e.task_id) for e in entries] == [
            ("owner/qa-data", "open"),
            ("owner/rag", "default"),
        ]
        for entry, family in zip(entries, ("qa", "rag"), strict=True):
            assert entry.value == pytest.approx(100 * summary[decoder, family], abs=0.005)
            assert entry.notes.startswith(f"decoder {decoder} (guarantee: ")
            assert entry.source_url == "https://huggingface.co/datasets/me/runs"
        assert hub.eval_result_entries_to_yaml(entries) == yaml.safe_load(file.read_text())


def test_a_wrong_decoder_has_no_results(synthetic_run: Callable[..., Path], tmp_path: Path) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {
        "status": "complete",
        "verdict": "VALID",
        "differences": [left],
        "started_utc": "2026-01-02T03:04:05+00:00",
    }
    run = Findings(load_run(synthetic_run(status=status)))
    files = export(run, "eval-results", tmp_path, Choices(benchmarks=["qa=owner/data"]))
    assert [file.stem.split("_")[1] for file in files] == ["ar", "ptp"]
    (entry,) = yaml.safe_load(files[1].read_text())
    assert entry["date"] == "2026-01-02T03:04:05+00:00"
    assert "run WRONG" in entry["notes"]


@pytest.mark.parametrize(
    ("benchmarks", "says"),
    [
        ([], "families of this run: mt_bench, "),
        (["qa=data"], "is not FAMILY=OWNER/DATASET#TASK"),
        (["qq=owner/data"], "this run has no family 'qq'; did you mean 'qa'"),
        (["qa=owner/a", "qa=owner/b"], "--benchmark names qa twice"),
    ],
)
def test_a_benchmark_that_cannot_be_meant_is_one_line(
    findings: Findings, tmp_path: Path, benchmarks: list[str], says: str
) -> None:
    with pytest.raises(BenchError) as refused:
        export(findings, "eval-results", tmp_path, Choices(benchmarks=benchmarks))
    assert says in refused.value.message
    assert refused.value.exit_code == Exit.USAGE
    assert not list(tmp_path.iterdir())


def test_a_run_without_quality_has_no_results(
    synthetic_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = Findings(load_run(synthetic_run(quality=0)))
    with pytest.raises(BenchError, match="has no quality of qa; measure it with") as refused:
        export(run, "eval-results", tmp_path, Choices(benchmarks=["qa=owner/data"]))
    assert refused.value.exit_code == Exit.UNAVAILABLE


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("csv", ("--repo", "me/runs"), "--repo is for --to eval-results, not for csv"),
        ("hub", ("--project", "x"), "--project is for --to mlflow and trackio, not for hub"),
        ("mlflow", ("--license", "mit"), "--license is for --to hub, not for mlflow"),
        ("hub", ("--benchmark", "qa=a/b"), "--benchmark is for --to eval-results, not for hub"),
        ("eval-results", ("--repo", "runs"), "--repo 'runs' is not OWNER/NAME"),
    ],
)
def test_an_option_of_another_format_is_refused_in_one_line(
    reported_run: Path, tmp_path: Path, kind: str, options: tuple[str, ...], says: str
) -> None:
    ended = bench("export", reported_run, "--to", kind, "--folder", tmp_path, *options)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert says in ended.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_no_export_for_the_hub_loads_torch(reported_run: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from bench.records.run_folder import load_run\n"
        "from bench.report.exports.export import Choices, export\n"
        "from bench.report.findings import Findings\n"
        f"run = Findings(load_run(Path({str(reported_run)!r})))\n"
        f"export(run, 'hub', Path({str(tmp_path)!r}), Choices())\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_files_lie_in_a_folder_of_their_format(
    synthetic_run: Callable[..., Path],
) -> None:
    run = Findings(load_run(synthetic_run()))
    places = export(run, "hub", None, Choices())
    assert places[0] == run.run.path / "export" / "hub" / "README.md"
    assert all(place.is_file() for place in places)
