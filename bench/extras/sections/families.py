"""Report speed-ups, tokens per call and step, and quality by family of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pandas as pd

from bench.records.plan import BASELINE, SECOND
from bench.report.findings import Findings
from bench.report.sections import Section
from bench.report.tables.conclusion import quality_limits
from bench.report.tables.table import (
    EXPLORATORY,
    Columns,
    Table,
    TableCell,
    estimated,
    number,
    over,
    quality,
    speed,
    step_length,
)
from bench.stats.intervals import LEVEL
from bench.stats.metrics import METRICS, SummaryRow, summary_rows
from bench.stats.parallel_counters import COPIED_RUN
from bench.stats.summary import ALL, family_order
from bench.text import UNKNOWN, percent

_SPEEDS = {
    "speedup": ("geometric mean", "Geometric mean over prompts of paired ratios, end to end"),
    "speedup_decode": ("decode", "The same from the first token on, in answers that go on"),
}
"""Columns of the summary, each with its name and definition."""


def by_family(
    summary: pd.DataFrame, title: str, note: str, make: Callable[[SummaryRow], TableCell | str]
) -> Table:
    """Make a table with a row per decoder, and a column per family and for `all`.

    Args:
        summary: the rows of summary.csv that are shown.
        title: the table's title.
        note: the text below the table.
        make: makes the cell of a row of the summary.
    """
    cells = {(row.decoder, row.family): make(row) for row in summary_rows(summary, None)}
    return from_cells(cells, title, note)


def from_cells(cells: Mapping[tuple[str, str], TableCell | str], title: str, note: str) -> Table:
    """Make a table by family from cells keyed by decoder and family."""
    families = [*family_order({family for _, family in cells} - {ALL}), ALL]

    def cell(decoder: str, family: str) -> TableCell | str:
        return cells.get((decoder, family), UNKNOWN)

    columns: Columns = {"decoder": str, **{f: partial(cell, family=f) for f in families}}
    return Table.of(title, note, columns, dict.fromkeys(decoder for decoder, _ in cells))


def step_lengths(summary: pd.DataFrame, timed: str) -> Table:
    """Make the table of tokens per step by family, with known facts about ar's answers."""
    note = (
        f"Tokens emitted after the prefill / steps after the prefill, pooled; {LEVEL} jackknife "
        f"interval over conversations. {timed}"
    )
    table = by_family(summary, "Tokens per step by family", note, step_length)
    rows = {r.family: r for r in summary_rows(summary, None) if r.decoder == BASELINE}
    firsts: dict[str, Callable[[SummaryRow], str]] = {
        "ar's entropy, nats": lambda row: number(row.base_entropy, ".3g"),
        "ar's tokens copied, %": lambda row: percent(row.copied, ""),
    }
    above = [
        (name, *(text(rows[f]) if f in rows else UNKNOWN for f in table.headings[1:]))
        for name, text in firsts.items()
    ]
    shown = [tuple(map(TableCell, row)) for row in above if {*row[1:]} != {UNKNOWN}]
    if not shown:
        return table
    firsts_note = (
        "First rows: mean entropy of ar's next token along its answers, and the share of their "
        f"tokens that are copied from the prompt (in runs of {COPIED_RUN} or more that occur "
        "there): low entropy and copies make drafting easy."
    )
    return replace(table, note=f"{note} {firsts_note}", rows=(*shown, *table.rows))


def _by_family(findings: Findings) -> list[Table]:
    """Make the tables by family of speed and counters, with n in timed prompts."""
    summary, timed = findings.summary, f"{findings.sizes('prompts')} prompts."
    speeds = []
    for column, (name, definition) in _SPEEDS.items():
        if column != "speedup" and summary[column].isna().all():  # no floor from the first token on
            continue
        note = (
            f"{definition}, {LEVEL} t-interval over conversations; bold if it excludes 1 and "
            f"exceeds the A/A floor. {EXPLORATORY} {timed}"
        )
        cell = partial(speed, column=column)
        speeds.append(by_family(summary, f"Speed-up by family ({name})", note, cell))
    floors = {row.family: TableCell(estimated(row.floor)) for row in summary_rows(summary, None)}
    cells = (floors.get(family, TableCell(UNKNOWN)) for family in speeds[0].headings[1:])
    last = (TableCell(f"{over(summary)}{SECOND} (A/A)"), *cells)
    return [
        replace(speeds[0], rows=(*speeds[0].rows, last)),
        *speeds[1:],
        by_family(
            summary,
            "Tokens per call by family",
            f"Emitted tokens / target calls, prefill included, pooled. {timed}",
            lambda row: METRICS["tokens_per_call"].text(row.tokens_per_call),
        ),
        step_lengths(summary, timed),
    ]


def quality_by_families(summary: pd.DataFrame, sizes: str) -> Table | None:
    """Make the table of quality by family, if anything was scored."""
    scored = summary.dropna(subset=["quality"])
    if scored.empty:
        return None
    metrics = dict(zip(scored["family"], scored["quality_metric"], strict=True))
    metrics |= {ALL: "mean of families, without those in brackets"}
    named = ", ".join(f"{family}: {metric}" for family, metric in metrics.items())
    note = (
        f"Per cent, from the untimed pass over held-out prompts ({named}); {LEVEL} t-interval over "
        f"conversations. {' '.join([f'{sizes} prompts.', *quality_limits(summary)])}"
    )
    return by_family(summary, "Quality by family", note, quality)


SECTION = Section("families", _by_family, 8, "By family")
QUALITY = Section(
    "quality",
    lambda f: [quality_by_families(f.report_summary, f.sizes("quality_prompts"))],
    9,
    title="Quality",
    empty="No quality was scored.",
    is_open=True,
)
