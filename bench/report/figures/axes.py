"""Panels of figures, rows of decoders, ticks at round numbers, texts next to points."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from bench.report.figures.style import WIDTH

_WHOLE = [1, 2, 5, 10]
"""Steps between ticks that give whole per cents."""


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


def row_of_panels(
    count: int, height: float, *, rows: bool = False, apart: float = 0.02
) -> tuple[Figure, list[Axes]]:
    """Make panels side by side, together as wide as a text column.

    `rows` shares their y axis. `apart` is the gap between them as a share of a panel's width.
    """
    figure = Figure(figsize=(WIDTH, height), layout=ConstrainedLayoutEngine(wspace=apart))
    grid = list(figure.subplots(1, count, sharey=rows, squeeze=False).flat)
    for axes in grid:
        axes.tick_params(labelsize=8)
    return figure, grid


def wrapped(name: str) -> list[str]:
    """Return the lines of a decoder's name next to its row."""
    return textwrap.wrap(name, 26)


def name_rows(
    axes: Axes, decoders: Sequence[str], marks: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write decoders' names at the rows, the first on top, long ones wrapped, with marks below."""
    names = ["\n".join(filter(None, (*wrapped(name), marks.get(name)))) for name in decoders]
    axes.set_yticks(range(len(decoders)), names)
    axes.set_ylim(len(decoders) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def annotate_point(
    axes: Axes,
    text: str,
    point: tuple[float, float],
    gap: float,
    size: float = 9,
    side: Literal["left", "right"] = "left",
    **style: Any,
) -> None:
    """Write text next to a point, `gap` points to the right, with the alignment `side`."""
    style |= {"va": "center", "ha": side, "fontsize": size}
    axes.annotate(text, point, (gap, 0), textcoords="offset points", **style)


def whole(axis: Axis, max_intervals: int) -> None:
    """Set ticks at whole numbers, with at most `max_intervals` between them."""
    axis.set_major_locator(MaxNLocator(max_intervals, integer=True))


def log_ticks(axis: Axis) -> None:
    """Label 1, 2 and 5 of each decade of a logarithmic axis, or only 1 if decades are many."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def percents(axis: Axis, max_intervals: int) -> None:
    """Label fractions in whole per cents, with at most `max_intervals` between ticks."""
    axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_major_locator(MaxNLocator(max_intervals, steps=_WHOLE))


def points(axis: Axis) -> None:
    """Label fractions as signed percentage points."""
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:+.0f}" if value else "0")
    )
    axis.set_major_locator(MaxNLocator(5, steps=_WHOLE))
