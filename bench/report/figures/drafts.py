"""Which drafts are accepted, by their position in a step, and how that changes along it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from bench.report.figures.axes import percents, points, row_of_panels
from bench.report.figures.canvas import Drawn, key
from bench.report.figures.style import GREY, colours
from bench.stats.summary import ALL

_FEWEST_STEPS = 20
"""Steps that came so far: a share of fewer is left out of the drawing, and stays in the data."""
_MOST_POSITIONS = 16
_PANELS = (
    ("joint", "joint: drafts\n1 to j all accepted", "share of steps"),
    ("conditional", "conditional: draft j, where\nall before it are", "share of drafts j"),
    ("decay", "change along the step\n(below 0: suffix decay)", "points above position 1"),
)


def acceptance_figure(acceptance: pd.DataFrame, summary: pd.DataFrame) -> Drawn | None:
    """Joint and conditional acceptance by position, and by how much the latter leaves its start.

    Joint acceptance falls with j by itself; that the conditional does is the drafts' doing.
    """
    data = acceptance[
        (acceptance["family"] == ALL) & acceptance["decoder"].isin(summary["decoder"])
    ]
    data = data.drop(columns="family").reset_index(drop=True)
    if (data["reached"] < _FEWEST_STEPS).all():
        return None
    first = data[data["position"] == 1].set_index("decoder")["conditional"]
    data["decay"] = data["conditional"] - data["decoder"].map(first)
    drawn = data[(data["reached"] >= _FEWEST_STEPS) & (data["position"] <= _MOST_POSITIONS)]
    palette = colours(list(summary["decoder"].unique()))
    figure, grid = row_of_panels(len(_PANELS), 2.5, rows=False)
    for (column, title, label), axes in zip(_PANELS, grid, strict=True):
        for decoder in drawn["decoder"].unique():
            mine = drawn[drawn["decoder"] == decoder]
            how: dict[str, Any] = {"color": palette[decoder], "ms": 3.5, "lw": 1.3}
            axes.plot(mine["position"], mine[column], "-o", **how)
        axes.set_title(title, fontsize=9)
        axes.set_ylabel(label, fontsize=8)
        axes.grid(visible=True, axis="y")
        last = int(drawn["position"].max())
        axes.set_xticks(range(1, last + 1) if last <= 8 else [1, *range(4, last + 1, 4)])
    for axes in grid[:2]:
        percents(axes.yaxis, 5)
        axes.set_ylim(0, 1.04)
    grid[2].axhline(0, color=GREY, lw=1)
    points(grid[2].yaxis)
    grid[2].set_ylim(min(-0.1, 1.25 * drawn["decay"].min()), max(0.1, 1.25 * drawn["decay"].max()))
    key(figure, list(drawn["decoder"].unique()), palette, ())
    figure.supxlabel("position j of a draft in its step", fontsize=9)
    return figure, data
