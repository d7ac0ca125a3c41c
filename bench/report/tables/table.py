"""Make tables of text cells from columns, rendered as Markdown, HTML or rich.

A table's note states the estimand and n; the main table's note adds the run's verdict. Unknown
values are "-". A speed-up is bold only if its interval excludes 1 and it exceeds the A/A floor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.records.plan import BASELINE, NO_GUARANTEE, SAME_DISTRIBUTION, WRONG
from bench.stats.intervals import Estimate
from bench.stats.metrics import SummaryRow, summary_rows
from bench.text import UNKNOWN, csv_value, factor, markdown, name_lines, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_NUMBER = re.compile(r"[-+(\[]?\d")
_LONGEST_NAME = 24
"""Width of the first column on a terminal; longer names are folded."""
_OF = "over prompts, this session (bench pool covers sessions)"
SESSIONS = f"Intervals: {_OF}."
"""Note below every table with intervals of speed-ups; docs/metrics.md has figures."""
EXPLORATORY = f"Exploratory intervals: {_OF}, not adjusted for the number of comparisons."
"""Note below all comparisons except the run's primary comparison, instead of `SESSIONS`."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """Hold one cell of a table. A `bad` cell is red where colours are available."""

    text: str
    bold: bool = False
    bad: bool = False


Columns = dict[str, Callable[[Any], TableCell | str]]
"""Headings, each with a function that makes the cell from the row's object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Hold a titled table, whose first column names the row.

    `note` states estimand and n. A page shows `folded` columns only on demand.
    """

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    folded: frozenset[str] = frozenset()

    @classmethod
    def of(cls, title: str, note: str, columns: Columns, rows: Iterable[Any]) -> Table:
        """Make a table with one row per object.

        Args:
            title: heading above the table.
            note: text below it: estimand and n.
            columns: makes the cells of an object; the first names it.
            rows: the objects, from top to bottom.
        """
        contents = [[make(row) for make in columns.values()] for row in rows]
        cells = tuple(
            tuple(TableCell(c) if isinstance(c, str) else c for c in row) for row in contents
        )
        return cls(title=title, note=note, headings=tuple(columns), rows=cells)

    @property
    def words(self) -> tuple[bool, ...]:
        """One flag per column: True for words (left-aligned), False for numbers (right-aligned)."""
        texts = [[row[i].text for row in self.rows] for i in range(len(self.headings))]
        values = [[text for text in column if text not in (UNKNOWN, "=")] for column in texts]
        are_words = [bool(column) and not any(map(_NUMBER.match, column)) for column in values]
        return (True, *are_words[1:])

    def to_markdown(self) -> str:
        """Return the table (not its title or note) as GitHub-flavoured Markdown."""
        lines = [
            tuple(map(markdown, self.headings)),
            tuple("---" if left else "---:" for left in self.words),
            *(
                tuple(f"**{markdown(c.text)}**" if c.bold else markdown(c.text) for c in row)
                for row in self.rows
            ),
        ]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def to_rich(
        self,
        headings: Mapping[str, str],
        style: Callable[[Sequence[TableCell], int], str] | None = None,
    ) -> RichTable:
        """Return chosen columns for a terminal.

        Args:
            headings: headings of the chosen columns, each with its text on the terminal.
            style: style of a row's cell at an index; None: bad cells red, bold cells bold.
        """
        from rich.table import Table as RichTable
        from rich.text import Text

        printed = RichTable(box=None, pad_edge=False, header_style="bold")
        indices, left = [self.headings.index(heading) for heading in headings], self.words
        for index, text in zip(indices, headings.values(), strict=True):
            lines = [*text.splitlines(), *(row[index].text for row in self.rows)]
            wrapped = [word for line in lines for word in line.split()] if index else lines
            printed.add_column(
                Text(text),
                justify="left" if left[index] else "right",
                vertical="bottom",
                overflow="fold",
                min_width=max(map(len, wrapped if left[index] else lines)),
                max_width=None if index else _LONGEST_NAME,
                no_wrap=not left[index],
            )
        for row in self.rows:
            styles = [(style or _style)(row, index) for index in indices]
            texts = [row[index].text for index in indices]
            texts[0] = "\n".join(name_lines(texts[0], _LONGEST_NAME))
            printed.add_row(*(Text(t, style=s) for t, s in zip(texts, styles, strict=True)))
        return printed

    def to_blocks(
        self,
        console: Console,
        headings: Mapping[str, str],
        style: Callable[[Sequence[TableCell], int], str] | None = None,
        expendable: Sequence[str] | None = None,
    ) -> list[RichTable]:
        """Split the table into blocks of columns, each of which names its rows.

        Args:
            console: its width limits each block.
            headings: as of `to_rich`.
            style: likewise.
            expendable: columns that may leave the first block, in this order; None: all but the
                first column, from the last on.
        """
        from rich.measure import Measurement

        wide = console.options.update(width=1000)

        def block(names: Sequence[str]) -> RichTable:
            return self.to_rich({name: headings[name] for name in names}, style)

        def fits(names: Sequence[str]) -> bool:
            return Measurement.get(console, wide, block(names)).maximum <= console.width

        shown = list(headings)
        for name in shown[:0:-1] if expendable is None else expendable:
            if fits(shown):
                break
            shown.remove(name)
        blocks, left = [block(shown)], [name for name in headings if name not in shown]
        while left:
            names = [next(iter(headings)), left.pop(0)]
            while left and fits([*names, left[0]]):
                names.append(left.pop(0))
            blocks.append(block(names))
        return blocks

    def bare(self, headings: Collection[str] | None = None) -> Table:
        """Return the table without intervals in the named columns (None: in all columns)."""
        cut = [headings is None or heading in headings for heading in self.headings]
        rows = [
            tuple(
                replace(c, text=c.text.split(" [")[0]) if short else c
                for c, short in zip(row, cut, strict=True)
            )
            for row in self.rows
        ]
        return replace(self, rows=tuple(rows))


def _style(row: Sequence[TableCell], index: int) -> str:
    return "bold red" if row[index].bad else "bold" * row[index].bold


def mark_wrong(table: Table, wrong: Collection[str]) -> Table:
    """Mark the rows of WRONG decoders: WRONG after the name, all cells red, none bold."""
    names = {
        name: f"{cell} ({WRONG}){name.removeprefix(cell)}"
        for cell in wrong
        for name in (cell, f"{cell} (this run)")
    }
    rows = [
        row
        if row[0].text not in names
        else tuple(
            TableCell(text, bad=True) for text in (names[row[0].text], *(c.text for c in row[1:]))
        )
        for row in table.rows
    ]
    return replace(table, rows=tuple(rows))


def without_wrong(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the summary without decoders that wrongly claim to be lossless."""
    return summary[summary["guarantee"] != WRONG]


def is_number(value: object) -> bool:
    """Return whether a summary cell holds a number."""
    return value is not None and value is not pd.NA and not math.isnan(float(str(value)))


def number(value: object, spec: str = ".2f", scale: float = 1.0) -> str:
    """Format a number times `scale` by `spec`, or "-"."""
    return f"{csv_value(float(str(value))) * scale:{spec}}" if is_number(value) else UNKNOWN


def interval(low: object, high: object, spec: str = ".2f") -> str:
    """Format an interval, or "-"."""
    ends = f"[{number(low, spec)}, {number(high, spec)}]"
    return ends if is_number(low) and is_number(high) else UNKNOWN


def with_interval(text: str, ends: str) -> str:
    """Append an interval to a text, if the interval is known."""
    return text if ends == UNKNOWN else f"{text} {ends}"


def estimated(estimate: Estimate) -> str:
    """Format a factor with its interval, if it has one."""
    return with_interval(factor(estimate.value), interval(estimate.low, estimate.high))


def over(summary: pd.DataFrame) -> str:
    """Return the cell to which a summary's speed-ups refer."""
    return next((row.over for row in summary_rows(summary, None)), BASELINE)


def against_floor(estimate: Estimate, floor: Estimate) -> TableCell:
    """Format a speed-up, bold if its interval excludes 1 and it exceeds the A/A floor."""
    return TableCell(estimated(estimate), bold=estimate.exceeds(floor))


def speed(row: SummaryRow, column: str = "speedup") -> TableCell:
    """Format a row's speed-up with its interval (the baseline has none)."""
    estimate = row.estimate(column)
    if row.decoder == row.over:
        return TableCell(factor(estimate.value))
    return against_floor(estimate, row.floor)


def quality(row: SummaryRow) -> TableCell:
    """Format a quality in per cent with its interval, or in brackets if it cannot show a loss."""
    if row.quality_tells is False and row.quality is not None:
        return TableCell(f"({percent(row.quality, '')})")
    low, high = (percent(end, "") for end in (row.quality_low, row.quality_high))
    ends = UNKNOWN if UNKNOWN in (low, high) else f"[{low}, {high}]"
    return TableCell(with_interval(percent(row.quality, ""), ends))


def is_unverified(row: SummaryRow) -> bool:
    """Return whether nothing verified the tokens of a decoder's steps."""
    return row.guarantee == NO_GUARANTEE and row.acceptance_rate is None


def step_length(row: SummaryRow) -> TableCell:
    """Format tokens per step with their interval, in brackets if the tokens were not verified."""
    length = number(row.acceptance_length)
    ends = interval(row.acceptance_length_low, row.acceptance_length_high)
    text = f"({length})" if is_unverified(row) and length != UNKNOWN else length
    return TableCell(with_interval(text, ends))


def guarantee_label(row: SummaryRow) -> str:
    """Return the guarantee of a decoder's answers, or "-".

    The run itself compares tokens with the baseline's. A distribution is verified by the checks
    before the run, or only claimed; runs of older versions do not record which.
    """
    if row.guarantee == SAME_DISTRIBUTION and row.checked is not None:
        return f"{row.guarantee} ({row.checked})"
    return row.guarantee or UNKNOWN
