"""Declare the sections of a report below its main table, each once with its figures and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bench.registry import extras
from bench.report.findings import Findings
from bench.report.tables.table import Table, mark_wrong
from bench.stats.intervals import LEVEL

WITH_INTERVALS = f" with {LEVEL} intervals"
"""Part of a caption, which a figure without intervals leaves out."""
Plot = tuple[Any, pd.DataFrame]
"""A figure of matplotlib, and its data."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Declare a figure of the report.

    Args:
        name: name of its files.
        caption: the text below it, or a function from the figure's data to that text. ``{base}``
            in it is the baseline.
        without: the reason why a run has no such figure, with the same placeholder.
        draw: draws it and makes its data from findings, and from the summary without WRONG
            decoders; returns None if the run has no data for it.
        rank: its place among the figures.
        sample: counts the drawn sample, as ``{sample}`` of the caption; None: n of the timed pass,
            at the caption's end.
    """

    name: str
    caption: str | Callable[[pd.DataFrame], str]
    without: str
    draw: Callable[[Findings, pd.DataFrame], Plot | None]
    rank: int
    sample: Callable[[Findings], str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """Declare a section: its tables, each under a title, or all under the section's title.

    Args:
        name: the section's anchor on the page.
        tables: makes its tables from findings; None and tables without rows are left out.
        rank: its place among the sections, equal ranks by name (5: behind published figures).
        title: title of a section with all its tables; empty: each table is a section of its own.
        empty: text of a section with a title and without tables.
        is_open: whether the page shows it unfolded.
        is_printed: whether the terminal shows its tables below the main table.
        figures: its figures.
        data: what ``tables/NAME.csv`` contains, by NAME.
    """

    name: str
    tables: Callable[[Findings], Sequence[Table | None]]
    rank: int = 5
    title: str = ""
    empty: str = ""
    is_open: bool = False
    is_printed: bool = False
    figures: Sequence[Figure] = ()
    data: Mapping[str, Callable[[Findings], pd.DataFrame]] = field(default_factory=dict)


def sections() -> list[Section]:
    """Return the sections that extras register, as a `Section` or a function, by rank."""
    pairs = extras("bench.sections").items()
    entries = (each if isinstance(each, Section) else Section(name, each) for name, each in pairs)
    return sorted(entries, key=lambda section: section.rank)


def tables_by_section(findings: Findings) -> dict[Section, list[Table]]:
    """Return the tables with rows of all sections, where WRONG decoders are marked."""
    return {
        section: [mark_wrong(t, findings.wrong) for t in section.tables(findings) if t and t.rows]
        for section in sections()
    }
