"""Make the table of a paper at a venue: booktabs, siunitx columns, intervals on the right.

Each run has a group of rows, under its name if there are several runs. In a venue with two columns
the table spans both. The user chooses columns, names of decoders, and bold print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template
from typing import Literal, NamedTuple

from bench.errors import UsageError, did_you_mean
from bench.extras.together.runs import NamedRun
from bench.records.plan import NO_GUARANTEE, NOT_VERIFIED, WRONG
from bench.report.tables.conclusion import not_slower
from bench.report.tables.table import is_unverified
from bench.stats.metric import Paper
from bench.stats.metrics import INTERVALS, METRICS, SummaryRow, summary_rows
from bench.stats.summary import ALL
from bench.text import UNKNOWN
from bench.text import latex as escaped

STEPS, _CALLS = "acceptance_length", "calls_per_step"
_BRACKETS = str.maketrans({"(": "{(}", ")": "{)}"})
"""Keeps siunitx from reading brackets as an uncertainty."""
SPEEDUPS = ("speedup", "speedup_decode")
"""Columns that are never printed without their interval."""


class Venue(NamedTuple):
    """Hold a venue: the width of a text column in inches, and whether a page has two columns."""

    width: float
    two_columns: bool


VENUES: Mapping[str, Venue] = {
    "icml": Venue(3.25, two_columns=True),
    "acl": Venue(3.03, two_columns=True),
    "neurips": Venue(5.5, two_columns=False),
    "iclr": Venue(5.5, two_columns=False),
    "tmlr": Venue(6.5, two_columns=False),
    "arxiv": Venue(6.5, two_columns=False),
}
"""The venues of ``--venue``."""


def packaged(name: str) -> str:
    """Return the text of a file of this folder."""
    return (files("bench.extras.paper") / name).read_text(encoding="utf-8")


COLUMNS: Mapping[str, Paper] = {
    name: each.paper for name, each in METRICS.items() if each.paper is not None
}
"""The columns of ``--columns``."""
USUAL = (
    *("speedup", "tokens_per_call", "acceptance_length", "calls_per_step"),
    *("time_per_token_s", "quality"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperLayout:
    """Hold a paper's choices. `columns` None stands for the usual columns."""

    venue: str
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    bold: Literal["best", "none"] = "best"


def parse_layout(
    venue: str, labels: Sequence[str], columns: str | None, bold: Literal["best", "none"]
) -> PaperLayout:
    """Parse a paper's choices (exit 2 if a label or column is malformed).

    Args:
        venue: a name of `VENUES`.
        labels: NAME=TEXT, the text to print for a decoder or run.
        columns: comma-separated names of `COLUMNS`; None: the usual columns.
        bold: whether the best numbers of a column are bold.
    """
    named = [label.partition("=") for label in labels]
    for label, (name, _, text) in zip(labels, named, strict=True):
        if not (name and text.strip()):
            raise UsageError(f"--label {label}: write NAME=TEXT")
    names = [name.strip() for name in columns.split(",")] if columns is not None else None
    for name in names or ():
        if name not in COLUMNS:
            raise UsageError(f"no column {name!r}; {did_you_mean(name, COLUMNS)}")
    return PaperLayout(
        venue=venue,
        labels={name: text.strip() for name, _, text in named},
        columns=tuple(dict.fromkeys(names)) if names else None,
        bold=bold,
    )


class Entry(NamedTuple):
    """Hold one printed number of the table, with its interval and a flag for bold."""

    text: str
    interval: str = ""
    bold: bool = False


class TableGrid(NamedTuple):
    """Hold entries by run and row, the decoder's name first. `spread` columns have intervals."""

    columns: tuple[str, ...]
    groups: list[tuple[str, list[list[Entry]]]]
    spread: frozenset[str]

    def entries(self, column: str) -> list[Entry]:
        """Return all entries of a column."""
        index = 1 + self.columns.index(column)
        return [row[index] for _, rows in self.groups for row in rows]

    def digits(self, column: str) -> str:
        """Return the maximum digits before and after the point, in brackets if an entry is."""
        texts = [entry.text for entry in self.entries(column) if entry.text != UNKNOWN]
        parts = [tuple(map(len, text.strip("()").partition("."))) for text in texts] or [(1, 0, 0)]
        digits = f"{max(before for before, _, _ in parts)}.{max(after for *_, after in parts)}"
        return f"({digits})" if any("(" in text for text in texts) else digits


def fill_grid(
    members: Sequence[NamedRun], layout: PaperLayout, columns: Sequence[str]
) -> TableGrid:
    """Return the table over all families, with the best entries per run and column in bold, if any.

    The best entry has the best printed value among decoders that guarantee something, including
    ar. Equal printed values are all bold, unless all entries are equal. A time is bold only if its
    decoder is shown to be the fastest, a quality only if its interval is above all others, tokens
    per step only if all decoders have as many calls per step.
    """
    groups = []
    for member in members:
        rows = summary_rows(member.summary, ALL)
        best = {
            name: _best(member, rows, name) if layout.bold == "best" else None for name in columns
        }
        entries = []
        for row in rows:
            name = layout.labels.get(row.decoder, row.decoder)
            name += f" ({WRONG})" * (row.guarantee == WRONG)
            entries.append([Entry(name), *(_entry(row, c, best[c]) for c in columns)])
        groups.append((member.label, entries))
    grid = TableGrid(tuple(columns), groups, frozenset())
    spread = {name for name in columns if any(entry.interval for entry in grid.entries(name))}
    return grid._replace(spread=frozenset(spread))


def _entry(row: SummaryRow, column: str, best: str | None) -> Entry:
    ends, text = "", _text(row, column)
    spreads = column in INTERVALS and (column not in SPEEDUPS or row.decoder != row.over)
    if spreads and None not in [row.value(f"{column}_{end}") for end in ("low", "high")]:
        ends = f"[{_text(row, column, '_low')}, {_text(row, column, '_high')}]"
    bold = text == best and eligible(row)
    if column == STEPS and text != UNKNOWN and is_unverified(row):
        text = f"({text})"
    return Entry(text, ends, bold)


def _text(row: SummaryRow, column: str, end: str = "") -> str:
    """Return a value, or an end of its interval, as printed. Shares have no unit."""
    return METRICS[column].text(row.value(f"{column}{end}"), COLUMNS[column].spec)


def _best(member: NamedRun, rows: Sequence[SummaryRow], column: str) -> str | None:
    candidates = [row for row in rows if eligible(row) and row.value(column) is not None]
    metric = METRICS[column]
    choose = max if metric.better == "more" else min
    if metric.better == "none" or len({_text(row, column) for row in candidates}) < 2:
        return None
    if column == STEPS and len({_text(row, _CALLS) for row in candidates}) > 1:
        return None
    best = choose(candidates, key=lambda row: row.value(column) or 0.0)
    rest = [row for row in candidates if row is not best]
    low, highs = best.quality_low, [other.quality_high for other in rest]
    if column == "quality" and any(low is None or high is None or low <= high for high in highs):
        return None
    if metric.unit.is_time and not_slower(best, rest, member.pairs, member.floor):
        return None
    return _text(best, column)


def eligible(row: SummaryRow) -> bool:
    """Return whether a decoder can be called the best, i.e. whether it guarantees something."""
    return row.decoder == row.over or row.guarantee not in (None, NOT_VERIFIED, NO_GUARANTEE, WRONG)


def latex(
    members: Sequence[NamedRun], layout: PaperLayout, caption: Callable[[TableGrid], str]
) -> str:
    """Return the table in its environment, below its caption."""
    columns = layout.columns
    if columns is None:  # times of several runs are not comparable
        every = [row for member in members for row in summary_rows(member.summary, ALL)]
        usual = (name for name in USUAL if any(row.value(name) is not None for row in every))
        columns = tuple(name for name in usual if len(members) == 1 or not name.endswith("_s"))
    elif STEPS in columns and _CALLS not in columns:  # tokens per step need calls per step
        place = 1 + columns.index(STEPS)
        columns = (*columns[:place], _CALLS, *columns[place:])
    grid = fill_grid(members, layout, columns)
    lines, wide = [], 1 + len(grid.columns) + len(grid.spread)
    for label, rows in grid.groups:
        lines.append(r"\midrule")
        if len(grid.groups) > 1:
            lines.append(rf"\multicolumn{{{wide}}}{{@{{}}l}}{{\emph{{{escaped(label)}}}}} \\")
        lines += [" & ".join(_cells(row, grid)) + r" \\" for row in rows]
    shapes, headings = "", ["Decoder"]
    for column in grid.columns:  # numbers aligned at their points, intervals to their right
        spread, heading = column in grid.spread, escaped(COLUMNS[column].heading)
        digits = grid.digits(column).translate(_BRACKETS)
        shapes += f"S[table-format={digits}]" + "@{~}l" * spread
        headings.append(rf"\multicolumn{{2}}{{c}}{{{heading}}}" if spread else f"{{{heading}}}")
    return Template(packaged("table.tex")).substitute(
        star="*" if VENUES[layout.venue].two_columns else "",
        caption=caption(grid),
        label="decoders",
        shapes=shapes,
        headings=" & ".join(headings),
        body="\n".join(lines),
    )


def _cells(row: Sequence[Entry], grid: TableGrid) -> list[str]:
    cells = ["{}" * row[0].text.startswith(("[", "*")) + escaped(row[0].text)]  # not \\'s argument
    for entry, column in zip(row[1:], grid.columns, strict=True):
        text = "{--}" if entry.text == UNKNOWN else entry.text.translate(_BRACKETS)
        cells.append(rf"\bfseries {text}" if entry.bold else text)
        if column in grid.spread:
            cells.append(entry.interval)
    return cells
