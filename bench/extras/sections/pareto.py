"""Draw quality against speed, with the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bench.extras.sections.aup import curves
from bench.records.plan import NO_GUARANTEE, NOT_VERIFIED
from bench.report.figures import canvas
from bench.report.figures.canvas import Plot, key, overall, percent_ticks, row_of_panels
from bench.report.figures.style import GREY, Look, interval_note
from bench.report.tables.table import over

_FINE = 0.05
"""Range of quality below which ticks show tenths of a per cent."""
_MIN_RANGE = 0.02
"""Minimum quality range of an axis: a smaller range would magnify negligible differences."""
_TOP = 1.0
_QUALITY = ["quality", "quality_low", "quality_high"]
_COLUMNS = [f"{name}{end}" for name in ("speedup", "quality") for end in ("", "_low", "_high")]
_PAIRS = ["tpf", "tokens_per_s"]
"""Further columns of the figure's data: parallelism, of which AUP is the area, and speed."""


def quality_speed_figure(summary: pd.DataFrame) -> Plot | None:
    """Draw quality against speed-up, both with intervals, better up and to the right.

    Decoders with a guarantee that share one quality are a row of ticks on its band. The line is the
    Pareto front: of decoders whose qualities cannot be told apart, it has only the fastest. A lossy
    decoder that is not the best is never the whole front. Lines join the settings of a method
    (`curves`).
    """
    scored = overall(summary, [*_COLUMNS, "guarantee", *_PAIRS])
    scored = scored.dropna(subset=["speedup", "quality"])
    if scored.empty:
        return None
    scored = scored.reset_index(drop=True)
    columns = {name: scored[name].fillna(scored[name.partition("_")[0]]) for name in _COLUMNS}
    data = scored.assign(**columns)  # a missing interval shrinks to the number
    rows = data.to_dict("records")
    front = [not any(_dominates(other, row) for other in rows) for row in rows]
    alone = [row for row, is_on in zip(rows, front, strict=True) if is_on]
    if (
        len(alone) == 1
        and alone[0]["guarantee"] == NO_GUARANTEE
        and any(other["quality"] > alone[0]["quality"] for other in rows)
    ):
        front = [False] * len(rows)  # intervals are too wide to show a loss
    exact = scored.loc[~scored["guarantee"].isin([NO_GUARANTEE, NOT_VERIFIED]), _QUALITY].round(9)
    shared = exact.duplicated(keep=False).reindex(scored.index, fill_value=False)
    data = data.assign(front=front, tick=shared)
    figure, (axes,) = row_of_panels(1, 3.9)
    look, within = Look.of(summary), interval_note(data, "quality", ", ")
    methods = {m: c for m, c in curves(scored["decoder"]).items() if len(c) > 1}
    _draw_points(axes, data, look)
    for cells in methods.values():
        points = data[data["decoder"].isin(cells)].sort_values("speedup")
        colour = look.palette[cells[0]]
        axes.plot(points["speedup"], points["quality"], color=colour, lw=0.8, zorder=2)
    _frame(axes, data)
    axes.set_ylabel(f"quality (mean of families{within})")
    axes.set_title("Quality against speed")
    within = interval_note(data, "speedup", ", ")
    figure.supxlabel(f"times as fast as {over(summary)}, end to end{within}", fontsize=9)
    key(figure, list(data["decoder"]), look)
    joined = {cell: method for method, cells in methods.items() for cell in cells}
    return figure, scored.assign(front=front, method=[joined.get(c, "") for c in scored["decoder"]])


def _dominates(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Return whether a point is as fast, not shown to be worse, and better in speed or quality."""
    if one["speedup"] < other["speedup"] or _better(other, one):
        return False
    return bool(one["speedup"] > other["speedup"] or _better(one, other))


def _better(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Return whether one quality exceeds another by more than the interval of the difference.

    The half-width is Newcombe's square-and-add interval of two independent estimates (1998).
    """
    ends = (one["quality"] - one["quality_low"], other["quality_high"] - other["quality"])
    return bool(one["quality"] - other["quality"] > math.hypot(*ends))


def _draw_points(axes: Axes, data: pd.DataFrame, look: Look) -> None:
    front = data[data["front"]].sort_values("speedup")
    style: dict[str, Any] = {"color": GREY, "lw": 0.9, "ls": (0, (4, 3)), "zorder": 1}
    steps = np.repeat(front[["speedup", "quality"]].to_numpy(), 2, axis=0)
    axes.plot(steps[:-1, 0], steps[1:, 1], **style)
    across = axes.get_yaxis_transform()
    for y, bottom, top in data.loc[data["tick"], _QUALITY].drop_duplicates().to_numpy():
        axes.fill_between([0, 1], bottom, top, transform=across, color=GREY, alpha=0.15, lw=0)
        axes.axhline(y, color=GREY, lw=0.7, zorder=0)
    for decoder, x, y in data.loc[data["tick"], ["decoder", "speedup", "quality"]].to_numpy():
        colour = look.palette[decoder]
        axes.plot(x, y, ls="", marker="|", ms=12, mew=3, color=colour, zorder=3)
    alone, limit = data.loc[~data["tick"], ["decoder", *_COLUMNS]], canvas.max_end(data["speedup"])
    for decoder, *values in alone.itertuples(index=False, name=None):
        (x, left, right), (y, bottom, top) = values[:3], values[3:]
        colour = look.palette[decoder]
        canvas.draw_interval(axes, (left, right), y, limit, color=colour, lw=1.2)
        axes.plot([x, x], [bottom, top], color=colour, lw=1.2)
        axes.plot(x, y, ms=7, zorder=3, **look.marker(decoder))
    axes.grid(visible=True)


def _frame(axes: Axes, data: pd.DataFrame) -> None:
    """Limit axes to the decoders with their intervals and a margin."""
    values = data[_COLUMNS].to_numpy(dtype=float)
    left, right = np.min(values[:, :3]), min(np.max(values[:, :3]), canvas.max_end(data["speedup"]))
    spare = 0.13 * (right - left or 1.0)
    axes.set_xlim(left - spare, right + spare)
    bottom, top = np.min(values[:, 3:]), np.max(values[:, 3:])
    bottom = min(bottom, top - _MIN_RANGE)
    spare = 0.13 * (top - bottom)
    # shares end at 100 %, plus room for a point's marker
    axes.set_ylim(bottom - spare, min(top + spare, _TOP + spare / 2))
    percent_ticks(axes.yaxis, 6)
    if top - bottom < _FINE:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    axes.xaxis.set_major_locator(MaxNLocator(5))
