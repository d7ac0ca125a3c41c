"""Make panels, rows of decoders, ticks, texts, legends and files of all figures.

Figures are built without pyplot, so without a backend or global state, and saved without dates:
the same records give the same bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter
from PIL import Image

from bench.records.frames import csv_bytes
from bench.report.figures.style import STYLE, WIDTH, Look
from bench.report.sections import Plot as Plot
from bench.stats.summary import ALL
from bench.text import name_lines

_KEY_ROW = 0.19
"""Height of a row of the legend above a figure, in inches."""
_LETTER, _SYMBOL = 0.082, 0.35
"""Widths of a letter, and of a marker with its gaps, in the legend, in inches."""
_REACH = 3.0
"""Limit of the drawn part of an interval, in units of the highest number."""
WHOLE = [1, 2, 5, 10]
"""Steps between ticks that give round numbers, e.g. whole per cents."""


def panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Make a grid of at most four panels per row, each `height` inches high, with shared axes."""
    columns = min(4, count)
    rows = math.ceil(count / columns)
    size = (WIDTH * max(columns, 3) / 4, height * rows + 0.35)
    figure = Figure(figsize=size, layout="constrained")
    grid = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for index, axes in enumerate(grid):
        axes.set_visible(index < count)
        axes.tick_params(labelsize=8, labelbottom=index + columns >= count)
    return figure, grid[:count]


def row_of_panels(count: int, height: float, *, rows: bool = False) -> tuple[Figure, list[Axes]]:
    """Make panels side by side, as wide as a text column, with one y axis if they have `rows`."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = list(figure.subplots(1, count, sharey=rows, squeeze=False).flat)
    for axes in grid:
        axes.tick_params(labelsize=8)
    return figure, grid


def name_rows(
    axes: Axes, decoders: Sequence[str], marks: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write decoders' names at the rows, the first on top, wrap long names, and put marks below."""
    names = ["\n".join(filter(None, (*name_lines(name), marks.get(name)))) for name in decoders]
    axes.set_yticks(range(len(decoders)), names)
    axes.set_ylim(len(decoders) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def max_end(numbers: pd.Series) -> float:
    """Return where an axis cuts intervals, which with few prompts would hide all numbers."""
    return _REACH * max(1.0, float(numbers.max()))


def draw_interval(axes: Axes, ends: Sequence[float], y: float, limit: float, **style: Any) -> None:
    """Draw an interval, with an arrow where it is cut.

    Args:
        axes: numbers are on its x axis.
        ends: lower and upper end; nothing is drawn if they are NaN.
        y: its height, in units of the y axis.
        limit: where it is cut on the right (`max_end`).
        style: `Axes.plot`'s arguments, among them ``color``.
    """
    axes.plot(np.minimum(ends, limit), [y, y], **style)
    if ends[1] > limit:
        axes.plot(limit, y, marker=">", ms=4, color=style["color"], clip_on=False)


def whole(axis: Axis, max_intervals: int) -> None:
    """Set ticks at whole numbers, with at most `max_intervals` between them."""
    axis.set_major_locator(MaxNLocator(max_intervals, integer=True))


def log_ticks(axis: Axis) -> None:
    """Label 1, 2 and 5 of each decade of a logarithmic axis, or only 1 if decades are many."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def percent_ticks(axis: Axis, max_intervals: int) -> None:
    """Label fractions in whole per cents, with at most `max_intervals` between ticks."""
    axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_major_locator(MaxNLocator(max_intervals, steps=WHOLE))


def points(axis: Axis) -> None:
    """Label fractions as signed percentage points."""
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:+.0f}" if value else "0")
    )
    axis.set_major_locator(MaxNLocator(5, steps=WHOLE))


def styled(size: float = 9) -> AbstractContextManager[None]:
    """Apply `bench.report.figures.style` inside the context, with a font size of `size` points."""
    return mpl.rc_context(dict(STYLE) | {"font.size": size})  # type: ignore[arg-type]


def render(figure: Figure, kinds: Sequence[str] = ("png", "pdf", "svg")) -> dict[str, bytes]:
    """Return a figure in several `kinds` (png at 200 dpi, pdf, svg), without dates."""
    undated: dict[str, dict[str, object]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    files = {}
    with styled():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # one layout for all formats
        for axes in figure.axes:
            left, bottom, width, height = (round(end, 6) for end in axes.get_position().bounds)
            axes.set_position((left, bottom, width, height))
        for text in figure.texts:
            x, y = text.get_position()
            text.set_position((round(x, 6), round(y, 6)))
        for kind in kinds:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=200, metadata=undated.get(kind))
            files[kind] = buffer.getvalue()
    if "png" in files:
        buffer = io.BytesIO()
        # figures have few colours, and a PNG with 256 colours has a third of the size
        image = Image.open(io.BytesIO(files["png"])).convert("RGB")
        image.quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
        files["png"] = buffer.getvalue()
    return files


def figure_files(name: str, plot: Plot) -> dict[str, bytes]:
    """Return a figure in every format and its data as CSV, by path in a report's folder."""
    figure, data = plot
    files = {f"figures/{name}.{kind}": content for kind, content in render(figure).items()}
    return files | {f"figures/data/{name}.csv": csv_bytes(data)}


def key(figure: Figure, decoders: Sequence[str], look: Look) -> None:
    """Add a legend of decoders above a figure, and make the figure taller by its rows."""
    names = look.names(decoders)
    handles = [
        Line2D([], [], ls="", ms=6, label=name, **look.marker(decoder))
        for decoder, name in zip(decoders, names, strict=True)
    ]
    width, height = figure.get_size_inches()
    widths = [_LETTER * len(name) + _SYMBOL for name in names]
    columns = max(1, len(names))
    while columns > 1 and sum(map(max, np.array_split(widths, columns))) >= width:
        columns -= 1  # entries are filled in column by column
    figure.set_size_inches(width, height + _KEY_ROW * math.ceil(len(names) / columns))
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        handletextpad=0.1,
        columnspacing=1.0,
        borderpad=0.1,
    )


def overall(summary: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of the summary over all families, with a row per decoder."""
    rows: pd.DataFrame = summary.loc[summary["family"] == ALL, ["decoder", *columns]]
    return rows
