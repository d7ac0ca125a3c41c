"""Define the allowed ranges of settings as types, e.g. one type for every seed or temperature.

Values outside a range would fail late (a column of 64-bit integers, a timer) or never end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import date, datetime
from math import inf
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from bench.errors import UsageError
from decoders.core.types import MAX_TEMPERATURE, MIN_TEMPERATURE

MAX_COUNT = 1_000_000_000
"""Limit of counts."""
_NAME = re.compile(r"[A-Za-z0-9._+@-]+")
_FINITE = Field(allow_inf_nan=False)
MAX_NAME = 100
"""Limit of characters of a run's name: the folder's name is longer, and file systems allow 255."""
_ALLOWED = {
    "greater_than_equal": "it must be {ge:,} or more",
    "greater_than": "it must be above {gt:,}",
    "less_than_equal": "it must be {le:,} or less",
    "finite_number": "it must be a finite number",
    "literal_error": "it must be {expected}",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "it must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "it must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "it must be true or false"),
    "string_type": "it must be text",
    "dict_type": "it must be a table",
}


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty; give a value, or leave it out")
    return text


def _warm(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"{temperature:g} is neither 0 (greedy) nor {MIN_TEMPERATURE:g} or above")
    return temperature


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ValueError(f"{text!r:.60} is no date such as 2026-03-01") from error


def _cores(threads: int) -> int:
    if threads > (cores := os.cpu_count() or 1):
        raise ValueError(f"{threads} is more than the {cores} cores of this machine")
    return threads


def _file_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.60} may hold only letters, digits and . _ + @ -")
    if len(name) > MAX_NAME:
        raise ValueError(f"it has {len(name)} characters; at most {MAX_NAME} are allowed")
    return name


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"{text[:40]!r} is no time with its zone, e.g. 2026-01-31T12:00:00+00:00")
    return text


Text = Annotated[str, AfterValidator(_not_empty)]
RunName = Annotated[str, AfterValidator(_not_empty), AfterValidator(_file_name)]
Day = Annotated[str, AfterValidator(_day)]
"""A date as in ISO 8601."""
Seed = Annotated[int, Field(ge=0, le=10**18)]
"""Repeat r uses seed + r, which a record stores in 64 bits."""
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Repeats = Annotated[int, Field(ge=1, le=10_000)]
"""The plan has a block for every repeat of every prompt."""
BatchSize = Annotated[int, Field(ge=1, le=65_536)]
MaxNewTokens = Annotated[int, Field(ge=1, le=1_000_000)]
Threads = Annotated[int, Field(ge=1), AfterValidator(_cores)]
Temperature = Annotated[float, _FINITE, Field(ge=0, le=MAX_TEMPERATURE), AfterValidator(_warm)]
TopP = Annotated[float, _FINITE, Field(gt=0, le=1)]
Seconds = Annotated[float, _FINITE, Field(gt=0, le=10_000_000)]
Minutes = Annotated[float, _FINITE, Field(ge=0, le=1_000_000)]
Margin = Annotated[float, _FINITE, Field(gt=0, le=1)]
"""Relative difference to detect: 0.03 is 3 %."""
Num = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""Number or index, e.g. in a record."""
Byte = Annotated[int, Field(ge=0, le=255)]
TokenId = Annotated[int, Field(ge=0, le=2**53)]
BlockNumber = Annotated[int, Field(ge=-1, le=MAX_COUNT)]
"""Number of a timing block; -1 in the quality pass."""
RecordSeed = Annotated[int, Field(ge=0, le=2 * 10**18)]
Bytes = Annotated[int, Field(ge=0, le=10**18)]
Time = Annotated[float, _FINITE, Field(ge=0, le=10_000_000)]
"""Measured seconds."""
Real = Annotated[float, _FINITE, Field(ge=-1e15, le=1e15)]
"""Any other measured number."""
RealOrInt = Annotated[int, Field(ge=-(10**15), le=10**15)] | Real
Gap = Annotated[int, Field(ge=-(10**15), le=10**15)] | Annotated[float, Field(ge=-1e15, le=inf)]
"""Distance between two logits, infinite if a token is barred."""
Rate = Annotated[float, _FINITE, Field(ge=0, le=1e21)]
"""Bytes or operations per second, or another reading that is not negative."""
Share = Annotated[float, _FINITE, Field(ge=0, le=1)]
Moment = Annotated[str, AfterValidator(_moment)]
"""Date and time in ISO format, with its zone."""
NumDraws = Annotated[int, Field(ge=1, le=10_000_000)]


def format_error(error: ValidationError, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Format the first error as one line: the key, the allowed values, the actual value.

    `names` maps keys to the user's names for them, if they differ.
    """
    first = error.errors()[0]
    key, *inside = map(str, first["loc"] or ("",))
    path = ".".join([names.get(key, key), *inside])
    value = "" if first["type"] == "value_error" else f" (got {first['input']!r:.60})"
    return f"{path}: {allowed(first)}{value}" if path else f"{allowed(first)}{value}"


def allowed(error: ErrorDetails) -> str:
    """Describe the allowed values in the words of `_ALLOWED`, or else of the validator."""
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] in _ALLOWED:
        bounds = {k: int(v) if v == int(v) else v for k, v in context.items() if k != "expected"}
        return _ALLOWED[error["type"]].format(**(context | bounds))
    return error["msg"][:1].lower() + error["msg"][1:]


def check(value: object, kind: Any, name: str) -> None:
    """Raise `UsageError` unless a value from outside the configuration is of type `kind`."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise UsageError(f"{name}: {format_error(error)}") from error
