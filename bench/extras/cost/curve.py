"""Use a measured cost curve: seconds of a call as a function of rows, sequences and context.

A call reads the model's weights and the KV cache once and multiplies its rows with them. It
therefore takes at least bytes / bandwidth and at least operations / rate; the larger bound is the
roofline (Williams et al. 2009, doi 10.1145/1498765.1498785). k drafts are verified in a call of
k + 1 rows. The drafts pay if a step emits more tokens than that call costs in one-row calls.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from scipy import stats
from scipy.optimize import brentq

from bench.errors import InvalidRunError, UsageError
from bench.extras.cost.records import (
    CURVE,
    MACHINE,
    READINGS,
    Calls,
    CostCell,
    CostFacts,
    Measured,
    read_draft_costs,
    read_facts,
)
from bench.records.environment import Environment, read_environment
from bench.stats.intervals import CONFIDENCE, LEVEL
from bench.text import percent

COLUMNS = (
    *("rows", "sequences", "context", "rounds", "seconds", "low", "high"),
    *("relative", "memory_s", "compute_s", "left_out"),
)
"""Columns of cost.csv; `relative` is `seconds` / `seconds` of the same cell with one row."""
_LONGEST_PROPOSAL = 31
"""Slots of a proposal of ordinary length; `row_cost` averages up to this length."""


@dataclass(frozen=True)
class CostCurve:
    """Interpolate linearly between the seconds of the measured cells.

    Beyond the largest measured rows, sequences or context, the curve extrapolates the last segment
    (without falling). Below the smallest value, the curve is constant.
    """

    points: Mapping[CostCell, float]

    @cached_property
    def _table(self) -> dict[int, dict[int, dict[int, float]]]:
        """Seconds by sequences, then context, then rows, each ascending."""
        table: dict[int, dict[int, dict[int, float]]] = {}
        for cell in sorted(self.points):
            contexts = table.setdefault(cell.sequences, {})
            contexts.setdefault(cell.context, {})[cell.rows] = self.points[cell]
        return table

    def seconds(self, rows: float, context: float, sequences: float = 1) -> float:
        """Return the seconds of a call: `rows` rows per sequence after `context` cached tokens."""
        return _interpolate(self._table, sequences, context, rows)

    def relative(self, rows: float, context: float, sequences: float = 1) -> float:
        """Return the call's cost in one-row calls: the tokens of a step that breaks even."""
        one = self.seconds(1, context, sequences)
        return self.seconds(rows, context, sequences) / one

    def row_cost(self, context: float, sequences: float = 1) -> float:
        """Return the mean cost of one more row of a proposal, in one-row calls."""
        num_rows = min(1 + _LONGEST_PROPOSAL, max(cell.rows for cell in self.points))
        if num_rows == 1:
            return 0.0
        return max(0.0, (self.relative(num_rows, context, sequences) - 1) / (num_rows - 1))


def _interpolate(table: Mapping[int, Any], at: float, *inner: float) -> float:
    """Interpolate linearly between ascending knots, without a fall beyond the last knot.

    In a table of tables, `inner` holds the arguments of the inner tables.
    """

    def value(knot: int) -> float:
        return _interpolate(table[knot], *inner) if inner else float(table[knot])

    axis = list(table)
    if at <= axis[0] or len(axis) == 1:
        return value(axis[0])
    upper = next((i for i, knot in enumerate(axis) if knot >= at), len(axis) - 1)
    left, right = axis[upper - 1], axis[upper]
    first, last = value(left), value(right)
    if at > right:
        return last + max(0.0, last - first) * (at - right) / (right - left)
    return first + (last - first) * (at - left) / (right - left)


def tokens_per_step(rate: float, num_drafts: int) -> float:
    """Return 1 + a + … + a^k: expected tokens of a step with k drafts and acceptance rate a each.

    Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    return sum(rate**power for power in range(num_drafts + 1))


def break_even_rate(cost: float, num_drafts: int) -> float | None:
    """Return the break-even acceptance rate of k drafts, or None if they never pay.

    `cost` is the cost of a step in one-row calls, drafting included.
    """
    if cost <= 1:
        return 0.0
    if cost >= num_drafts + 1:
        return 1.0 if cost == num_drafts + 1 else None
    return float(brentq(lambda rate: tokens_per_step(rate, num_drafts) - cost, 0.0, 1.0))


def with_readings(facts: CostFacts, calls: Calls) -> CostFacts:
    """Return the facts with the medians of the machine's readings."""
    readings = calls.readings
    medians: dict[str, Any] = {
        name: median_interval(readings[name]) for name in READINGS if name in readings
    }
    return replace(facts, **medians)


def cost_table(facts: CostFacts, calls: Calls) -> pd.DataFrame:
    """Make the table of cost.csv, in grid order and with the reasons of cells left out."""
    rows = []
    for cell in facts.grid.cells:
        if cell not in calls.seconds and cell not in calls.left_out:
            continue
        timing = median_interval(calls.seconds.get(cell, []))
        one = median_interval(calls.seconds.get(replace(cell, rows=1), []))
        columns = {} if timing is None else asdict(timing)
        rows.append(
            {
                **asdict(cell),
                "rounds": columns.get("num", 0),
                "seconds": columns.get("value"),
                "low": columns.get("low"),
                "high": columns.get("high"),
                "relative": timing.value / one.value if timing and one else None,
                "memory_s": facts.memory_s(cell),
                "compute_s": facts.compute_s(cell),
                "left_out": calls.left_out.get(cell),
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Hold the content of a cost folder."""

    path: Path
    facts: CostFacts
    env: Environment
    table: pd.DataFrame
    curve: CostCurve


def load_cost(folder: Path) -> Cost:
    """Read a cost folder.

    Raises:
        BenchError: the folder is missing (exit 2), damaged, or without one-row calls (exit 4).
    """
    facts = read_facts(folder)
    if facts is None or not (folder / CURVE).is_file():
        missing = MACHINE if facts is None else CURVE
        raise UsageError(f"{folder} is not a cost folder (no {missing}): `bench cost` makes one")
    env = read_environment(folder)
    try:
        table = pd.read_csv(io.BytesIO((folder / CURVE).read_bytes()))
        measured = table[table["seconds"].notna()]
        points: dict[CostCell, float] = {}
        for row in measured.to_dict("records"):
            axes = {name: int(row[name]) for name in ("rows", "sequences", "context")}
            points[CostCell(**axes)] = float(row["seconds"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidRunError(f"{folder / CURVE} is damaged: {error}") from error
    singles = {replace(cell, rows=1) for cell in points}
    if not points or min(points.values()) <= 0 or not singles <= set(points):
        line = f"{folder / CURVE} lacks positive times of one-row calls: measure it again"
        raise InvalidRunError(line)
    return Cost(path=folder, facts=facts, env=env, table=table, curve=CostCurve(points=points))


def curve_table(cost: Cost) -> list[list[str]]:
    """Return headings and a line per number of rows, for one sequence at the shortest context."""
    context = min(cell.context for cell in cost.curve.points if cell.sequences == 1)
    table = cost.table
    rows = table[(table["sequences"] == 1) & (table["context"] == context)]
    lines = [
        ["rows", f"ms per call [{LEVEL}]", "in one-row calls", "break-even rate", "of roofline"]
    ]
    for row in rows[rows["seconds"].notna()].sort_values("rows").to_dict("records"):
        seconds, relative, num = row["seconds"], row["relative"], int(row["rows"])
        roof = max(row["memory_s"], row["compute_s"])
        interval = ""
        if row["low"] == row["low"]:  # not NaN
            interval = f" [{1e3 * row['low']:.2f}, {1e3 * row['high']:.2f}]"
        rate = break_even_rate(relative, num - 1) if num > 1 else None
        lines.append(
            [
                str(num),
                f"{1e3 * seconds:.2f}{interval}",
                f"{relative:.2f}",
                "-" if num == 1 else "never" if rate is None else percent(rate),
                percent(roof / seconds),
            ]
        )
    return lines


def auto_options(folder: Path) -> Callable[[str, str, int], str]:
    """Open a folder of `bench cost` for options that are `auto` (raises as `load_cost`).

    The function takes a cell, the option's name and the batch size.
    """
    cost, costs = load_cost(folder), read_draft_costs(folder)

    def number(cell: str, name: str, batch_size: int) -> str:
        if name == "row_cost":
            context = min(each.context for each in cost.curve.points)
            return f"{cost.curve.row_cost(context, batch_size):.4g}"
        decoder = cell.split("@")[0]
        if (draft_cost := costs.get(cell, costs.get(decoder))) is None:
            line = f"{cell}: {folder} has no {name} for auto; `bench cost --run RUN` finds it from"
            raise UsageError(f"{line} a run with {decoder}")
        return f"{draft_cost:.4g}"

    return number


def median_interval(values: Sequence[float]) -> Measured | None:
    """Return the median with an interval between two order statistics, if there are values.

    The k-th smallest and k-th largest of n values enclose the median unless fewer than k values lie
    on one side of the median. That number is binomial(n, 1/2). Below six values: no interval.
    """
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    rank = int(stats.binom.ppf((1 - CONFIDENCE) / 2, count, 0.5))  # P(X < rank) <= 2.5 %
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (None, None)
    return Measured(value=median(values), low=low, high=high, num=count)
