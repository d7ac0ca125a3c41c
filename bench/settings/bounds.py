"""What may be given: ranges of numbers and texts, whether typed, read from a file or passed in.

Each is a type of its own, so that every setting that is a seed or a temperature has the same range.
What lies beyond them would fail late (a column of 64-bit integers, a timer), or never end.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from bench.errors import BenchError, Exit
from decoders.core.types import MAX_TEMPERATURE, MIN_TEMPERATURE

MOST = 1_000_000_000
"""No count is larger."""
PLACEMENTS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Maps of layers to devices that accelerate makes itself."""


def _given(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty; give a value, or leave it out")
    return text


def _warm(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"{temperature:g} is neither 0 (greedy) nor {MIN_TEMPERATURE:g} or above")
    return temperature


def _cores(threads: int) -> int:
    if threads > (cores := os.cpu_count() or 1):
        raise ValueError(f"{threads} is more than the {cores} cores of this machine")
    return threads


def _placement(given: str) -> str:
    if given not in PLACEMENTS and not given.endswith(".json"):
        raise ValueError(
            f"{given!r} is none of {', '.join(PLACEMENTS)}, nor a .json file of places"
        )
    return given


Text = Annotated[str, AfterValidator(_given)]
Seed = Annotated[int, Field(ge=0, le=10**18)]
"""Repeat r takes seed + r, and a record holds it in 64 bits."""
Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrNone = Annotated[int, Field(ge=0, le=MOST)]
Repeats = Annotated[int, Field(ge=1, le=10_000)]
"""Every repeat of every prompt is a block of the plan."""
BatchSize = Annotated[int, Field(ge=1, le=65_536)]
MaxNewTokens = Annotated[int, Field(ge=1, le=1_000_000)]
Threads = Annotated[int, Field(ge=1), AfterValidator(_cores)]
DeviceMap = Annotated[str, AfterValidator(_given), AfterValidator(_placement)]
Shards = Annotated[int, Field(ge=1, le=1024)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE), AfterValidator(_warm)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=10_000_000)]
Margin = Annotated[float, Field(gt=0, le=1)]
"""A relative difference that is looked for: 0.03 is 3 %."""
NumDraws = Annotated[int, Field(ge=1, le=10_000_000)]


def told(error: ValidationError) -> str:
    """The first error in one line: where, what is allowed, what was got."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    said = first["msg"].removeprefix("Value error, ")
    said = said[:1].lower() + said[1:]
    got = "" if first["type"] == "value_error" else f" (got {first['input']!r:.60})"
    return f"{place}: {said}{got}" if place else f"{said}{got}"


def check(value: object, kind: Any, name: str) -> None:
    """`BenchError` (exit 2) unless a value that no configuration holds is of its `kind`."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise BenchError(f"{name}: {told(error)}", Exit.USAGE) from error
