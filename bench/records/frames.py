"""Write frames and records as CSV and Parquet, with the same bytes for the same data.

``samples.parquet`` can replace ``samples.jsonl`` in a stored run: it holds one row per effective
record, and the events in its metadata. The times of steps are there as ``steps_lasted_us``: whole
microseconds since the end of the step before; ``steps_ended_s`` of older files is read as well.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import json
import re
import typing
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.errors import InvalidRunError
from bench.records.record import Kind, SampleRecord, StepColumns, field_values

_GROUP = 1024
"""Records per Parquet row group."""
_EVENTS = b"events"
"""Metadata key of the events."""
_DURATIONS = ("ended_s", "lasted_us")
"""A column of steps, and its form in the table: integers take a quarter of the bytes."""
_FORMULA = ("=", "+", "-", "@", "\t", "\n", *"\uff1d\uff0b\uff0d\uff20")
"""First characters of cells that spreadsheets evaluate as formulas, also in full width."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float64(), Kind: pa.string()}
_TYPES: Mapping[Any, Any] = _SCALARS | {
    tuple[str, ...]: pa.list_(pa.string()),
    tuple[int, ...]: pa.list_(pa.int64()),
    tuple[float, ...]: pa.list_(pa.float64()),
    tuple[tuple[int, ...], ...]: pa.list_(pa.list_(pa.int64())),
}
"""Types of columns by the types of fields."""


def csv_bytes(frame: pd.DataFrame, float_format: str | None = "%.6g") -> bytes:
    """Return CSV with six significant digits, or all (None). Unknown values are empty.

    Text that a spreadsheet would take for a formula gets a `'` in front. Lines end with a newline
    alone. Numbers stay as they are.
    """
    safe = frame.rename(columns=_no_formula)
    for place, kind in enumerate(safe.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            safe.isetitem(place, [_no_formula(cell) for cell in safe.iloc[:, place]])
    return safe.to_csv(index=False, float_format=float_format, lineterminator="\n").encode()


def _no_formula(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r\n", "\n").replace("\r", "\n")  # the writer does not quote these
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """Return the frame as a Parquet file."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def write_samples(
    file: IO[bytes],
    records: Sequence[SampleRecord],
    events: Sequence[Mapping[str, Any]] = (),
    *,
    small: bool = False,
) -> None:
    """Write samples.parquet, with the same bytes for the same records and events.

    Args:
        file: an open file to write to.
        records: one row each.
        events: lines of samples.jsonl that are not records.
        small: spend time and memory on a smaller file.
    """
    scores = list(dict.fromkeys(name for record in records for name in record.scores or ()))
    schema = _schema(scores)
    names = [field.name for field in schema if field.type == pa.string()]  # few distinct values
    kinds = {field.name: str(field.type) for field in schema if "string" not in str(field.type)}
    numbers = [name + kind.count("list<") * ".list.element" for name, kind in kinds.items()]
    size, level = (4 * _GROUP, 19) if small else (_GROUP, 9)
    how: Any = {"compression": "zstd", "compression_level": level, "write_page_checksum": True}
    how |= {"use_dictionary": names, "write_statistics": False, "store_schema": False}
    how["use_byte_stream_split"] = numbers
    with pq.ParquetWriter(file, schema, **how) as writer:
        packed = zlib.compress(json.dumps(events).encode())  # zlib adds a checksum
        writer.add_key_value_metadata({_EVENTS: base64.b85encode(packed)})
        for start in range(0, len(records), size):
            rows = [_row(record) for record in records[start : start + size]]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events and records of a table in the format of samples.jsonl.

    Raises:
        InvalidRunError: the file is damaged or not such a table.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if packed := (file.metadata.metadata or {}).get(_EVENTS):
                yield from json.loads(zlib.decompress(base64.b85decode(packed)))
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group).to_pylist()
                if len(rows) != file.metadata.row_group(group).num_rows:
                    raise ValueError(f"rows of group {group} are missing")
                yield from map(_line, rows)
    except (pa.ArrowException, OSError, TypeError, ValueError, zlib.error) as error:
        raise InvalidRunError(f"{path} is damaged: {error}; put back the file as stored") from error


def num_samples(path: Path) -> int:
    """Return the number of records in a table, or 0 if it is unreadable."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):
        return 0


def _schema(scores: Sequence[str]) -> Any:
    """Return every column with its type, also for row groups with only unknown values."""
    kinds, of_steps = map(typing.get_type_hints, (SampleRecord, StepColumns))
    names = [each.name for each in dataclasses.fields(SampleRecord)]
    columns = [(name, _type(kinds[name])) for name in names if name not in ("steps", "scores")]
    for field in dataclasses.fields(StepColumns):
        name = field.name.replace(*_DURATIONS)
        kind = of_steps[name] if name in of_steps else tuple[int, ...]
        columns.append((f"steps_{name}", _type(kind)))
    return pa.schema([*columns, *((f"score_{name}", pa.float64()) for name in scores)])


def _type(kind: Any) -> Any:
    """Return the type of a field's column, without None."""
    return next(_TYPES[each] for each in (kind, *typing.get_args(kind)) if each in _TYPES)


def _row(record: SampleRecord) -> dict[str, Any]:
    row = field_values(record)
    steps, scores = row.pop("steps"), row.pop("scores")
    columns = field_values(steps) if steps else {}
    if (ends_s := columns.pop(_DURATIONS[0], None)) is not None:
        ends_us = [0, *(round(end_s * 1e6) for end_s in ends_s)]
        columns[_DURATIONS[1]] = [end - start for start, end in itertools.pairwise(ends_us)]
    row |= {f"steps_{name}": column for name, column in columns.items()}
    return row | {f"score_{name}": value for name, value in (scores or {}).items()}


def _line(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record in the format of samples.jsonl: the inverse of `_row`."""
    nested: dict[str, dict[str, Any]] = {"steps_": {}, "score_": {}}
    for prefix, values in nested.items():
        for name in [name for name in row if name.startswith(prefix)]:
            if (value := row.pop(name)) is not None:
                values[name.removeprefix(prefix)] = value
    if (durations_us := nested["steps_"].pop(_DURATIONS[1], None)) is not None:
        ends_us = itertools.accumulate(durations_us)
        nested["steps_"][_DURATIONS[0]] = [end_us / 1e6 for end_us in ends_us]
    return row | {"steps": nested["steps_"] or None, "scores": nested["score_"] or None}
