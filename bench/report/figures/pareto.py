"""Quality against speed: who is on the Pareto front, and the crowd at the top enlarged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bench.report.figures.axes import percents, row_of_panels
from bench.report.figures.canvas import SANS, Drawn, key, overall, text_width
from bench.report.figures.style import (
    GREY,
    INK,
    NEAR,
    colours,
    interval_of,
    leader,
    lossy,
    marked,
    marker,
    overlap,
    place,
)

_NEAR = 0.05
"""Below the best quality: decoders in this region differ in speed more than in quality."""
_CROWDED = 3.0
"""How many times as high as its region the whole must be for an enlargement to show more."""
_LEAST = 0.02
"""The least quality an axis spans: less is a hair, and no difference to be seen."""
_TOP = 1.0
_NAMED = 8.5
_Points = pd.DataFrame
_Box = tuple[float, float, float, float]


def quality_speed_figure(summary: pd.DataFrame) -> Drawn | None:
    """Quality against speed-up, both with intervals; up and to the right is better.

    The line is the Pareto front: of decoders whose qualities cannot be told apart the fastest is on
    it alone. Where some decoders are near the best quality and others far below, a second panel
    enlarges the former.
    """
    ends = ("", "_low", "_high")
    names = [f"{name}{end}" for name in ("speedup", "quality") for end in ends] + ["guarantee"]
    data = overall(summary, names).dropna(subset=["speedup", "quality"]).reset_index(drop=True)
    if data.empty:
        return None
    data["front"] = _front(data)
    near = data["quality"] >= data["quality"].max() - _NEAR
    lows = data["quality_low"].fillna(data["quality"])
    region = max(_TOP - lows[near].min(), _LEAST)
    split = near.sum() > 1 and (_TOP - lows.min()) > _CROWDED * region
    figure, grid = row_of_panels(1 + split, 3.9, rows=False)
    look = (colours(list(summary["decoder"].unique())), lossy(summary))
    for axes in grid:
        _draw_points(axes, data, *look)
    _frame(grid[0], data)
    if split:
        _frame(grid[1], data[near])
        _show_region(grid[0], grid[1])
    within = interval_of(data, "quality", ", ")
    for axes in grid:
        axes.set_ylabel(f"quality (mean of families{within})")
    grid[0].set_title("Quality against speed")
    within = interval_of(data, "speedup", ", ")
    figure.supxlabel(f"times as fast as ar, end to end{within}", fontsize=9)
    figure.draw_without_rendering()
    named = [data[~near], data[near]] if split else [data]
    placed = [_places(axes, part, data, look[1]) for axes, part in zip(grid, named, strict=True)]
    if None in placed:
        key(figure, list(data["decoder"]), *look)
        return figure, data
    for axes, part, boxes in zip(grid, named, placed, strict=True):
        _write_names(axes, part, boxes or [], *look)
    return figure, data


def _front(data: _Points) -> list[bool]:
    """Whether no other decoder is as fast and not shown to be worse, and ahead in one of them."""
    rows = data.to_dict("records")
    return [not any(_beats(other, mine) for other in rows) for mine in rows]


def _beats(other: Mapping[Any, Any], mine: Mapping[Any, Any]) -> bool:
    if other["speedup"] < mine["speedup"] or _better(mine, other):
        return False
    return bool(other["speedup"] > mine["speedup"] or _better(other, mine))


def _better(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Whether a quality is higher than another by more than the interval of their difference.

    Its half-width is the square-and-add one of two independent estimates (Newcombe 1998).
    """
    ends = (one["quality"] - one["quality_low"], other["quality_high"] - other["quality"])
    width = math.hypot(*(0.0 if math.isnan(end) else end for end in ends))
    return bool(one["quality"] - other["quality"] > width)


def _draw_points(
    axes: Axes, data: _Points, palette: Mapping[str, str], marks: Mapping[str, str]
) -> None:
    front = data[data["front"]].sort_values("speedup")
    how: dict[str, Any] = {"color": GREY, "lw": 0.9, "ls": (0, (4, 3)), "zorder": 1}
    axes.plot(front["speedup"], front["quality"], drawstyle="steps-pre", **how)
    for row in data.to_dict("records"):
        (x, y), colour = (row["speedup"], row["quality"]), palette[row["decoder"]]
        axes.plot([row["speedup_low"], row["speedup_high"]], [y, y], color=colour, lw=1.2)
        axes.plot([x, x], [row["quality_low"], row["quality_high"]], color=colour, lw=1.2)
        axes.plot(x, y, ms=7, zorder=3, **marker(colour, hollow=row["decoder"] in marks))
    axes.grid(visible=True)


def _frame(axes: Axes, data: _Points) -> None:
    """Limits in which the given decoders are whole, with room for their names."""
    left, right = _ends(data, "speedup")
    spare = 0.13 * (right - left or 1.0)
    axes.set_xlim(left - spare, right + spare)
    bottom, top = _ends(data, "quality")
    bottom = min(bottom, top - _LEAST)
    spare = 0.13 * (top - bottom)
    # a share has no more than 100 %, of which a point may stand out
    axes.set_ylim(bottom - spare, min(top + spare, _TOP + spare / 2))
    percents(axes.yaxis, 6)
    if top - bottom < _NEAR:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _ends(data: _Points, column: str) -> tuple[float, float]:
    """From where to where the intervals of a column reach."""
    values = data[[column, f"{column}_low", f"{column}_high"]].to_numpy(dtype=float)
    return float(np.nanmin(values)), float(np.nanmax(values))


def _show_region(whole: Axes, enlarged: Axes) -> None:
    """A frame in the whole around what is enlarged, and the same frame around that."""
    (left, right), (bottom, top) = enlarged.get_xlim(), enlarged.get_ylim()
    box = Rectangle((left, bottom), right - left, top - bottom, fill=False, ec=INK, lw=0.8)
    whole.add_patch(box)
    enlarged.set_title("The frame, enlarged", fontweight="normal", fontsize=9)
    for side in enlarged.spines.values():
        side.set(visible=True, color=INK, linewidth=0.8)


def _places(
    axes: Axes, named: _Points, data: _Points, marks: Mapping[str, str]
) -> list[_Box] | None:
    """Boxes for names that cover neither points nor each other; None where there is no room."""
    obstacles = []
    for row in data.to_dict("records"):
        (x, y), (left, bottom), (right, top) = _pixels(axes, row)
        obstacles += [(x - 6, y - 6, x + 6, y + 6)]
        obstacles += [(left, y - 2, right, y + 2), (x - 2, bottom, x + 2, top)]
    points = [_pixels(axes, row)[0] for row in named.to_dict("records")]
    unit = axes.figure.dpi / 72
    high = 1.3 * _NAMED * unit
    sizes = [
        (text_width(text, _NAMED) * SANS * unit, high) for text in marked(named["decoder"], marks)
    ]
    frame = axes.get_window_extent()
    bounds = (frame.x0, frame.y0, frame.x1, frame.y1)
    boxes = place(points, sizes, [*obstacles, *_front_boxes(axes, data)], bounds)
    lines = [part for point, box in zip(points, boxes, strict=True) for part in leader(point, box)]
    for i, box in enumerate(boxes):
        area = (box[2] - box[0]) * (box[3] - box[1])
        apart = all(overlap(box, other) == 0 for other in [*boxes[:i], *obstacles])
        crossed = sum(overlap(box, part) for part in lines)
        if not apart or crossed > 0.02 * area or overlap(box, bounds) < 0.99 * area:
            return None
    return boxes


def _front_boxes(axes: Axes, data: _Points) -> list[_Box]:
    """Where the steps of the front are drawn."""
    front = data[data["front"]].sort_values("speedup")
    corners = axes.transData.transform(front[["speedup", "quality"]].to_numpy())
    boxes: list[_Box] = []
    for (left, top), (right, bottom) in itertools.pairwise(corners.tolist()):
        boxes += [(left - 2, bottom, left + 2, top), (left, bottom - 2, right, bottom + 2)]
    return boxes


def _pixels(axes: Axes, row: Mapping[Any, Any]) -> list[tuple[float, float]]:
    """Where a point and the lower and upper ends of its intervals are drawn."""
    at = [row["speedup"], row["quality"]]
    low, high = ([row[f"speedup_{end}"], row[f"quality_{end}"]] for end in ("low", "high"))
    ends = [at, np.where(np.isnan(low), at, low), np.where(np.isnan(high), at, high)]
    return [(float(x), float(y)) for x, y in axes.transData.transform(np.array(ends))]


def _write_names(
    axes: Axes,
    named: _Points,
    boxes: Sequence[_Box],
    palette: Mapping[str, str],
    marks: Mapping[str, str],
) -> None:
    """Write each point's name into its box, with a thin line where it had to move away."""
    to_axes = axes.transAxes.inverted().transform
    rows = zip(marked(named["decoder"], marks), named.to_dict("records"), boxes, strict=True)
    for text, row, box in rows:
        x, y = _pixels(axes, row)[0]
        nearest = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))
        line = {"arrowstyle": "-", "color": palette[row["decoder"]], "lw": 0.7, "shrinkB": 4}
        axes.annotate(
            text,
            tuple(to_axes((x, y))),
            tuple(to_axes(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))),
            xycoords="axes fraction",
            textcoords="axes fraction",
            ha="center",
            va="center",
            fontsize=_NAMED,
            arrowprops=line if math.dist((x, y), nearest) > NEAR else None,
        )
