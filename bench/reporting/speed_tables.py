"""Tables of a report on speed-ups: every estimator by its name, with the A/A floor beside it.

Every function makes a `Table` from the summary alone. No torch here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pandas as pd

from bench.metrics import BASELINE, SECOND_BASELINE
from bench.reporting.tables import (
    SESSIONS,
    UNKNOWN,
    Cell,
    Row,
    Table,
    by_family,
    interval,
    known,
    number,
    rows_of,
    speed,
)
from bench.speedups import PRECISION, Speedups
from bench.stats import Estimate
from bench.summary import ALL

_NAMES = {
    "speedup": ("geometric mean", "geometric mean over prompts of paired ratios, 95 % t-interval"),
    "speedup_total": (
        "ratio of totals",
        "ar's seconds per token over all answers / the decoder's, 95 % bootstrap (from 8 "
        "conversations on)",
    ),
    "specbench_compat": (
        "specbench_compat",
        "Spec-Bench's unpaired ratio of mean tokens per second of questions, 95 % bootstrap (from "
        "8 conversations on)",
    ),
}


def estimators(summary: pd.DataFrame, second_arm: Speedups) -> Table | None:
    """Every estimator of every decoder over all families, with ar's second arm as the last row."""
    rows = [row for row in rows_of(summary, ALL) if row["decoder"] != BASELINE]
    if not rows:
        return None
    lines = [
        (
            Cell(str(row["decoder"])),
            speed(row),
            Cell(interval(row["speedup_bootstrap_low"], row["speedup_bootstrap_high"])),
            Cell(_agreement(row["intervals_disagree"])),
            speed(row, "speedup_total"),
            speed(row, "specbench_compat"),
            Cell(number(row["prompts_needed"], ".0f")),
        )
        for row in rows
    ]
    lines.append(
        (
            Cell(f"{SECOND_BASELINE} (A/A)"),
            Cell(_estimate(second_arm.geometric)),
            Cell(interval(second_arm.resampled.low, second_arm.resampled.high)),
            Cell(_agreement(second_arm.disagree)),
            Cell(_estimate(second_arm.totals)),
            Cell(_estimate(second_arm.specbench)),
            Cell(UNKNOWN if second_arm.needed is None else str(second_arm.needed)),
        )
    )
    return Table(
        title="Speed-up by estimator",
        note=(
            "End to end, over ar. Geometric mean (the headline): of paired per-prompt ratios, "
            "Student's t on their logs, and the bootstrap of the same, both clustered by "
            "conversation; they disagree where only one excludes 1 or an end differs by over a "
            "quarter of the half-width. Ratio of totals: ar's seconds per token over all answers / "
            "the decoder's. specbench_compat: mean over questions of the decoder's tokens per "
            "second / mean of ar's, unpaired, as Spec-Bench does. Prompts: how many more would "
            f"narrow the headline's interval to ±{100 * PRECISION:.0f} %. {SESSIONS}"
        ),
        headings=(
            "decoder",
            "geometric mean [95 % t]",
            "its bootstrap [95 %]",
            "intervals",
            "ratio of totals [95 %]",
            "specbench_compat [95 %]",
            f"prompts needed for ±{100 * PRECISION:.0f} %",
        ),
        rows=tuple(lines),
    )


def by_families(summary: pd.DataFrame, sizes: str) -> list[Table]:
    """Each estimator by family; the headline's table has the A/A floor of each as its last row."""
    tables = []
    for column, (name, what) in _NAMES.items():
        note = (
            f"{what[0].upper()}{what[1:]} over conversations; end to end; bold where it excludes "
            f"1. {SESSIONS} {sizes} prompts."
        )
        cell = partial(speed, column=column)
        table = by_family(summary, f"Speed-up by family ({name})", note, cell)
        tables.append(_with_floor(table, summary) if column == "speedup" else table)
    return tables


def needs(summary: pd.DataFrame) -> list[str]:
    """One line per decoder whose interval is wide: how many prompts would narrow it."""
    return [f"{row['decoder']} {line}" for row in rows_of(summary, ALL) if (line := need(row))]


def need(row: Row) -> str:
    """What a wide interval needs, in words; empty where it is narrow or unknown."""
    more = row["prompts_needed"]
    if not known(more) or not int(float(str(more))):
        return ""
    return f"needs {int(float(str(more)))} more prompts for ±{100 * PRECISION:.0f} %"


def beside(row: Row) -> str:
    """The A/A floor as it is printed beside one speed-up; empty where it is unknown."""
    if not known(row["aa_speedup"]):
        return ""
    return f"A/A {number(row['aa_speedup'])}x{_space(interval(row['aa_low'], row['aa_high']))}"


def _with_floor(table: Table, summary: pd.DataFrame) -> Table:
    """The table with the floor of every family in its last row."""
    cells = {str(row["family"]): row for row in rows_of(summary, None)}
    floors = []
    for family in table.headings[1:]:
        row = cells.get(family)
        text = UNKNOWN if row is None else beside(row).removeprefix("A/A ")
        floors.append(Cell(text or UNKNOWN))
    line = (Cell(f"{SECOND_BASELINE} (A/A)"), *floors)
    return replace(table, rows=(*table.rows, line))


def _agreement(disagree: object) -> str:
    if disagree is None or disagree is pd.NA:
        return UNKNOWN
    return "disagree" if disagree else "agree"


def _estimate(estimate: Estimate) -> str:
    text = number(estimate.value, unit="x")
    return text + _space(interval(estimate.low, estimate.high))


def _space(ends: str) -> str:
    return "" if ends == UNKNOWN else f" {ends}"
