"""Make the main table of a run, and sentences about its basis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from bench.records.plan import BASELINE, guarantee_rank
from bench.report.tables.table import (
    SESSIONS,
    Columns,
    Table,
    TableCell,
    estimated,
    guarantee_label,
    is_number,
    over,
    quality,
    speed,
    step_length,
)
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.metric import FACTOR, Heading, Metric
from bench.stats.metrics import INTERVALS, METRICS, SummaryRow, summary_rows
from bench.stats.summary import ALL
from bench.text import UNKNOWN, counted

DETERMINED = 0.1
"""Mean entropy (nats) below which the report calls the text nearly determined."""


@dataclass(frozen=True, slots=True)
class Column:
    """Describe a column of the main table: a metric's heading, and its cell in a decoder's row."""

    metric: Metric
    heading: Heading

    @property
    def text(self) -> str:
        """The heading in a report."""
        has_interval = self.metric.name in INTERVALS
        return f"{self.heading.text} [{LEVEL}]" if has_interval else self.heading.text

    @property
    def terminal(self) -> str:
        """The heading on a terminal, in several lines."""
        short = self.heading.terminal or self.heading.text
        has_interval = self.metric.name in INTERVALS and not self.heading.bare
        return f"{short}\n[{LEVEL}]" if has_interval else short

    def cell(self, row: SummaryRow) -> TableCell | str:
        """Format the metric of a decoder: a speed-up, a share, text, or another number."""
        name = self.metric.name
        if name in _CELLS:
            return _CELLS[name](row)
        if self.metric.unit is FACTOR:
            return speed(row, name)
        value = getattr(row, name)
        return value if isinstance(value, str) else self.metric.text(value)


_CELLS: Mapping[str, Callable[[SummaryRow], TableCell | str]] = {
    "guarantee": guarantee_label,
    "quality": quality,
    "acceptance_length": step_length,
}
"""Cells that depend on other columns of the row: brackets, and checked guarantees."""


def main_columns(metrics: Mapping[str, Metric]) -> dict[str, Column]:
    """Return the columns of the main table by heading, in the order of their ranks."""
    columns = [Column(each, each.heading) for each in metrics.values() if each.heading is not None]
    return {c.text: c for c in sorted(columns, key=lambda column: column.heading.rank)}


COLUMNS: Mapping[str, Column] = main_columns(METRICS)
"""The main table of every report, by heading; a narrow terminal drops columns from the right."""
KEPT = list(COLUMNS)[:3]
"""Columns of every table: the decoder, its guarantee and its speed-up."""
_EMPTY = (UNKNOWN, TableCell(UNKNOWN))


def headline(summary: pd.DataFrame, verdict: str, model: str) -> Table:
    """Make the table of every decoder's main numbers, without columns that no decoder fills."""
    note = (
        f"Speed-up: geometric mean over prompts of {over(summary)} time / decoder time per token, "
        "paired, from request start to last token (decode: from the first token on); median "
        f"over the repeats of a prompt; bold if the interval excludes 1 and the speed-up exceeds "
        "the A/A floor; 'Speed-up by estimator' has other estimators. Guarantee: what a decoder "
        "claims about its answers: the same tokens as ar, tokens of the same distribution, or "
        "nothing (lossy); not verified: its tokens differ from ar's, and rounding is not shown to "
        "explain it. Calls are target calls; calls per step exclude the prefill. Tokens per "
        "step include the target's own token, are in brackets if nothing verifies them, and "
        "compare only decoders with as many calls per step. Counters and times are pooled "
        f"(sum / sum). {LEVEL} intervals, over conversations: t for speed-ups, jackknife for "
        f"tokens per step. {SESSIONS} {entropy_sentence(summary)} {bases(summary)}. "
        f"Model: {model}. Verdict of the run: {verdict}."
    )
    rows = ranked_rows(summary)
    columns: Columns = {
        heading: column.cell
        for heading, column in COLUMNS.items()
        if heading in KEPT or any(column.cell(row) not in _EMPTY for row in rows)
    }
    folded = frozenset(name for name in columns if not COLUMNS[name].heading.first)
    return replace(Table.of("All families", note, columns, rows), folded=folded)


def ranked_rows(summary: pd.DataFrame) -> list[SummaryRow]:
    """Return the rows over all families: the baseline's first, others by guarantee and speed."""
    return sorted(
        summary_rows(summary, ALL),
        key=lambda r: (r.decoder != r.over, guarantee_rank(r.guarantee), -(r.speedup or 0.0)),
    )


def bases(summary: pd.DataFrame) -> str:
    """Describe the samples of all rows, each with its decoders if there are several."""
    sharing: dict[str, list[str]] = {}
    for row in summary_rows(summary, ALL):
        sharing.setdefault(basis(row), []).append(row.decoder)
    several = len(sharing) > 1
    each = [f"{', '.join(names)}: {text}" if several else text for text, names in sharing.items()]
    return "; ".join(each)


def basis(row: SummaryRow) -> str:
    """Describe the sample of a row's speed-up: n, repeats, clusters, and omitted pairs."""
    grouped = is_number(row.batch_size) and row.batch_size != 1
    noun, of = ("group", " of prompts") if grouped else ("prompt", "")
    if not row.pairs:
        return f"n = 0: no {noun}{of} was timed with {row.over}"
    repeats, clusters = counted(row.repeats or 0, "repeat"), counted(row.clusters or 0, "cluster")
    text = f"n = {counted(row.pairs, noun)}{of} x {repeats} in {clusters}"
    if row.pairs_dropped:
        text += f", {counted(row.pairs_dropped, 'pair')} dropped for errors"
    if row.pairs_decode not in (None, row.pairs) and not grouped:
        num, rest = (row.pairs_decode, "the others") if row.pairs_decode else ("none", "all")
        text += f", {num} for the decode speed-up ({rest} ended in their first step)"
    if row.clusters == 1:
        one = "group of prompts" if grouped else "conversation"
        text += f", no interval from one {one} (raise --limit)"
    return text


def entropy_sentence(summary: pd.DataFrame) -> str:
    """State the mean entropy of ar's next token, which shows how easy drafting is."""
    rows = [row for row in summary_rows(summary, ALL) if row.decoder == BASELINE]
    if not rows:
        return ""
    entropy = rows[0].base_entropy
    if entropy is None:
        why = "" if rows[0].quality_prompts else " (no quality pass)"
        return f"The entropy of ar's next token was not measured{why}."
    ease = "; the text is nearly determined and easy to draft" if entropy < DETERMINED else ""
    return f"The mean entropy of ar's next token along its answers is {entropy:.3g} nats{ease}."


def floor_sentence(floor: Estimate, name: str) -> str:
    """State the A/A noise floor of the baseline `name`."""
    if floor.value is None:
        why = f"no answers of {name} and its second arm can be compared"
        return f"A/A noise floor: unknown ({why})."
    return (
        f"A/A noise floor: {name} against a second {name} measures {estimated(floor)}, "
        f"n = {floor.num}; a difference of this size is noise."
    )
