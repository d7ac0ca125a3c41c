"""Draw the figure of a cost folder: call time by rows, with the roofline."""

from __future__ import annotations

import itertools

import pandas as pd
from matplotlib.axes import Axes

from bench.extras.cost.curve import Cost
from bench.records.files import write_files
from bench.report.figures.canvas import Plot, log_ticks, render, row_of_panels, styled

_LINES = ("#0b3c5d", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#999933")


def write_figure(cost: Cost) -> None:
    """Write the figure of a cost folder (`BenchError` if writing fails)."""
    figure, _ = cost_figure(cost)
    images = {f"figures/call_time.{kind}": data for kind, data in render(figure).items()}
    write_files(cost.path, images)


def cost_figure(cost: Cost) -> Plot:
    """Draw call time by rows: per context for one sequence, per sequences at the shortest context.

    The roofline is dashed.
    """
    table = cost.table[cost.table["seconds"].notna()]
    context = table["context"].min()
    with styled():
        figure, (left, right) = row_of_panels(2, 3.4, rows=True)
        _draw_costs(left, table[table["sequences"] == table["sequences"].min()], "context")
        _draw_costs(right, table[table["context"] == context], "sequences")
        left.set_title("1 sequence, by context (tokens)", fontsize=9)
        right.set_title(f"context {context}, by sequences", fontsize=9)
        ticks = sorted(int(rows) for rows in table["rows"].unique())
        for axes in (left, right):
            axes.legend(frameon=False, fontsize=7.5, handlelength=1.2, loc="upper left")
            axes.set_xticks(ticks, [str(rows) for rows in ticks])
            axes.minorticks_off()
        log_ticks(left.yaxis)
        figure.supxlabel("rows per sequence (dashed: roofline)", fontsize=9)
        figure.supylabel("ms per call", fontsize=9)
    return figure, table.reset_index(drop=True)


def _draw_costs(axes: Axes, table: pd.DataFrame, by: str) -> None:
    axes.set(xscale="log", yscale="log")
    axes.grid(visible=True)
    for (value, lines), colour in zip(table.groupby(by), itertools.cycle(_LINES), strict=False):
        lines = lines.sort_values("rows")
        bars = lines[lines["low"].notna()]
        roof = 1e3 * lines[["memory_s", "compute_s"]].max(axis=1)
        axes.plot(lines["rows"], 1e3 * lines["seconds"], lw=1.3, color=colour, label=f"{value}")
        axes.vlines(bars["rows"], 1e3 * bars["low"], 1e3 * bars["high"], color=colour, lw=0.8)
        axes.plot(lines["rows"], roof, ls=(0, (3, 2)), lw=0.9, color=colour, alpha=0.7)
