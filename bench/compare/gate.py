"""Define the rules that decide on regressions: a `Gate`, from its defaults or a TOML file.

Hard gates give machine-independent measures (counters, exactness, quality) a tolerance. The soft
gate gives time a margin, judged by its confidence interval. A file lists only changed values::

    [hard]
    rows = 0.05            # tolerance of one measure; inf switches it off
    [time]
    margin = 0.02
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from bench.errors import UsageError, did_you_mean
from bench.settings.bounds import Margin, format_error
from bench.settings.config import read_toml
from bench.stats.metric import Metric
from bench.stats.metrics import METRICS

FAULTS = ("wrong_answers", "errors")
"""Measures whose changes rounding never explains, on any machine."""

_Tolerance = Annotated[float, Field(ge=0)]
KEY_FIGURE = "tokens_per_step"
"""The measure that is always shown with both its values."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


GATED: dict[str, Metric] = {
    each.gate.name or name: each for name, each in METRICS.items() if each.gate is not None
}
"""Metrics of a run that the gate judges, by their keys in a gate file."""
HARD: dict[str, tuple[Literal["more", "less", "same"], bool]] = {
    "calls": ("less", True),
    "rows": ("less", True),
    "draft_calls": ("less", True),
    "emitted": ("same", True),
    "accepted": ("more", True),
    "identical_to_ar": ("more", False),
    "wrong_answers": ("less", False),
    "changed_answers": ("less", False),
    "quality": ("more", False),
    "errors": ("less", False),
    **{name: (m.gate.better, True) for name, m in GATED.items() if m.gate is not None},
}
"""For every hard measure: the better direction, and True if its change is relative to the base."""
_DEFAULTS = {name: each.gate.tolerance for name, each in GATED.items() if each.gate is not None}
_FIELDS: dict[str, Any] = {name: (_Tolerance | None, _DEFAULTS.get(name)) for name in HARD}
_Tolerances: Any = create_model("_Tolerances", __base__=_Table, **_FIELDS)


class Hard(_Tolerances):  # type: ignore[misc]
    """Tolerances of the measures in `HARD`: relative for counters, absolute for shares.

    `tolerance` applies to float32 runs of one machine and to `FAULTS`. `tolerance_elsewhere`
    applies where rounding may differ (another machine, half precision), so that two nearly tied
    tokens may swap. A measure's own tolerance overrides both. `KEY_FIGURE` is only shown unless it
    gets a tolerance, because `calls` already judges its parts.
    """

    tolerance: _Tolerance = 0.0
    tolerance_elsewhere: _Tolerance = 0.005

    def of(self, measure: str, *, exact: bool, step: float = 0.0) -> float:
        """Return a measure's tolerance, with other rounding at least one answer's `step`."""
        override: float | None = getattr(self, measure)
        if override is not None:
            return override
        if exact or measure in FAULTS:
            return self.tolerance
        return max(self.tolerance_elsewhere, step)


class Time(_Table):
    """The margin by which head's time per token may exceed base's: 0.03 is 3 % slower.

    `margin` applies to interleaved runs (`bench ab`), `margin_apart` to separate runs, because the
    machine may have changed between them. If `fail` is False, a slow-down fails nothing.
    """

    margin: Margin = 0.03
    margin_apart: Margin = 0.20
    fail: bool = True


class Gate(_Table):
    """Hold all rules of a comparison. With `strict`, an inconclusive cell fails (exit code 4)."""

    hard: Hard = Hard()
    time: Time = Time()
    strict: bool = False


TABLES: dict[str, type[BaseModel]] = {"hard": Hard, "time": Time}
"""Types of the tables of a gate file, by name."""


def load_gate(file: Path | None, strict: bool = False) -> Gate:
    """Load a gate from a file, or return the built-in one (exit 2 for an invalid file)."""
    values = {} if file is None else read_toml(file)
    try:
        return Gate(**(values | {"strict": True} if strict else values))
    except ValidationError as error:
        first, message = error.errors()[0], format_error(error)
        if first["type"] == "extra_forbidden":
            *table, key = map(str, first["loc"])
            allowed = TABLES[table[0]].model_fields if table else Gate.model_fields
            message = f"{'.'.join((*table, key))}: unknown key; {did_you_mean(key, allowed)}"
        raise UsageError(f"{file}: {message}") from error
