"""Exports: other tools read them, and they hold the numbers of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.errors import BenchError, Exit
from bench.extras.exports.export import export as write
from bench.records.run_folder import load_run
from bench.report.findings import Findings


@pytest.fixture
def findings(reported_run: Path) -> Findings:
    return Findings(load_run(reported_run))


def export(findings: Findings, *given: Any) -> list[Path]:
    return [Path(path) for path in write(findings, *given)]


def test_the_github_action_gets_one_file_per_direction(findings: Findings, tmp_path: Path) -> None:
    smaller, bigger = export(findings, "github-action-benchmark", tmp_path)
    times, rates = (json.loads(file.read_text()) for file in (smaller, bigger))
    assert {entry["unit"] for entry in times} == {"ms"}
    by_name = {entry["name"]: entry for entry in rates}
    assert by_name["ar: tokens per call"]["value"] == 1
    assert " to " in by_name["spec: speed-up over ar"]["range"]
    assert "A/A " in by_name["spec: speed-up over ar"]["extra"]
    assert all(set(entry) <= {"name", "unit", "value", "range", "extra"} for entry in times + rates)


def test_csv_and_parquet_hold_one_row_per_answer(findings: Findings, tmp_path: Path) -> None:
    (csv,), (parquet,) = (export(findings, kind, tmp_path) for kind in ("csv", "parquet"))
    frames = pd.read_csv(csv), pd.read_parquet(parquet)
    for frame in frames:
        assert len(frame) == len(findings.run.records)
        timed = frame[(frame["pass"] == "timing") & (frame["decoder"] == "spec")]
        row = findings.summary.query("decoder == 'spec' and family == 'all'").iloc[0]
        rate = timed["tokens"].sum() / timed["target_calls"].sum()
        assert rate == pytest.approx(row["tokens_per_call"])
        for counts, record in zip(frame.to_dict("records"), findings.run.records, strict=True):
            steps = record.steps
            assert steps is not None
            assert counts["steps"] == len(steps.emitted)
            for name in ("target_calls", "target_rows", "draft_calls", "drafted", "accepted"):
                assert counts[name] == sum(getattr(steps, name)), name


def test_a_run_without_answers_has_nothing_to_export(
    synthetic_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = synthetic_run()
    (run / "samples.jsonl").write_text("")
    with pytest.raises(BenchError, match="no answers to export") as refused:
        export(Findings(load_run(run)), "csv", tmp_path)
    assert refused.value.exit_code == Exit.UNAVAILABLE


def test_a_wrong_decoder_is_left_out_of_the_export_for_the_github_action(
    synthetic_run: Callable[..., Path], tmp_path: Path
) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {"status": "complete", "verdict": "VALID", "differences": [left]}
    run = Findings(load_run(synthetic_run(status=status)))
    assert run.verdict == "WRONG"
    for file in export(run, "github-action-benchmark", tmp_path):
        entries = json.loads(file.read_text())
        assert {entry["name"].partition(":")[0] for entry in entries} == {"ar", "ptp"}
        assert all("guarantee: same tokens" in e["extra"] for e in entries)
