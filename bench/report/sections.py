"""The sections of a report below its main table, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.registry import extras
from bench.report.findings import Findings
from bench.report.tables import drafts, quality, speed
from bench.report.tables.table import Table, by_family
from bench.stats import workers
from bench.stats.further_tables import second_arm
from bench.stats.metrics import METRICS

_BEFORE_EXTRAS = "reference"


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its tables, each under its own title, or all under the section's.

    Args:
        name: the section's anchor on the page.
        tables: makes its tables from findings; None is left out.
        title: title of a section with all its tables; empty: each table is a section of its own.
        empty: text of a section with a title and without tables.
        subtitles: whether the tables of a section with a title show theirs.
        numbered: whether anchors of the tables are numbered.
        is_open: whether the page shows it unfolded.
    """

    name: str
    tables: Callable[[Findings], Sequence[Table | None]]
    title: str = ""
    empty: str = ""
    subtitles: bool = False
    numbered: bool = False
    is_open: bool = False


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
        "estimators", lambda f: [speed.estimators(f.report_summary, second_arm(f.run.records))]
    ),
    Section("rivals", lambda f: [speed.pairwise_speedups(f.rivals, f.floor)]),
    Section(
        "part",
        lambda f: [
            speed.by_part("machine", workers.machines(f.run.records, f.timed_decoders)),
            speed.by_part("worker", workers.workers(f.run.records, f.timed_decoders)),
        ],
        numbered=True,
    ),
    Section(_BEFORE_EXTRAS, lambda f: [f.reference_table], is_open=True),
    Section("latency", lambda f: [speed.waits(f.latency)]),
    Section(
        "time", lambda f: [speed.split(f.splits), speed.parts(f.decompositions)], numbered=True
    ),
    Section("families", _by_family, title="By family", subtitles=True),
    Section(
        "quality",
        lambda f: [quality.by_families(f.report_summary, f.sizes("quality_prompts"))],
        title="Quality",
        empty="No quality was scored.",
        is_open=True,
    ),
    Section(
        "acceptance",
        lambda f: [drafts.acceptance(f.acceptance)],
        title="Draft acceptance by position",
        empty="No decoder drafted tokens.",
    ),
    Section(
        "calibration",
        lambda f: [drafts.calibration(f.report_summary, f.calibration)],
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
        numbered=True,
    ),
)
"""All sections of the core, in order; those of extras follow the reference."""


def sections() -> Iterator[Section]:
    """Yield all sections, those of extras after the reference.

    An extra registers a `Section`, or a function from findings to tables.
    """
    for section in SECTIONS:
        yield section
        if section.name == _BEFORE_EXTRAS:
            for name, entry in extras("bench.sections").items():
                yield entry if isinstance(entry, Section) else Section(name, entry)


def tables_by_section(findings: Findings) -> dict[Section, list[Table]]:
    """Return the tables of all sections, with rows of WRONG decoders marked."""
    return {
        section: [findings.shown(t) for t in section.tables(findings) if t is not None]
        for section in sections()
    }
