"""Draw exactness.md's figure from two stored runs: `python -m docs.generate.exactness`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from bench.report.figures.canvas import (
    annotate_point,
    name_rows,
    overall,
    percent_ticks,
    render,
    row_of_panels,
    styled,
)
from bench.report.figures.style import INK, colours

ROOT = Path(__file__).resolve().parents[2]
FAST = ROOT / "results/reference/cpu-smollm2-xeon/summary.csv"
INVARIANT = ROOT / "results/reference/cpu-smollm2-invariant/summary.csv"
FIGURE = ROOT / "docs/figures/exactness.png"


def exactness() -> pd.DataFrame:
    """Return identical shares and speed-ups over fast AR for the lossless decoders of both runs."""
    fast, invariant = (_overall(path) for path in (FAST, INVARIANT))
    both = fast.loc[fast.index.isin(invariant.index)]
    lossless = both.index[both["guarantee"] == "same tokens"]
    ar_fast = invariant.loc["ar@fast", "speedup"]
    return pd.DataFrame(
        {
            "identical, fast": fast.loc[lossless, "identical_to_ar"],
            "identical, invariant": invariant.loc[lossless, "identical_to_ar"],
            "speed-up over fast ar, fast": fast.loc[lossless, "speedup"],
            "speed-up over fast ar, invariant": invariant.loc[lossless, "speedup"] / ar_fast,
        }
    )


def _overall(path: Path) -> pd.DataFrame:
    columns = ["guarantee", "identical_to_ar", "speedup"]
    return overall(pd.read_csv(path), columns).set_index("decoder")


def draw(data: pd.DataFrame) -> Figure:
    """Draw the share of answers identical to AR's, and the cost of exactness in speed-up."""
    palette = colours(list(data.index))
    white = {"facecolor": "w", "edgecolor": "none", "pad": 0.3}
    panels = (
        ("identical", "answers identical to AR's", "{:.0%}"),
        ("speed-up over fast ar", "speed-up over AR in fast numerics", "{:.2f}x"),
    )
    with styled():
        figure, grid = row_of_panels(2, 0.36 * len(data) + 0.9, rows=True)
        for axes, (quantity, title, unit) in zip(grid, panels, strict=True):
            for shift, numerics in ((-0.19, "fast"), (0.19, "invariant")):
                column = f"{quantity}, {numerics}"
                for row, (name, value) in enumerate(data[column].items()):
                    face = palette[str(name)] if numerics == "invariant" else "none"
                    y = row + shift
                    axes.barh(y, value, 0.34, facecolor=face, edgecolor=palette[str(name)])
                    annotate_point(axes, unit.format(value), (value, y), 3, 7.5, bbox=white)
            axes.set_title(title)
            axes.margins(x=0.18)
            name_rows(axes, list(data.index))
        percent_ticks(grid[0].xaxis, 5)
        grid[1].axvline(1, color=INK, lw=0.6, alpha=0.5, zorder=0)
        what = "outlined: fast numerics, compiled; filled: row-invariant, over eager AR"
        figure.supxlabel(what, fontsize=8)
    return figure


if __name__ == "__main__":
    FIGURE.write_bytes(render(draw(exactness()))["png"])
