"""Tables of a report on speed-ups: every estimator by its name, with the A/A floor beside it.

Every function makes a `Table` from the summary alone. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from bench.records.phases import PHASES
from bench.records.plan import BASELINE, SECOND_BASELINE
from bench.report.tables.table import (
    SESSIONS,
    Table,
    TableCell,
    by_family,
    estimated,
    interval,
    number,
    speed,
)
from bench.stats.decompose import MOST_RESIDUAL, Decomposition, Split
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.speedups import PRECISION, Speedups
from bench.stats.summary import ALL, Pairs
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import UNKNOWN, change, factor, percent

_NAMES = {
    "speedup": (
        "geometric mean",
        f"geometric mean over prompts of paired ratios, {LEVEL} t-interval",
    ),
    "speedup_total": (
        "ratio of totals",
        f"ar's seconds per token over all answers / the decoder's, {LEVEL} bootstrap (from 8 "
        "conversations on)",
    ),
    "specbench_compat": (
        "specbench_compat",
        "Spec-Bench's unpaired ratio of mean tokens per second of questions, "
        f"{LEVEL} bootstrap (from 8 conversations on)",
    ),
}


_PASS = (
    "From an instrumented second pass over {} prompt(s), apart from the timed one: its clock is "
    "read around every call."
)
_AGAINST = "time against the timed pass"
_FEWEST_RIVALS = 2
"""With one decoder beside ar, the main table says it all."""


def estimators(summary: pd.DataFrame, second_arm: Speedups) -> Table | None:
    """Every estimator of every decoder over all families, with ar's second arm as the last row."""
    rows = [row for row in rows_of(summary, ALL) if row.decoder != BASELINE]
    if not rows:
        return None
    lines = [
        (
            TableCell(row.decoder),
            speed(row),
            TableCell(interval(row.speedup_bootstrap_low, row.speedup_bootstrap_high)),
            TableCell(_agreement(row.intervals_disagree)),
            speed(row, "speedup_total"),
            speed(row, "specbench_compat"),
            TableCell(number(row.prompts_needed, ".0f")),
        )
        for row in rows
    ]
    lines.append(
        (
            TableCell(f"{SECOND_BASELINE} (A/A)"),
            TableCell(estimated(second_arm.geometric)),
            TableCell(interval(second_arm.resampled.low, second_arm.resampled.high)),
            TableCell(_agreement(second_arm.disagree)),
            TableCell(estimated(second_arm.totals)),
            TableCell(estimated(second_arm.specbench)),
            TableCell(UNKNOWN if second_arm.needed is None else str(second_arm.needed)),
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
            f"geometric mean [{LEVEL} t]",
            f"its bootstrap [{LEVEL}]",
            "intervals",
            f"ratio of totals [{LEVEL}]",
            f"specbench_compat [{LEVEL}]",
            f"prompts needed for ±{100 * PRECISION:.0f} %",
        ),
        rows=tuple(lines),
    )


def pairwise_speedups(pairs: Pairs, floor: Estimate) -> Table | None:
    """Every decoder over every other one; None for fewer than two besides ar."""
    decoders = list(dict.fromkeys(name for pair in pairs for name in pair))
    if sum(decoder != BASELINE for decoder in decoders) < _FEWEST_RIVALS:
        return None
    rows = [
        (
            TableCell(row),
            *(
                TableCell(UNKNOWN) if row == column else _rival(pairs[row, column], floor)
                for column in decoders
            ),
        )
        for row in decoders
    ]
    return Table(
        title="Decoders against one another",
        note=(
            "How many times as fast the row's decoder is as the column's: geometric mean over "
            f"prompts of paired ratios of time per emitted token, end to end, {LEVEL} t-interval "
            "over conversations; bold where it excludes 1 and the A/A floor is exceeded. Of "
            f"decoders with other guarantees or other quality this compares speed alone. {SESSIONS}"
        ),
        headings=("decoder", *decoders),
        rows=tuple(rows),
    )


def _rival(estimate: Estimate, floor: Estimate) -> TableCell:
    return TableCell(estimated(estimate), bold=estimate.exceeds(floor))


def by_families(summary: pd.DataFrame, sizes: str) -> list[Table]:
    """Each estimator by family; the headline's table has the A/A floor of each as its last row."""
    tables = []
    for column, (name, what) in _NAMES.items():
        note = (
            f"{what[0].upper()}{what[1:]} over conversations; end to end; bold where it excludes "
            f"1 and the A/A floor is exceeded. {SESSIONS} {sizes} prompts."
        )
        cell = partial(speed, column=column)
        table = by_family(summary, f"Speed-up by family ({name})", note, cell)
        tables.append(_with_floor(table, summary) if column == "speedup" else table)
    return tables


def needs(summary: pd.DataFrame) -> str:
    """Say how many prompts would narrow the wide intervals, the widest first; empty for none."""
    wide = [row for row in rows_of(summary, ALL) if row.prompts_needed]
    wide.sort(key=lambda row: -(row.prompts_needed or 0))
    if not wide:
        return ""
    first, *others = wide
    more = "".join(f", {row.prompts_needed} for {row.decoder}" for row in others)
    return (
        f"Wide intervals: ±{100 * PRECISION:.0f} % needs {first.prompts_needed} more prompts for "
        f"{first.decoder}{more}."
    )


def prompts_needed_note(row: SummaryRow) -> str:
    """What a wide interval needs, in words; empty where it is narrow or unknown."""
    if not row.prompts_needed:
        return ""
    return f"needs {row.prompts_needed} more prompts for ±{100 * PRECISION:.0f} %"


def beside(row: SummaryRow) -> str:
    """The A/A floor as it is printed beside one speed-up; empty where it is unknown."""
    if row.aa_speedup is None:
        return ""
    return f"A/A {estimated(row.floor)}"


def _with_floor(table: Table, summary: pd.DataFrame) -> Table:
    """The table with the floor of every family in its last row."""
    cells = {row.family: row for row in rows_of(summary, None)}
    floors = []
    for family in table.headings[1:]:
        row = cells.get(family)
        text = UNKNOWN if row is None else beside(row).removeprefix("A/A ")
        floors.append(TableCell(text or UNKNOWN))
    line = (TableCell(f"{SECOND_BASELINE} (A/A)"), *floors)
    return replace(table, rows=(*table.rows, line))


def _agreement(disagree: bool | None) -> str:
    if disagree is None:
        return UNKNOWN
    return "disagree" if disagree else "agree"


def split(splits: Sequence[Split]) -> Table | None:
    """Every decoder's time by phase, or None where no second pass was made."""
    if not splits:
        return None
    merged = any(item.padding is not None for item in splits)
    rows = tuple(
        (
            TableCell(item.decoder),
            TableCell(number(item.time_per_token_s, ".2f", 1e3)),
            *(TableCell(percent(item.shares[phase], "")) for phase in PHASES),
            *([TableCell(percent(item.padding, ""))] if merged else []),
            TableCell(factor(item.against_timed)),
        )
        for item in splits
    )
    note = (
        f"{_PASS.format(max(item.prompts for item in splits))} Shares of the time from request "
        "start to last token, per cent. Prefill: all up to the first token (in batches: target "
        "calls on an empty cache); draft: calls of the draft model, and target calls that only "
        "propose; target calls: all others, which verify drafts or, where nothing is verified, "
        "predict; sampling: from logits to tokens and verdicts; "
        "scheduler: merging, cutting, counting; other: the decoder's own code. Time against the "
        "timed pass: this pass's time per token / that of the same answers in the timed pass; "
        "reading the clock costs a few per cent."
    )
    if merged:
        note += (
            " Padding: share of the rows computed, not of time, that only filled merged calls up "
            "to one width."
        )
    note = " ".join([note, *instrument_bias_note(splits)])
    phases = [f"{'target calls' if phase == 'verify' else phase} %" for phase in PHASES]
    padding = ["padding %"] if merged else []
    headings = ("decoder", "ms per token", *phases, *padding, _AGAINST)
    return Table(title="Where the time goes", note=note, headings=headings, rows=rows)


def instrument_bias_note(splits: Iterable[Split]) -> list[str]:
    """That the second pass was faster than the timed one for all decoders, or slower; else empty.

    Faster, or slower by more than instruments can cost, it saw a machine of another speed: what
    decoders do differs, the machine's speed is common to them.
    """
    ratios = [item.against_timed for item in splits if item.against_timed is not None]
    if len(ratios) < 2 or min(ratios) <= 1 <= max(ratios):
        return []
    which = "faster" if max(ratios) < 1 else "slower"
    why = "the machine's speed changed in between, so shares of time hold, milliseconds do not"
    if 1 < min(ratios) <= 1 + MOST_RESIDUAL:
        why = "reading the clock costs that much, and the milliseconds above include it"
    return [
        f"The second pass was {which} than the timed one for every decoder "
        f"({factor(min(ratios))} to {factor(max(ratios))}): {why}."
    ]


def parts(decomposed: Sequence[Decomposition]) -> Table | None:
    """Every decoder's speed-up in parts, or None where there is nothing to take apart."""
    if not decomposed:
        return None
    rows = []
    for item in decomposed:
        residual = item.residual
        text = change(residual, "")
        rows.append(
            (
                TableCell(item.decoder),
                TableCell(number(item.acceptance_length)),
                *(TableCell(number(cost)) for cost in (item.verify, item.draft, item.overhead)),
                TableCell(factor(item.predicted)),
                TableCell(factor(item.measured)),
                TableCell(text, residual is not None and abs(residual) > MOST_RESIDUAL),
            )
        )
    note = (
        "After the first token speed-up = tokens per step / (target calls + draft + overhead), "
        "where costs are of a step, in ar's seconds per token, and overhead is sampling, scheduler "
        f"and the decoder's own code. {_PASS.format(max(item.prompts for item in decomposed))} "
        "Measured: the timed pass's ratio of totals of the same answers. Residual: measured / "
        "predicted - 1; "
        f"bold beyond {MOST_RESIDUAL:.0%}, where one of the two passes was disturbed. "
    )
    return Table(
        title="What the speed-up is made of",
        note=note,
        headings=(
            "decoder",
            "tokens per step",
            "target calls",
            "draft",
            "overhead",
            "predicted speed-up",
            "measured",
            "residual %",
        ),
        rows=tuple(rows),
    )
