"""Reads the value that a figure's source names, in a table or a record.

* The file is in ``results/reference``, else relative to the repository's root. A pattern with
  ``*`` names several files, whose values are summed.
* A table (.csv) needs filters that leave one row (``family=all`` by default), and a column or the
  ratio of two, ``A/B``. ``over FILTERS`` divides by the value in another row;
  ``short-of FILTERS`` subtracts that ratio from 1. In ``tables/by_prompt.csv``, speed-ups are
  paired by prompt, over another decoder, with the interval of the report.
* A record (.json, .jsonl) needs the keys of a value: ``perplexity.ratio``. In a .jsonl file, the
  last line with the value counts.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.stats.intervals import geometric_mean
from docs.generate.places import ROOT

_REFERENCE = "results/reference/"
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
        if kept == other or relation != "over":
            raise ValueError(f"{path.name}: name another decoder of the pairs, over decoder=NAME")
        return _paired(path, kept, other)
    if not relation:
        return _value(path, kept, column)
    ratio = _value(path, kept, column).value / _value(path, other, column).value
    return Interval(ratio if relation == "over" else 1 - ratio)


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
    over, _, under = column.partition("/")
    value = _number(row, over) / (_number(row, under) if under else 1)
    low, high = (row.get(f"{column}_{end}") for end in ("low", "high"))
    return Interval(value, float(low) if low else None, float(high) if high else None)


@cache
def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _number(row: Mapping[str, str], column: str) -> float:
    if not row.get(column):
        raise ValueError(f"{column} is no number of the row {dict(row)}")
    return float(row[column])


def _paired(path: Path, kept: Mapping[str, str], other: Mapping[str, str]) -> Interval:
    """Return the speed-up of one decoder over another, as the report computes it."""
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
    text = path.read_text(encoding="utf-8")
    for record in reversed(text.splitlines() if path.suffix == ".jsonl" else [text]):
        found: Any = json.loads(record)
        for key in place.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            return float(found)
    raise ValueError(f"{path.relative_to(ROOT)} has no {place}")


def num_weights(path: Path) -> int:
    """Return the number of weights of a file, from its header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name[0] != "_")
