"""Reads the value that a figure's source names, in a table or a record.

* The file is in ``results/reference``, else relative to the repository's root. A pattern with
  ``*`` names several files, whose values are summed.
* A table (.csv) needs filters that leave one row (``family=all`` by default), and a column or
  arithmetic on columns without spaces. ``over FILTERS`` divides by the value in another row;
  ``short-of FILTERS`` subtracts that ratio from 1. In ``tables/by_prompt.csv``, speed-ups are
  paired by prompt, over `ar` or another decoder, with the interval of the report.
* A record (.json, .jsonl, .toml) needs the path of a value: ``measured.accuracy.0``, or with
  ``/`` if a key contains a dot. In a .jsonl file, the last line with the value counts. Weights
  (.safetensors) have only ``parameters``.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import operator
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.stats.intervals import geometric_mean
from docs.generate.places import ROOT

_REFERENCE = "results/reference/"
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_RELATIONS = ("over", "short-of")
_BESIDE = "ar_time_per_token_s"
"""A column that only tables by prompt have: `ar`'s time, next to the decoder's."""


@dataclass(frozen=True)
class Interval:
    """A value and, if its source has one, its 95 % interval."""

    value: float
    low: float | None = None
    high: float | None = None


def resolve(words: list[str]) -> Interval:
    """Return the value of a source.

    Raises:
        ValueError: the source names no file, no row, several rows, or no value.
    """
    name, *rest = words
    paths = paths_of(name)
    if name.endswith(".csv"):
        return _of_table(paths[0], rest)
    if len(rest) != 1:
        raise ValueError(f"{name}: name one place of a value, not {rest}")
    return Interval(sum(_of_record(path, rest[0]) for path in paths))


def paths_of(name: str) -> list[Path]:
    """Return the files of a name: in ``results/reference``, else relative to the root.

    Raises:
        ValueError: no file has this name.
    """
    for folder in (_REFERENCE, ""):
        if found := sorted(ROOT.glob(f"{folder}{name}")):
            return found
    raise ValueError(f"{name} is neither in {_REFERENCE} nor in the repository")


def _of_table(path: Path, words: list[str]) -> Interval:
    relation = next((word for word in words if word in _RELATIONS), "")
    first, second = words, list[str]()
    if relation:
        place = words.index(relation)
        first, second = words[:place], words[place + 1 :]
    column = first[-1]
    kept, other = _filters(first[:-1]), _filters(first[:-1]) | _filters(second)
    if _BESIDE in _table(path)[0]:
        said = _paired(path, kept, other)
    elif relation:
        said = Interval(_value(path, kept, column).value / _value(path, other, column).value)
    else:
        said = _value(path, kept, column)
    if relation != "short-of":
        return said
    low = 1 - said.high if said.high is not None else None
    return Interval(1 - said.value, low, 1 - said.low if said.low is not None else None)


def _filters(words: list[str]) -> dict[str, str]:
    if loose := [word for word in words if "=" not in word]:
        raise ValueError(f"filters are COLUMN=VALUE, not {loose}")
    return dict(word.split("=", 1) for word in words)


def _value(path: Path, filters: Mapping[str, str], column: str) -> Interval:
    table = _table(path)
    if "family" in table[0] and "family" not in filters:
        filters = {**filters, "family": "all"}
    if unknown := set(filters) - set(table[0]):
        raise ValueError(f"{path.relative_to(ROOT)} has no column {sorted(unknown)}")
    rows = [row for row in table if all(row[key] == value for key, value in filters.items())]
    if len(rows) != 1:
        raise ValueError(f"{path.relative_to(ROOT)} has {len(rows)} rows of {dict(filters)}, not 1")
    (row,) = rows
    value = _computed(ast.parse(column, mode="eval").body, row)
    stem = column.removesuffix("_speedup") if column == "aa_speedup" else column
    low, high = (row.get(f"{stem}_{end}") for end in ("low", "high"))
    return Interval(value, float(low) if low else None, float(high) if high else None)


@cache
def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _computed(node: ast.expr, row: Mapping[str, str]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) if row.get(name):
            return float(row[name])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_computed(left, row), _computed(right, row))
    raise ValueError(f"{ast.unparse(node)} is no number of the row {dict(row)}")


def _paired(path: Path, kept: Mapping[str, str], other: Mapping[str, str]) -> Interval:
    """Return the speed-up of one decoder over another, as the report computes it."""
    if kept == other:
        other = {"decoder": "ar"}
    mine, theirs = (dict(_times(path, each["decoder"])) for each in (kept, other))
    shared = [prompt for prompt in mine if prompt in theirs]
    logs = [math.log(theirs[prompt][0] / mine[prompt][0]) for prompt in shared]
    clusters = [mine[prompt][1] for prompt in shared]
    found = geometric_mean(logs, clusters)
    if found.value is None:
        raise ValueError(f"{path.relative_to(ROOT)}: no prompt of both {kept} and {other}")
    return Interval(found.value, found.low, found.high)


def _times(path: Path, decoder: str) -> Iterator[tuple[str, tuple[float, str]]]:
    """Yield a decoder's seconds per token and conversation, by prompt."""
    column = _BESIDE if decoder == "ar" else "time_per_token_s"
    for row in _table(path):
        if decoder in ("ar", row["decoder"]):
            yield row["prompt"], (float(row[column]), row["conversation"])


def _of_record(path: Path, place: str) -> float:
    if path.suffix == ".safetensors" and place == "parameters":
        return float(num_weights(path))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        read = [tomllib.loads(text)]
    elif path.suffix == ".jsonl":
        read = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        read = [json.loads(text)]
    for record in reversed(read):
        found: Any = record
        for key in place.split("/" if "/" in place else "."):
            inside = isinstance(found, dict) and key in found
            found = found[key] if inside else found[int(key)] if isinstance(found, list) else None
        if found is not None:
            return float(found)
    raise ValueError(f"{path.relative_to(ROOT)} has no {place}")


def num_weights(path: Path) -> int:
    """Return the number of weights of a file, from its header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name[0] != "_")
