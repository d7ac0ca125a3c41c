"""Rows of a summary: typed, and unknown is None whatever file or frame they are read from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from bench.records.run_folder import load_run
from bench.stats.summary import ALL, summarise
from bench.stats.summary_row import SummaryRow, rows_of

ROOT = Path(__file__).parents[3]
REFERENCES = sorted((ROOT / "results" / "reference").glob("*/summary.csv"))


@pytest.fixture
def frame(synthetic_run: Callable[..., Path]) -> pd.DataFrame:
    run = load_run(synthetic_run())
    return summarise(run.records, run.plan)


def test_rows_hold_what_the_frame_holds(frame: pd.DataFrame) -> None:
    rows = rows_of(frame, None)
    assert [(row.decoder, row.family) for row in rows] == list(
        zip(frame["decoder"], frame["family"], strict=True)
    )
    assert [row.speedup for row in rows] == frame["speedup"].to_list()
    assert all(type(row.pairs) is int for row in rows)
    assert {row.family for row in rows_of(frame, ALL)} == {ALL}


def test_rows_are_the_same_from_the_file_that_readers_get(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    frame.to_csv(tmp_path / "summary.csv", index=False)
    assert rows_of(pd.read_csv(tmp_path / "summary.csv"), None) == rows_of(frame, None)


def test_what_is_unknown_is_none_in_every_kind_of_column(frame: pd.DataFrame) -> None:
    for column in frame.columns.drop(["decoder", "family"]):
        frame[column] = pd.Series([None] * len(frame), dtype=frame[column].dtype)
    for row in rows_of(frame, None):
        assert row == SummaryRow(decoder=row.decoder, family=row.family)


def test_a_column_that_an_older_version_did_not_write_is_unknown(frame: pd.DataFrame) -> None:
    (row, *_) = rows_of(frame.drop(columns=["guarantee", "pairs"]), ALL)
    assert (row.guarantee, row.pairs, row.value("pairs")) == (None, None, None)


def test_a_column_that_this_version_does_not_know_is_passed_over(frame: pd.DataFrame) -> None:
    assert rows_of(frame.assign(weather="rain"), ALL) == rows_of(frame, ALL)


@pytest.mark.parametrize("file", REFERENCES, ids=lambda file: file.parent.name)
def test_stored_summaries_are_read(file: Path) -> None:
    baseline = rows_of(pd.read_csv(file), ALL)[0]
    assert (baseline.decoder, baseline.speedup, baseline.tokens_per_call) == ("ar", 1.0, 1.0)
