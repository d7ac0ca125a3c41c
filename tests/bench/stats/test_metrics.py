"""Metrics are declared once; rows of a summary are typed, and unknown is None wherever from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import pandas as pd
import pytest

from bench.records.record import SampleRecord
from bench.records.run_folder import load_run
from bench.report.tables.main import main_columns
from bench.stats.intervals import Estimate
from bench.stats.metric import CellData, Heading, compute, declared_metrics, end, metric
from bench.stats.metrics import METRICS, SummaryRow, summary_rows
from bench.stats.summary import ALL, summarise
from tests.versions import older

ROOT = Path(__file__).parents[3]
REFERENCES = sorted((ROOT / "results" / "reference").glob("*/summary.csv"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Longer(SummaryRow):
    """The columns, and a metric with an interval."""

    emitted_per_answer: float | None = metric(
        "emitted / answers",
        lambda data: Estimate(value=data.tally.emitted / data.tally.answers, low=1.0, high=9.0),
        section="Counts",
        spec=".1f",
        heading=Heading("tokens of an answer", 4.5),
    )
    emitted_per_answer_low: float | None = end("emitted_per_answer", "low")
    emitted_per_answer_high: float | None = end("emitted_per_answer", "high")


def test_one_declared_field_adds_a_metric_with_its_interval_and_table_column(
    record: Callable[..., SampleRecord],
) -> None:
    metrics = declared_metrics(Longer)
    assert list(metrics)[:-3] == list(METRICS)
    records = [record(emitted=(1, 2, 3)), record(emitted=(1, 3))]
    found = compute(CellData(decoder="x", family=ALL, records=records), metrics)
    assert [found[name] for name in list(metrics)[-3:]] == [5.0, 1.0, 9.0]
    assert "emitted_per_answer" not in METRICS
    columns = main_columns(metrics)
    assert list(columns).index("tokens of an answer") == 5
    row = Longer(decoder="x", family=ALL, emitted_per_answer=5.0)
    assert columns["tokens of an answer"].cell(row) == "5.0"


def test_each_end_of_an_interval_belongs_to_a_metric() -> None:
    for name, each in METRICS.items():
        assert (each.compute is None) == (each.end_of is not None)
        if each.end_of is not None:
            assert METRICS[each.end_of].compute is not None
            assert name.endswith(f"_{each.end}")


EXERCISE = """
import sys
from pathlib import Path

from bench.compare.gate import HARD
from bench.extras.paper.table import COLUMNS
from bench.report.write import write_report
from docs.generate import parts

write_report(Path(sys.argv[1]))
print(HARD["ended"], COLUMNS["ended"].heading)
for name in ("docs/metrics.md", "docs/schema.md"):
    text = Path(name).read_text(encoding="utf-8")
    print("| `ended` |" in text, "| `ended` |" in parts.filled(text, name))
"""


@pytest.mark.slow
def test_the_metric_of_the_docs_reaches_tables_gate_paper_and_docs(tmp_path: Path) -> None:
    """The exercise of docs/metrics.md, in a copy of the tree: one entry, no other file."""
    for folder in ("bench", "decoders", "specbench_tasks", "training", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copytree(ROOT / "results" / "reference" / "cpu-zoo", run := tmp_path / "run")
    file, page = tmp_path / "bench/stats/metrics.py", tmp_path / "docs/metrics.md"
    (entry,) = re.findall(r"```python\n(ended: .*?)```", page.read_text("utf-8"), re.DOTALL)
    before = file.read_text("utf-8")
    marker = "\n\nMETRICS: Mapping"
    file.write_text(before.replace(marker, indent(entry, " " * 4) + marker), "utf-8")
    command = [sys.executable, "-c", EXERCISE, str(run)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.check_output(command, cwd=tmp_path, env=env, text=True)
    assert printed == "('same', True) Ended\n" + "False True\n" * 2
    summary = pd.read_csv(run / "summary.csv")
    assert summary.columns[-1] == "ended"
    assert summary["ended"].between(0, 1).all()
    assert "ended %" in (run / "report.md").read_text("utf-8")


@pytest.fixture
def frame(synthetic_run: Callable[..., Path]) -> pd.DataFrame:
    run = load_run(synthetic_run())
    return summarise(run)


def test_rows_hold_the_values_of_the_frame(frame: pd.DataFrame) -> None:
    rows = summary_rows(frame, None)
    assert [(row.decoder, row.family) for row in rows] == list(
        zip(frame["decoder"], frame["family"], strict=True)
    )
    assert [row.speedup for row in rows] == frame["speedup"].to_list()
    assert all(type(row.pairs) is int for row in rows)
    assert {row.family for row in summary_rows(frame, ALL)} == {ALL}


@pytest.mark.skipif(older("pandas", (3, 0)), reason="pandas 2 reads the last digits otherwise")
def test_rows_read_from_summary_csv_equal_the_rows_of_the_frame(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    frame.to_csv(tmp_path / "summary.csv", index=False)
    assert summary_rows(pd.read_csv(tmp_path / "summary.csv"), None) == summary_rows(frame, None)


def test_unknown_values_are_none_in_every_kind_of_column(frame: pd.DataFrame) -> None:
    for column in frame.columns.drop(["decoder", "family"]):
        frame[column] = pd.Series([None] * len(frame), dtype=frame[column].dtype)
    for row in summary_rows(frame, None):
        assert row == SummaryRow(decoder=row.decoder, family=row.family)


def test_a_column_that_an_older_version_did_not_write_is_unknown(frame: pd.DataFrame) -> None:
    (row, *_) = summary_rows(frame.drop(columns=["guarantee", "pairs"]), ALL)
    assert (row.guarantee, row.pairs, row.value("pairs")) == (None, None, None)


def test_a_column_that_this_version_does_not_know_is_passed_over(frame: pd.DataFrame) -> None:
    assert summary_rows(frame.assign(weather="rain"), ALL) == summary_rows(frame, ALL)


@pytest.mark.parametrize("file", REFERENCES, ids=lambda file: file.parent.name)
def test_stored_summaries_are_read(file: Path) -> None:
    baseline = summary_rows(pd.read_csv(file), ALL)[0]
    assert (baseline.decoder, baseline.speedup, baseline.tokens_per_call) == ("ar", 1.0, 1.0)
