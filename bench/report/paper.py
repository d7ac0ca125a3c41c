r"""`bench paper`: a run's figure and table as a paper needs them, from its folder alone.

One PDF at column width with embedded TrueType fonts and no title (the caption says it), its numbers
as CSV, and one booktabs table to ``\input``, set so that it fits the venue's column. The same
records give the same bytes. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from bench.errors import BenchError, Exit, did_you_mean
from bench.records.files import write_files
from bench.records.plan import BASELINE, NO_GUARANTEE, WRONG
from bench.report import tables
from bench.report.tables import UNKNOWN, known, number
from bench.report.together import members_of, model_of, stored_floor
from bench.stats.intervals import Estimate
from bench.stats.side import Side
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.stats.validity import VALID
from bench.text import latex as escaped

WIDTHS: Mapping[str, float] = {
    "icml": 3.25,
    "acl": 3.03,
    "neurips": 5.5,
    "iclr": 5.5,
    "tmlr": 6.5,
}
"""Inches of a text column, by venue; docs/reporting.md says whose they are."""
_POINTS = 72.27
"""TeX's points in an inch."""
_SIZES = ((9.0, 6.0), (9.0, 4.0), (8.0, 4.0), (8.0, 3.0), (7.0, 3.0))
"""Type and half the space between columns, in points: the first that fits is taken."""
_SPARE = 0.98
"""How much of the column a table may fill: fonts called Times are not all equally wide."""


class Column(NamedTuple):
    """A number of the summary as a column: its heading, the caption's words, its format."""

    heading: str
    caption: str
    spec: str = ".2f"
    scale: float = 1.0
    unit: str = ""
    best: Literal["most", "least"] = "most"


COLUMNS: Mapping[str, Column] = {
    "speedup": Column(
        "Speed-up",
        "speed-up over autoregressive decoding (geometric mean over prompts of paired end-to-end "
        "time per token, 95\\,\\% t-interval clustered by conversation)",
        unit="x",
    ),
    "speedup_decode": Column("Decode", "speed-up from the first token on", unit="x"),
    "tokens_per_call": Column("Tok./call", "emitted tokens per target call"),
    "acceptance_length": Column("Tok./step", "emitted tokens per step after prefill"),
    "acceptance_rate": Column("Acc.", "accepted drafts in per cent", ".1f", 100),
    "rows_per_token": Column("Rows/tok.", "target rows per emitted token", best="least"),
    "ttft_s": Column("TTFT", "ms to the first token", ".1f", 1e3, best="least"),
    "time_per_token_s": Column("ms/tok.", "ms per emitted token", ".2f", 1e3, best="least"),
    "tokens_per_s": Column("Tok./s", "emitted tokens per second", ",.0f"),
    "peak_memory_bytes": Column("MB", "peak memory in MB", ",.0f", 1e-6, best="least"),
    "quality": Column("Quality", "quality in per cent", ".1f", 100),
    "identical_to_ar": Column("Same", "answers identical to AR's in per cent", ".1f", 100),
}
"""What ``--columns`` may name."""
_USUAL = ("speedup", "tokens_per_call", "acceptance_length", "time_per_token_s", "quality")
_EXPENDABLE = ("time_per_token_s", "acceptance_length")
"""What a narrow column does without, in this order, rather than in small type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a paper wants: `columns` None are the usual ones, as many as fit in readable type."""

    venue: str
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    bold: Literal["best", "none"] = "best"


def parse_layout(
    venue: str, labels: Sequence[str], columns: str | None, bold: Literal["best", "none"]
) -> Layout:
    """A layout from what was typed: labels as DECODER=TEXT, columns with commas between them.

    Raises:
        BenchError: exit 2 for a label of another form and a column that is none.
    """
    named = [label.partition("=") for label in labels]
    for label, (name, _, text) in zip(labels, named, strict=True):
        if not (name and text.strip()):
            raise BenchError(f"--label {label}: write DECODER=TEXT", Exit.USAGE)
    chosen = [name.strip() for name in columns.split(",")] if columns is not None else None
    for name in chosen or ():
        if name not in COLUMNS:
            raise BenchError(f"no column {name!r}; {did_you_mean(name, COLUMNS)}", Exit.USAGE)
    return Layout(
        venue=venue,
        labels={name: text.strip() for name, _, text in named},
        columns=tuple(dict.fromkeys(chosen)) if chosen else None,
        bold=bold,
    )


def write_paper(
    side: Side, folder: Path, layout: Layout, note: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write ``speedup.pdf``, ``speedup.csv`` and ``main.tex`` into `folder`; returns them.

    `note` is told what was left out for want of room.

    Raises:
        BenchError: where no speed-up was measured (exit 5), a label is for no decoder of the
            run or the columns asked for do not fit (2), or it cannot be written (1).
    """
    from bench.report import dots, figures  # matplotlib: only where something is drawn

    (member,) = members_of([side])
    summary = member.summary
    for name in layout.labels:
        if name not in (there := list(dict.fromkeys(summary["decoder"]))):
            line = f"--label {name}: {side.name} has no such decoder; {did_you_mean(name, there)}"
            raise BenchError(line, Exit.USAGE)
    drawn = dots.dots_figure([member], dots.SPEEDUP, WIDTHS[layout.venue], layout.labels)
    if drawn is None:
        raise BenchError(f"{side.name} measured no speed-up over ar", Exit.UNAVAILABLE)
    figure, data = drawn
    made = {
        "speedup.pdf": figures.render(figure)["pdf"],
        "speedup.csv": data.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode(),
        "main.tex": latex(side, summary, layout, note).encode(),
    }
    return write_files(folder, made)


class Entry(NamedTuple):
    """One entry of the table: what is printed, in bold or not."""

    text: str
    bold: bool = False


_Grid = list[list[Entry]]


def grid(summary: pd.DataFrame, layout: Layout, columns: Sequence[str]) -> _Grid:
    """Heading and rows of the table over all families; the best of a column is bold, or nothing.

    The best is what prints best among decoders that guarantee something of their answers, ar among
    them; equal prints are all best, unless all are equal.
    """
    rows = rows_of(summary, ALL)
    made = [[Entry("Decoder"), *(Entry(COLUMNS[name].heading) for name in columns)]]
    best = {name: _best(rows, name) if layout.bold == "best" else None for name in columns}
    for row in rows:
        name = row.decoder
        cells = [Entry(_name(row, layout))]
        for column in columns:
            text = _value(row, column)
            bold = text == best[column] and _eligible(row)
            ends = UNKNOWN
            if column.startswith("speedup") and name != BASELINE:
                ends = tables.interval(row.value(f"{column}_low"), row.value(f"{column}_high"))
            cells.append(Entry(text if ends == UNKNOWN else f"{text} {ends}", bold))
        made.append(cells)
    return made


def _value(row: SummaryRow, column: str) -> str:
    kind = COLUMNS[column]
    return number(row.value(column), kind.spec, kind.scale, kind.unit)


def _best(rows: Sequence[SummaryRow], column: str) -> str | None:
    eligible = [row for row in rows if _eligible(row) and row.value(column) is not None]
    choose = max if COLUMNS[column].best == "most" else min
    if len({_value(row, column) for row in eligible}) < 2:
        return None
    return _value(choose(eligible, key=lambda row: row.value(column) or 0.0), column)


def _eligible(row: SummaryRow) -> bool:
    return row.guarantee not in (NO_GUARANTEE, WRONG)


def _name(row: SummaryRow, layout: Layout) -> str:
    """A decoder as the paper calls it, one that is wrong named so."""
    name = layout.labels.get(row.decoder, row.decoder)
    return f"{name} ({WRONG})" if row.guarantee == WRONG else name


def _fitted(
    summary: pd.DataFrame, layout: Layout
) -> tuple[_Grid, tuple[str, ...], tuple[float, float]]:
    """The table, its columns, and the type and space in which it fits the venue's column."""
    room = WIDTHS[layout.venue] * _POINTS * _SPARE
    choices = [layout.columns or _USUAL]
    if layout.columns is None:
        for name in _EXPENDABLE:
            choices.append(tuple(column for column in choices[-1] if column != name))
    readable, every = _SIZES[:-1], _SIZES
    for sizes in (readable, every):
        for columns in choices:
            made = grid(summary, layout, columns)
            for size, space in sizes:
                if width_of(made, size, space) <= room:
                    return made, columns, (size, space)
    least = width_of(made, *_SIZES[-1])
    raise BenchError(
        f"the table takes {least:.0f} pt in its smallest type, and a column of {layout.venue} has "
        f"{room:.0f}: name fewer --columns ({', '.join(columns)}), or shorter a --label",
        Exit.USAGE,
    )


def width_of(made: _Grid, size: float, space: float) -> float:
    """Width of the table in TeX's points, set in Times."""
    from bench.report.figures import text_width

    widest = [
        max(text_width(entry.text, size, bold=entry.bold) for entry in column)
        for column in zip(*made, strict=True)
    ]
    return sum(widest) + 2 * space * (len(widest) - 1)


def latex(
    side: Side, summary: pd.DataFrame, layout: Layout, note: Callable[[str], None] = lambda _: None
) -> str:
    """The table in its environment, its caption above it; it fits the venue's column."""
    made, columns, (size, space) = _fitted(summary, layout)
    left_out = [name for name in layout.columns or _USUAL if name not in columns]
    if left_out:
        note(f"left out, as a column of {layout.venue} is narrow: {', '.join(left_out)}")
    heading, *rows = [" & ".join(_entry(entry) for entry in line) + r" \\" for line in made]
    lines = [
        f"% {layout.venue}: fits {WIDTHS[layout.venue] * _POINTS:.1f} pt in Times; "
        r"needs \usepackage{booktabs}",
        r"\begin{table}[t]",
        rf"\caption{{{_caption(side, summary, layout, columns)}}}",
        r"\label{tab:decoders}",
        r"\medskip",
        r"\centering",
        rf"\fontsize{{{size:g}}}{{{1.2 * size:g}}}\selectfont",
        rf"\setlength{{\tabcolsep}}{{{space:g}pt}}",
        rf"\begin{{tabular}}{{@{{}}l{'r' * len(columns)}@{{}}}}",
        r"\toprule",
        heading,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _entry(entry: Entry) -> str:
    text = escaped(entry.text)
    return rf"\textbf{{{text}}}" if entry.bold else text


def _caption(side: Side, summary: pd.DataFrame, layout: Layout, columns: Sequence[str]) -> str:
    """What is estimated, with which model, from what, on what."""
    rows = rows_of(summary, ALL)
    counts = f"{max(row.prompts or 0 for row in rows)} prompts, "
    counts += f"{max(row.repeats or 0 for row in rows)} repeats"
    estimated = "; ".join(COLUMNS[name].caption for name in columns)
    bold = ""
    if layout.bold == "best":
        all_eligible = all(map(_eligible, rows))
        bold = " Bold: the best" + ("." if all_eligible else " of those that are not lossy.")
    return (
        f"Decoders of {escaped(model_of(side))}: {estimated}.{bold} {counts}{_setting(side)}."
        f"{_floor(stored_floor(summary))}{_qualified(side, summary, layout)}"
    )


def _floor(floor: Estimate) -> str:
    if floor.value is None:
        return ""
    ends = "" if floor.low is None else f" {tables.interval(floor.low, floor.high)}"
    return f" AR against a second AR in the same run: {floor.value:.2f}x{ends}."


def _qualified(side: Side, summary: pd.DataFrame, layout: Layout) -> str:
    """What a reader must know of decoders without a guarantee, and of a run that is not VALID."""
    lossy, wrong = (
        [
            layout.labels.get(row.decoder, row.decoder)
            for row in rows_of(summary, ALL)
            if row.guarantee == kind
        ]
        for kind in (NO_GUARANTEE, WRONG)
    )
    text = f" Lossy, without any guarantee: {', '.join(lossy)}." if lossy else ""
    if wrong:
        text += f" {WRONG}, and left out of the figure: {', '.join(wrong)}."
    if side.verdict not in (VALID, WRONG):
        text += f" The run is {side.verdict}."
    return f" {escaped(text)}" if text else ""


def _setting(side: Side) -> str:
    """Temperature, batch size, dtype and machine, as far as they are known."""
    parts = {
        "temperature": side.config.get("temperature"),
        "batch size": side.config.get("batch_size"),
        "": side.config.get("dtype"),
        " ": side.env.gpu_name or side.env.machine.cpu,
    }
    known_parts = [f"{name} {value}".strip() for name, value in parts.items() if _is_known(value)]
    return "".join(f", {escaped(text)}" for text in known_parts)


def _is_known(value: object) -> bool:
    return isinstance(value, str) or known(value)
