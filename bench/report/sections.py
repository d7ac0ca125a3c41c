"""The sections of a report below its main table, each declared once with its figures and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bench.registry import extras
from bench.report.findings import Findings
from bench.report.tables import drafts, quality, speed
from bench.report.tables.table import Table, by_family
from bench.stats import workers
from bench.stats.further_tables import second_arm
from bench.stats.metrics import METRICS


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the report.

    Args:
        name: name of its files.
        caption: the text below it.
        without: the reason why a run has no such figure.
        draw: draws it and makes its data from findings, and from the summary without WRONG
            decoders; returns None if the run has no data for it.
        rank: its place among the figures.
        hollow: whether a footnote explains hollow markers, for rows that do not name lossy
            decoders.
    """

    name: str
    caption: str
    without: str
    draw: Callable[[Findings, pd.DataFrame], tuple[Any, pd.DataFrame] | None]
    rank: int
    hollow: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A section: its tables, each under its own title, or all under the section's.

    Args:
        name: the section's anchor on the page.
        tables: makes its tables from findings; None is left out.
        rank: its place among the sections; equal ranks are in order of name.
        title: title of a section with all its tables; empty: each table is a section of its own.
        empty: text of a section with a title and without tables.
        subtitles: whether the tables of a section with a title show theirs.
        numbered: whether anchors of the tables are numbered.
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
    subtitles: bool = False
    numbered: bool = False
    is_open: bool = False
    is_printed: bool = False
    figures: Sequence[Figure] = ()
    data: Mapping[str, Callable[[Findings], pd.DataFrame]] = field(default_factory=dict)


def _by_family(findings: Findings) -> list[Table]:
    """Make the tables by family of speed, counters and time, with n in timed prompts."""
    sizes = findings.sizes("prompts")
    timed = f"{sizes} prompts."
    return [
        *speed.by_families(findings.summary, sizes),
        by_family(
            findings.summary,
            "Tokens per call by family",
            f"Emitted tokens / target calls, prefill included, pooled. {timed}",
            lambda row: METRICS["tokens_per_call"].text(row.tokens_per_call),
        ),
        drafts.step_lengths(findings.summary, timed),
        by_family(
            findings.summary,
            "Milliseconds per token by family",
            f"End-to-end seconds / emitted tokens, pooled. {timed}",
            lambda row: METRICS["time_per_token_s"].text(row.time_per_token_s),
        ),
    ]


SECTIONS = (
    Section(
        "estimators", lambda f: [speed.estimators(f.report_summary, second_arm(f.run.records))], 1
    ),
    Section("rivals", lambda f: [speed.pairwise_speedups(f.rivals, f.floor)], 2),
    Section(
        "part",
        lambda f: [
            speed.by_part("machine", workers.machines(f.run.records, f.decoders)),
            speed.by_part("worker", workers.workers(f.run.records, f.decoders)),
        ],
        3,
        numbered=True,
    ),
    Section("reference", lambda f: [f.reference_table], 4, is_open=True, is_printed=True),
    Section("latency", lambda f: [speed.waits(f.latency)], 6),
    Section(
        "time", lambda f: [speed.split(f.splits), speed.parts(f.decompositions)], 7, numbered=True
    ),
    Section("families", _by_family, 8, title="By family", subtitles=True),
    Section(
        "quality",
        lambda f: [quality.by_families(f.report_summary, f.sizes("quality_prompts"))],
        9,
        title="Quality",
        empty="No quality was scored.",
        is_open=True,
    ),
    Section(
        "acceptance",
        lambda f: [drafts.acceptance(f.acceptance)],
        10,
        title="Draft acceptance by position",
        empty="No decoder drafted tokens.",
    ),
    Section(
        "calibration",
        lambda f: [drafts.calibration(f.report_summary, f.calibration)],
        11,
        title="Calibration of drafts",
        empty="No decoder gave its drafts probabilities.",
    ),
    Section(
        "parallel",
        lambda f: [
            drafts.rounds(f.report_summary),
            quality.likelihood(f.report_summary),
            quality.lost_quality(f.report_summary),
            quality.agreement(f.report_summary),
            quality.repetition(f.report_summary),
            quality.text(f.report_summary),
            quality.area(f.report_summary),
            drafts.by_drafter(f.run.records),
            drafts.memory(f.run.plan.cells, f.run.records),
            quality.ceilings(f.run, f.report_summary),
        ],
        12,
        numbered=True,
    ),
)
"""The sections of the core."""


def sections() -> list[Section]:
    """Return all sections, by rank.

    An extra registers a `Section`, or a function from findings to tables.
    """
    registered = extras("bench.sections").items()
    others = (
        each if isinstance(each, Section) else Section(name, each) for name, each in registered
    )
    return sorted((*SECTIONS, *others), key=lambda section: section.rank)


def tables_by_section(findings: Findings) -> dict[Section, list[Table]]:
    """Return the tables of all sections, with rows of WRONG decoders marked."""
    return {
        section: [findings.shown(t) for t in section.tables(findings) if t is not None]
        for section in sections()
    }
