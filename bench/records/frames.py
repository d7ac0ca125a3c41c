"""Frames and records of a run as bytes of CSV and Parquet; the same data give the same bytes."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.records.record import SampleRecord, StepColumns, fields_of

_GROUP = 1024
"""Records in a group of rows."""
_REAL_STEPS = ("overlap", "alpha", "ended_s")
_NESTED_STEPS = ("source", "rejected", "decided")
_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "Kind": pa.string()}


def csv_bytes(frame: pd.DataFrame, float_format: str | None = "%.6g") -> bytes:
    """Return a CSV of six significant digits, of all with None; unknown is empty."""
    return frame.to_csv(index=False, float_format=float_format, lineterminator="\n").encode()


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """Return a Parquet file."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def write_samples(file: IO[bytes], records: Sequence[SampleRecord]) -> None:
    """Write the table; the same records give the same bytes."""
    scores = list(dict.fromkeys(name for record in records for name in record.scores or ()))
    schema = _schema(scores)
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, max(len(records), 1), _GROUP):
            rows = [_row(record) for record in records[start : start + _GROUP]]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _schema(scores: Sequence[str]) -> Any:
    """Every column with its type: a group in which all is unknown has the same."""
    columns = []
    for field in dataclasses.fields(SampleRecord):
        if field.name == "tokens":
            columns.append((field.name, pa.list_(pa.int64())))
        elif field.name == "drafters":
            columns.append((field.name, pa.list_(pa.string())))
        elif field.name not in ("steps", "scores"):
            columns.append((field.name, _TYPES[str(field.type).removesuffix(" | None")]))
    for field in dataclasses.fields(StepColumns):
        kind = pa.float64() if field.name in _REAL_STEPS else pa.int64()
        nested = pa.list_(kind) if field.name in _NESTED_STEPS else kind
        columns.append((f"steps_{field.name}", pa.list_(nested)))
    return pa.schema([*columns, *((f"score_{name}", pa.float64()) for name in scores)])


def _row(record: SampleRecord) -> dict[str, Any]:
    row = fields_of(record)
    steps, scores = row.pop("steps"), row.pop("scores")
    row |= {f"steps_{name}": value for name, value in (fields_of(steps) if steps else {}).items()}
    return row | {f"score_{name}": value for name, value in (scores or {}).items()}
