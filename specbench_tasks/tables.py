"""Read the rows of a file: JSONL, a JSON list, CSV, TSV or Parquet.

CSV and TSV are recognised by extension, all other kinds by content. Every row keeps its
number for errors. Cells of CSV and TSV stay text (007 does not become 7, and the answer NA is not
lost); only JSON lists are parsed. `pyarrow` is imported only for Parquet.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Row = Mapping[str, Any]
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".jsonl", ".json", *_SEPARATORS, ".parquet")
"""Extensions that identify a path before its file is opened."""
_KINDS = "JSONL, a JSON list, CSV (.csv), TSV (.tsv) or Parquet"


class NumberedRows(NamedTuple):
    """Hold numbered rows. Errors begin with `where` and a number, as in ``"x.csv, line 3"``."""

    where: str
    rows: Sequence[tuple[int, Row]]


def exists(path: Path) -> bool:
    """Return whether a path exists, or False for text that is too long for a path."""
    try:
        return path.exists()
    except OSError:
        return False


def short(value: object) -> str:
    """Return a value for an error, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def read_table(path: Path) -> NumberedRows:
    """Read the rows of a file of any of the kinds above, skipping blank lines.

    Raises:
        ValueError: no such file (a folder and a pipe are none), another kind of file, a row that
            cannot be read or is not an object, invalid text, or no rows.
    """
    try:
        if not path.is_file():
            raise ValueError(f"no file {path}; give the path of an existing file ({_KINDS})")
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if data.startswith(b"PAR1") or path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        try:
            rows = parquet.ParquetFile(path).read()
            rows.validate(full=True)
            table = NumberedRows(f"{path}, row", list(enumerate(rows.to_pylist())))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{path} is not Parquet: {' '.join(str(error).split())}") from error
    else:
        table = _text_table(path, data)
    if not table.rows:
        raise ValueError(f"{path} holds no rows")
    return table


def _text_table(path: Path, data: bytes) -> NumberedRows:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at {error.start})") from error
    if path.suffix in _SEPARATORS:
        return NumberedRows(f"{path}, line", list(_cells(path, text, _SEPARATORS[path.suffix])))
    start = text.lstrip()[:1]
    if start not in ("[", "{", "") and path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is none of {_KINDS}")
    where, rows = f"{path}, line", list[tuple[int, Any]]()
    if start == "[":
        where = f"{path}, item"
        try:
            rows += enumerate(json.loads(text), start=1)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} begins like a JSON list but is not one: {error}") from error
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                if line.strip():
                    rows.append((number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    for number, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{where} {number} is a {type(row).__name__}, not an object")
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise ValueError(
                f"{where} {number} holds half a character (the lone surrogate {half}), which no "
                "model can be given; write the whole character, or leave it out"
            ) from error
    return NumberedRows(where, rows)


def _cells(path: Path, text: str, separator: str) -> Iterator[tuple[int, Row]]:
    """Yield rows with the number of their first line. The first row names the columns."""
    csv.field_size_limit(sys.maxsize)  # a passage to be summarised may be longer than 128 KiB
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    header: list[str] = []
    start = 1
    try:
        for cells in lines:
            if not header and len(set(cells)) < len(cells):
                raise ValueError(f"two columns have one name, in {', '.join(cells)}")
            if header and cells:
                if len(cells) != len(header):
                    raise ValueError(f"{len(cells)} cells for {len(header)} columns; quote commas")
                yield start, dict(zip(header, map(_unpacked, cells), strict=True))
            header = header or cells
            start = lines.line_num + 1
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {start}: {error}") from error


def _unpacked(cell: str) -> Any:
    """Return a cell, parsed if it is a JSON list of texts, lists or objects."""
    if not cell.startswith("["):
        return cell
    try:
        items = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    return items if all(isinstance(item, str | list | dict) for item in items) else cell
