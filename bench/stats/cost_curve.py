"""A measured cost curve: seconds of a call by rows, sequences and context, and what follows.

*Limits.* A call reads its model's weights and its cache once and multiplies its rows with them, so
it takes no less than bytes over bandwidth and operations over rate; the larger is the roofline
(Williams et al. 2009, doi 10.1145/1498765.1498785).

*Break-even.* k drafts are verified in a call of k + 1 rows: they pay once a step emits more tokens
than that call costs in calls of one row. No torch here.

Letters: k drafts, a acceptance rate.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import InvalidRunError
from bench.records.cost import (
    CURVE,
    READINGS,
    Calls,
    CostCell,
    CostFacts,
    LeftOut,
    Measured,
    read_cost,
)
from bench.records.environment import Environment
from bench.stats.intervals import median_interval

COLUMNS = (
    *("rows", "sequences", "context", "rounds", "seconds", "low", "high"),
    *("relative", "memory_s", "compute_s", "left_out"),
)
"""Of cost.csv; `relative` is `seconds` over those of one row beside it."""
_LONGEST_PROPOSAL = 31
"""Slots up to which `row_cost` looks: those of a proposal of ordinary length."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds of the cells that were measured, piecewise linear in between.

    Beyond the largest rows, sequences and context it goes on as between the last two, and below the
    smallest context it stays what it is there.
    """

    points: Mapping[CostCell, float]

    @cached_property
    def _table(self) -> dict[int, dict[int, dict[int, float]]]:
        """Seconds by sequences, context and rows, each ascending."""
        table: dict[int, dict[int, dict[int, float]]] = {}
        for cell in sorted(self.points):
            contexts = table.setdefault(cell.sequences, {})
            contexts.setdefault(cell.context, {})[cell.rows] = self.points[cell]
        return table

    def seconds(self, rows: float, context: float, sequences: float = 1) -> float:
        """A call of `sequences` times `rows` rows, after `context` tokens in each."""
        table = self._table

        def at(place: int) -> float:
            by_context = table[place]
            return _along(context, by_context, lambda c: _along_values(rows, by_context[c]))

        return _along(sequences, table, at)

    def relative(self, rows: float, context: float, sequences: float = 1) -> float:
        """The same in calls of one row: tokens a step must emit for the call to pay."""
        one = self.seconds(1, context, sequences)
        return self.seconds(rows, context, sequences) / one

    def covers(self, rows: float, context: float, sequences: float = 1) -> bool:
        """Whether that lies within what was measured (or below the smallest context)."""
        return any(
            cell.rows >= rows and cell.context >= context and cell.sequences >= sequences
            for cell in self._outermost
        )

    @cached_property
    def _outermost(self) -> list[CostCell]:
        """The cells that no other contains."""
        return [
            cell
            for cell in self.points
            if not any(other != cell and other.contains(cell) for other in self.points)
        ]

    def row_cost(self, context: float, sequences: float = 1) -> float:
        """What one more row adds to a call, in calls of one row: the mean over a proposal's."""
        most = min(1 + _LONGEST_PROPOSAL, max(cell.rows for cell in self.points))
        if most == 1:
            return 0.0
        return max(0.0, (self.relative(most, context, sequences) - 1) / (most - 1))


def _along_values(at: float, values: Mapping[int, float]) -> float:
    return _along(at, values, values.__getitem__)


def _along(at: float, places: Iterable[int], value: Callable[[int], float]) -> float:
    """Piecewise linear through `value` of ascending `places`; never falling beyond the last."""
    axis = list(places)
    if at <= axis[0] or len(axis) == 1:
        return value(axis[0])
    upper = next((i for i, place in enumerate(axis) if place >= at), len(axis) - 1)
    left, right = axis[upper - 1], axis[upper]
    first, last = value(left), value(right)
    if at > right:
        return last + max(0.0, last - first) * (at - right) / (right - left)
    return first + (last - first) * (at - left) / (right - left)


# ---------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that a call takes at least; None: its rate was not measured."""

    memory_s: float | None
    compute_s: float | None

    @property
    def roofline_s(self) -> float | None:
        """The larger of those known."""
        return max((s for s in (self.memory_s, self.compute_s) if s is not None), default=None)


def limits(facts: CostFacts, cell: CostCell) -> Limits:
    """What the machine allows for a call."""
    work, bandwidth, rate = facts.work, facts.bandwidth, facts.matrix_rate
    return Limits(
        memory_s=work.bytes_of(cell) / bandwidth.value if bandwidth else None,
        compute_s=work.flops_of(cell) / rate.value if rate else None,
    )


# ---------------------------------------------------------------- what a curve asks of drafts


def tokens_per_step(rate: float, num_drafts: int) -> float:
    """1 + a + … + a^k: what a step emits whose drafts each stand with probability a.

    Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    return sum(rate**power for power in range(num_drafts + 1))


def break_even_rate(cost: float, num_drafts: int) -> float | None:
    """The acceptance rate from which k drafts pay at that cost of a step; None: they never do.

    `cost` is in calls of one row, drafting included.
    """
    if cost <= 1:
        return 0.0
    if cost > num_drafts + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, num_drafts) < cost else (low, middle)
    return high


# ---------------------------------------------------------------- the file


def measured(values: Sequence[float]) -> Measured | None:
    """Median and interval of readings; None where there are none."""
    found = median_interval(values)
    if found.value is None:
        return None
    return Measured(value=found.value, low=found.low, high=found.high, num=found.num)


def with_readings(facts: CostFacts, calls: Calls) -> CostFacts:
    """The facts with the medians of what was read off the machine."""
    by_what: dict[str, list[float]] = {}
    for reading in calls.readings:
        by_what.setdefault(reading.what, []).append(reading.value)
    found: dict[str, Any] = {
        what: measured(values) for what, values in by_what.items() if what in READINGS
    }
    return replace(facts, **found)


def table_of(facts: CostFacts, calls: Calls) -> pd.DataFrame:
    """The rows of cost.csv, in the order of the grid; what was left out says why."""
    samples: dict[CostCell, list[float]] = {}
    for visit in calls.visits:
        samples.setdefault(visit.cell, []).append(visit.seconds)
    reasons = {each.cell: each.reason for each in calls.left_out if each.cell not in samples}
    rows = [
        _row(facts, cell, samples, reasons)
        for cell in facts.grid.cells
        if cell in samples or cell in reasons
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(
    facts: CostFacts,
    cell: CostCell,
    samples: Mapping[CostCell, Sequence[float]],
    reasons: Mapping[CostCell, str],
) -> dict[str, object]:
    made = median_interval(samples.get(cell, []))
    one = median_interval(samples.get(replace(cell, rows=1), []))
    bounds = limits(facts, cell)
    return {
        "rows": cell.rows,
        "sequences": cell.sequences,
        "context": cell.context,
        "rounds": made.num,
        "seconds": made.value,
        "low": made.low,
        "high": made.high,
        "relative": made.value / one.value if made.value and one.value else None,
        "memory_s": bounds.memory_s,
        "compute_s": bounds.compute_s,
        "left_out": reasons.get(cell),
    }


def csv_of(table: pd.DataFrame) -> bytes:
    """cost.csv; times keep nine digits, which is less than a nanosecond."""
    text: str = table.to_csv(index=False, float_format="%.9g", lineterminator="\n")
    return text.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A cost folder as whoever uses it needs it."""

    path: Path
    facts: CostFacts
    env: Environment
    table: pd.DataFrame
    curve: CostCurve

    @property
    def left_out(self) -> list[LeftOut]:
        """Cells that were not measured."""
        rows = self.table[self.table["left_out"].notna()]
        return [
            LeftOut(cell=_cell(row), reason=str(row["left_out"])) for row in rows.to_dict("records")
        ]


def load_cost(folder: Path) -> Cost:
    """Read a cost folder.

    Raises:
        BenchError: there is none (exit 2), or it is damaged or holds no call of one row (4).
    """
    facts, env = read_cost(folder)
    try:
        table = pd.read_csv(io.BytesIO((folder / CURVE).read_bytes()))
        known = table[table["seconds"].notna()]
        points = {_cell(row): float(row["seconds"]) for row in known.to_dict("records")}
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidRunError(f"{folder / CURVE} is damaged: {error}") from error
    curve = CostCurve(points=points)
    singles = {replace(cell, rows=1) for cell in points}
    if not points or min(points.values()) <= 0 or not singles <= set(points):
        line = f"{folder / CURVE} has no times above 0 of calls of one row: measure it again"
        raise InvalidRunError(line)
    return Cost(path=folder, facts=facts, env=env, table=table, curve=curve)


def _cell(row: Mapping[Any, Any]) -> CostCell:
    rows, sequences, context = (int(row[name]) for name in ("rows", "sequences", "context"))
    return CostCell(rows=rows, sequences=sequences, context=context)
