"""Draw dots with intervals and bars: one number by decoder for one or several runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bench.records.plan import BASELINE
from bench.report.figures.canvas import (
    WHOLE,
    Plot,
    draw_interval,
    max_end,
    name_rows,
    overall,
    styled,
)
from bench.report.figures.style import FAINT, GREY, INK, WIDTH, Look, colours, interval_note, lossy
from bench.report.findings import RunNumbers, ordered_decoders
from bench.report.tables.table import number, over, without_wrong
from bench.stats.intervals import Estimate
from bench.stats.summary import ALL
from bench.text import factor, name_lines, percent

_ROW = 0.042
"""Height of a decoder's row, in inches per point of font size."""
_LINE = 0.0165
"""Height of a line of a name, in inches per point of font size; a mark may follow below."""
_TITLE, _AXIS = 0.2, 0.5
"""Heights of a panel's title, and of the axis below all panels, in inches."""


class Number(NamedTuple):
    """Describe a summary column in figures, with a line at `neutral` for no difference."""

    column: str
    label: str
    text: Callable[[float | None], str] = number
    neutral: float | None = None
    share: bool = False

    @property
    def columns(self) -> list[str]:
        """Columns of the number and of the ends of its interval."""
        return [f"{self.column}{end}" for end in ("", "_low", "_high")]


SPEEDUP = Number("speedup", "speed-up over {base}", factor, 1.0)
TOKENS = Number("acceptance_length", "tokens per step after prefill", neutral=1.0)
QUALITY = Number("quality", "quality", percent, share=True)


def dots_figure(
    runs: Sequence[RunNumbers],
    metric: Number,
    width: float,
    labels: Mapping[str, str] = MappingProxyType({}),
    size: float = 8,
    palette: Mapping[str, str] | None = None,
) -> Plot | None:
    """Draw one number by decoder, a panel per run, without WRONG decoders.

    Lossy decoders are last and hollow.

    Args:
        runs: one per panel; panels have titles if there are several.
        metric: number to draw.
        width: width of the figure, in inches.
        labels: names to print instead of the decoders' names.
        size: font size, in points.
        palette: colours of the decoders; None: `colours` of the decoders of all runs.

    Returns:
        The figure and its data; None if no decoder has the number.
    """
    palette = palette or colours(ordered_decoders(runs))
    panels = [(run, data) for run in runs if len(data := _ranked(run.summary, metric))]
    if not panels:
        return None
    titled = len(runs) > 1
    heights = []
    for _, data in panels:
        num_lines = [len(name_lines(labels.get(name, name))) for name in data["decoder"]]
        rows = len(data) * max(_ROW, _LINE * (1 + max(num_lines)))  # as high as the longest name
        heights.append(rows * size + titled * _TITLE)
    together = pd.concat([data for _, data in panels])
    limit = max_end(together[metric.column])
    with styled(size):
        figure = Figure(figsize=(width, sum(heights) + _AXIS), layout="constrained")
        ratios = {"height_ratios": heights}
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw=ratios)
        for axes, (run, data) in zip(grid[:, 0], panels, strict=True):
            _draw(axes, data, metric, Look(palette, lossy(run.summary)), labels, size)
            if metric.column == SPEEDUP.column and run.floor.low and run.floor.high:
                ends = run.floor.low, min(run.floor.high, limit)
                axes.axvspan(*ends, color=GREY, alpha=0.35, lw=0)
            if titled:
                axes.set_title(run.label, fontsize=size)
        within = interval_note(together, metric.column, ", ")
        base = " or ".join(dict.fromkeys(labels.get(n := over(r.summary), n) for r, _ in panels))
        figure.supxlabel(metric.label.format(base=base) + within, fontsize=size)
        axis = grid[-1, 0].xaxis
        axis.set_major_locator(MaxNLocator(5, steps=WHOLE))
        if metric.share:
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
            axis.axes.set_xlim(np.clip(axis.get_view_interval(), 0, 1))
        elif axis.get_view_interval()[1] > limit:  # a band that goes on ends with the axis
            axis.axes.set_xlim(right=limit)
    named = [data.assign(run=run.name) for run, data in panels]
    return figure, pd.concat(named, ignore_index=True)[["run", *together.columns]]


def speedup_figure(summary: pd.DataFrame, floor: Estimate) -> Plot | None:
    """Draw speed-ups over the baseline with the A/A floor, fastest on top, lossy decoders last."""
    base = over(summary)
    label = "times as fast as {base}, end to end (geometric mean of prompts)"
    metric = SPEEDUP._replace(label=label)
    run, palette = RunNumbers(summary=summary, floor=floor), Look.of(summary).palette
    plot = dots_figure([run], metric, WIDTH, size=9, palette=palette)
    if plot is None:
        return None
    figure, data = plot
    figure.set_figheight(figure.get_figheight() + _TITLE)
    axes = figure.axes[0]
    axes.set_title("Speed-up by decoder")
    style: dict[str, Any] = {"fontsize": 8, "fontweight": "normal", "color": GREY}
    band = ", grey band: A/A noise floor" if floor.low is not None else ""
    axes.set_title(f"line: {base}{band}", loc="right", **style)
    data = data.merge(overall(summary, ["prompts"]), on="decoder")
    return figure, data[["decoder", *metric.columns, "prompts", "guarantee"]]


def _ranked(summary: pd.DataFrame, metric: Number) -> pd.DataFrame:
    """Return the rows to draw from top to bottom: largest first, lossy decoders last."""
    columns = ["decoder", "family", *metric.columns, "guarantee"]
    data = without_wrong(summary).reindex(columns=columns)
    data = data[data["family"] == ALL].drop(columns="family").dropna(subset=[metric.column])
    if metric.neutral is not None:
        data = data[data["decoder"] != (over(summary) if metric.column == "speedup" else BASELINE)]
    data = data.sort_values(metric.column, ascending=False, kind="stable")
    marks = lossy(summary)
    return data.sort_values(
        "decoder", key=lambda names: names.isin(marks), kind="stable", ignore_index=True
    )


def _draw(
    axes: Axes,
    data: pd.DataFrame,
    metric: Number,
    look: Look,
    labels: Mapping[str, str],
    size: float,
) -> None:
    def bare(value: float) -> str:
        return percent(value, "") if metric.share else number(value)

    top = max_end(data[metric.column])
    for y, row in enumerate(data.to_dict("records")):
        value, low, high = (float(row[name]) for name in metric.columns)
        colour, hollow = look.palette[row["decoder"]], row["decoder"] in look.marks
        if metric.neutral is not None:
            style: dict[str, Any] = {"lw": 1, "ls": ":"} if hollow else {"lw": 5, "alpha": 0.3}
            style |= {"color": colour, "solid_capstyle": "butt"}
            axes.plot([metric.neutral, value], [y, y], **style)
        draw_interval(axes, (low, high), y, top, color=colour, lw=1.8)
        axes.plot(value, y, ms=5.5, clip_on=False, **look.marker(row["decoder"]))
        ends = "" if math.isnan(low + high) else f" [{bare(low)}, {bare(high)}]"
        right = np.nanmax([value, min(high, top), metric.neutral or value])
        note: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": size - 1}
        axes.annotate(f"{metric.text(value)}{ends}", (right, y), (5, 0), **note)
    num_exact = int((~data["decoder"].isin(look.marks)).sum())
    if 0 < num_exact < len(data):
        axes.axhline(num_exact - 0.5, color=FAINT, lw=0.8, ls=(0, (4, 3)))
    if metric.neutral is not None:
        axes.axvline(metric.neutral, color=INK, lw=1)
    names = [labels.get(name, name) for name in data["decoder"]]
    marks = {
        labels.get(name, name): mark.split(",")[0] if metric.share else mark
        for name, mark in look.marks.items()
    }
    name_rows(axes, names, marks)
    axes.tick_params(labelsize=size)
