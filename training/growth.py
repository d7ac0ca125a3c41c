"""The growth of proposals with training: a line over the logarithm of tokens or slots seen.

Between a few hundred thousand and some million slots, the leading proposals that stand grow nearly
linearly in the logarithm of the slots seen. The fit says what ten times more would give if that
went on; its interval holds the next evaluation with 95 %, and says nothing of the growth's end.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import linregress, t

_MIN_POINTS = 4  # two for the line, and some to tell how far they lie from it
_KINDS = {"greedy_leading_16": "greedy", "leading_16": "sampled", "drafts_that_stand": "greedy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Leading proposals that stand (`values`) by tokens or slots trained on (`seen`), and a line.

    Attributes:
        slope: what ten times more gives; `slope_error` its standard error.
        offset: of the line at one token seen.
        spread: standard deviation of the evaluations about the line.
    """

    name: str
    kind: str
    seen: tuple[float, ...]
    values: tuple[float, ...]
    slope: float
    slope_error: float
    offset: float
    spread: float

    def at(self, seen: float) -> tuple[float, float, float]:
        """Return the line at `seen`, and the 95 % interval of an evaluation there."""
        logs = np.log10(self.seen)
        away = (math.log10(seen) - logs.mean()) ** 2 / ((logs - logs.mean()) ** 2).sum()
        num = len(logs)
        margin = float(t.ppf(0.975, num - 2)) * self.spread * math.sqrt(1 + 1 / num + away)
        value = self.offset + self.slope * math.log10(seen)
        return value, value - margin, value + margin


def read_evaluations(log: Path, key: str) -> list[dict[str, Any]]:
    """Return a log's records that have `key`; a resumed run's replace those they repeat."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if key in record:
            by_step = {step: old for step, old in by_step.items() if step < record["step"]}
            by_step[record["step"]] = record
    return list(by_step.values())


def read_growth(log: Path, name: str) -> list[Growth]:
    """Return one fit for each kind of text in a log's evaluations.

    Raises:
        ValueError: no such file, no evaluations in it, or fewer than 4.
    """
    try:
        reports = read_evaluations(log, "held_out")
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the training log {log}: {error}") from error
    grown = [
        _fit(name, kind, reports, column)
        for column, kind in _KINDS.items()
        if reports and reports[-1]["held_out"].get(column) is not None
    ]
    if not grown:
        raise ValueError(f"{log} has no evaluations of an adapter or a draft")
    return grown


def _fit(name: str, kind: str, reports: list[dict[str, Any]], column: str) -> Growth:
    points = [
        (float(report["tokens"]), float(report["held_out"][column]))
        for report in reports
        if report["tokens"] > 0 and report["held_out"].get(column) is not None
    ]
    if len(points) < _MIN_POINTS:
        raise ValueError(f"{name} was evaluated {len(points)} times; a fit needs {_MIN_POINTS}")
    seen, values = zip(*points, strict=True)
    line = linregress(np.log10(seen), values)
    rest = np.array(values) - line.intercept - line.slope * np.log10(seen)
    return Growth(
        name=name,
        kind=kind,
        seen=seen,
        values=values,
        slope=float(line.slope),
        slope_error=float(line.stderr),
        offset=float(line.intercept),
        spread=float(math.sqrt((rest**2).sum() / (len(points) - 2))),
    )
