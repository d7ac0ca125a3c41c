"""samples.parquet in groups of rows: every record as it is, and columns of one type throughout."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from bench.records import frames
from bench.records.record import SampleRecord, StepColumns, fields_of
from tests.bench.stats.test_workers import record


def written(records: Sequence[SampleRecord]) -> bytes:
    file = io.BytesIO()
    frames.write_samples(file, records)
    return file.getvalue()


def test_groups_hold_all_records_and_unknown_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_GROUP", 4)
    plain: Any = [record("w0", "ar", block, block, 1.5) for block in range(9)]
    scored = replace(plain[0], kind="quality", scores={"f1": 0.5}, total_s=None)
    failed = replace(plain[1], tokens=None, steps=None, error="no", total_s=None)
    records = [failed] * 4 + plain + [scored]
    data = written(records)
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.num_row_groups == 4
    assert data == written(records)
    frame = pd.read_parquet(io.BytesIO(data))
    assert len(frame) == len(records)
    for row, wanted in zip(frame.to_dict("records"), records, strict=True):
        for field in fields(SampleRecord):
            value = getattr(wanted, field.name)
            if field.name in ("tokens", "drafters"):
                assert (value is None) == (row[field.name] is None)
                assert value is None or tuple(row[field.name]) == value
            elif field.name not in ("steps", "scores"):
                assert pd.isna(row[field.name]) if value is None else row[field.name] == value
        for name, column in (fields_of(wanted.steps) if wanted.steps else {}).items():
            assert tuple(row[f"steps_{name}"]) == column
    assert frame["score_f1"].tolist()[-1] == 0.5
    assert frame["score_f1"].isna().sum() == len(records) - 1


def test_no_records_are_a_table_with_all_columns() -> None:
    frame = pd.read_parquet(io.BytesIO(written([])))
    assert frame.empty
    assert {"decoder", "tokens", "steps_emitted", "worker"} <= set(frame)
    assert all(f"steps_{field.name}" in frame for field in fields(StepColumns))
