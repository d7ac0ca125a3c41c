"""One number by decoder with its interval, a panel a run over one axis: for papers, for many runs.

The same records give the same figure. Colours are shared by all runs and figures of a set.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bench.records.plan import BASELINE
from bench.report.figures.canvas import Drawn, annotate_point, styled
from bench.report.figures.style import FAINT, GREY, INK, colours, interval_of, lossy, marker
from bench.report.tables.table import number, without_wrong
from bench.report.together import NamedRun, decoders_of
from bench.stats.summary import ALL
from bench.text import factor, percent

_ROW, _TITLE, _AXIS = 0.3, 0.2, 0.5
"""Inches of a decoder's row, of a panel's title and of the axis below all."""
_WRAPPED = 26


class Number(NamedTuple):
    """A number of the summary as a figure shows it; `neutral` is where a line says: no difference.

    With `accepted` the axis and rows say whose tokens nothing verifies.
    """

    column: str
    label: str
    text: Callable[[float | None], str] = number
    neutral: float | None = None
    share: bool = False


SPEEDUP = Number("speedup", "speed-up over ar", factor, 1.0)
TOKENS = Number("acceptance_length", "tokens per step after the first", neutral=1.0)
QUALITY = Number("quality", "quality", percent, share=True)


def dots_figure(
    members: Sequence[NamedRun],
    shown: Number,
    width: float,
    labels: Mapping[str, str] | None = None,
    size: float = 8,
) -> Drawn | None:
    """The number of every decoder that has it, those that guarantee nothing last and hollow.

    Decoders that claim to be lossless and are not are left out. None where nothing is left.

    Args:
        members: a panel each, with a title where there are several.
        shown: what is shown.
        width: of the figure, in inches.
        labels: names to print in the place of decoders' own.
        size: of the type, in points.
    """
    rows = [_rows(member, shown) for member in members]
    there = [(member, data) for member, data in zip(members, rows, strict=True) if len(data)]
    if not there:
        return None
    palette = colours(decoders_of(members))
    titled = len(members) > 1
    with styled(size):
        heights = [_ROW * len(data) + titled * _TITLE for _, data in there]
        figure = Figure(figsize=(width, sum(heights) + _AXIS), layout="constrained")
        grid = figure.subplots(
            len(there), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for axes, (member, data) in zip(grid[:, 0], there, strict=True):
            _draw(axes, data, shown, palette, labels or {}, size)
            if shown is SPEEDUP and member.floor.low is not None and member.floor.high is not None:
                axes.axvspan(member.floor.low, member.floor.high, color=GREY, alpha=0.35, lw=0)
            if titled:
                axes.set_title(member.label, fontsize=size)
        together = pd.concat([data for _, data in there])
        within = interval_of(together, shown.column, ", ")
        figure.supxlabel(f"{shown.label}{within}", fontsize=size)
        _scale(grid[-1, 0], together, shown)
        _make_room(figure, list(grid[:, 0]))
    runs = [data.assign(run=member.name) for member, data in there]
    named = pd.concat(runs, ignore_index=True).drop(columns="mark")
    return figure, named[["run", *(name for name in named if name != "run")]]


def _rows(member: NamedRun, shown: Number) -> pd.DataFrame:
    """The rows to draw, from the top: the largest first, lossy ones last."""
    summary = without_wrong(member.summary)
    marks = lossy(summary)
    ends = [f"{shown.column}_{end}" for end in ("low", "high")]
    chosen = summary.reindex(columns=["decoder", "family", shown.column, *ends, "guarantee"])
    data = chosen[chosen["family"] == ALL].drop(columns="family")
    if shown.neutral is not None:
        data = data[data["decoder"] != BASELINE]
    data = data.dropna(subset=[shown.column]).sort_values(
        shown.column, ascending=False, kind="stable"
    )
    data = data.assign(mark=data["decoder"].map(lambda name: marks.get(str(name), "")))
    return data.sort_values("mark", key=lambda marks: marks != "", kind="stable").reset_index(
        drop=True
    )


def _draw(
    axes: Axes,
    data: pd.DataFrame,
    shown: Number,
    palette: Mapping[str, str],
    labels: Mapping[str, str],
    size: float,
) -> None:
    names = []
    for y, row in enumerate(data.to_dict("records")):
        name, value = str(row["decoder"]), float(row[shown.column])
        low, high = (float(row[f"{shown.column}_{end}"]) for end in ("low", "high"))
        colour, hollow = palette[name], bool(row["mark"])
        if shown.neutral is not None:
            how = {"lw": 1, "ls": ":"} if hollow else {"lw": 5, "alpha": 0.3}
            axes.plot([shown.neutral, value], [y, y], color=colour, solid_capstyle="butt", **how)
        axes.plot([low, high], [y, y], color=colour, lw=1.8)
        axes.plot(value, y, ms=5.5, **marker(colour, hollow=hollow))
        ends = "" if math.isnan(low + high) else f" [{_text(low, shown)}, {_text(high, shown)}]"
        right = np.nanmax([value, high, shown.neutral or value])
        annotate_point(axes, f"{shown.text(value)}{ends}", (right, y), 5, size - 1)
        lines = textwrap.wrap(labels.get(name, name), _WRAPPED)
        mark = str(row["mark"]).split(",")[0] if shown is QUALITY else str(row["mark"])
        names.append("\n".join([*lines, *([mark] if mark else [])]))
    exact = int((data["mark"] == "").sum())
    if 0 < exact < len(data):
        axes.axhline(exact - 0.5, color=FAINT, lw=0.8, ls=(0, (4, 3)))
    if shown.neutral is not None:
        axes.axvline(shown.neutral, color=INK, lw=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelsize=size)
    axes.tick_params(axis="x", labelsize=size)
    axes.spines["left"].set_visible(False)


def _text(value: float, shown: Number) -> str:
    """An end of an interval, without a unit."""
    return percent(value, "") if shown.share else number(value)


def _scale(axes: Axes, data: pd.DataFrame, shown: Number) -> None:
    """An axis from a little below what is drawn, with ticks where something is.

    Right of the points is room for texts.
    """
    ends = data[[shown.column, f"{shown.column}_low", f"{shown.column}_high"]].to_numpy(float)
    values = [*ends[~np.isnan(ends)], *([] if shown.neutral is None else [shown.neutral])]
    low, high = min(values), max(values)
    span = max(high - low, 0.02)
    axes.set_xlim(low - 0.06 * span, low + 1.1 * span)
    if shown.share:
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low - 0.06 * span, high)
    room = 0.02 * span
    axes.set_xticks([tick for tick in ticks if low - 0.06 * span <= tick <= high + room])


def _make_room(figure: Figure, grid: Sequence[Axes]) -> None:
    """Move the right end of the axis until the texts beside points end within the figure."""
    texts = [text for axes in grid for text in axes.texts]
    for text in texts:
        text.set_in_layout(False)
    axes = grid[0]
    for _ in range(8):
        figure.draw_without_rendering()
        over = max(text.get_window_extent().x1 for text in texts)
        over += 0.02 * figure.dpi - figure.bbox.x1
        if over <= 0:
            return
        low, high = axes.get_xlim()
        room = max(axes.bbox.width - over, 0.2 * axes.bbox.width)
        axes.set_xlim(low, high + 1.1 * (high - low) * over / room)
