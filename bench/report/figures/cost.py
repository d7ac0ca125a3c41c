"""The figure of a cost folder: seconds of a call by its rows, with the roofline."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.report.figures.axes import one_two_five, panels
from bench.report.figures.canvas import Drawn, styled
from bench.report.figures.style import INK, colours
from bench.stats.cost_curve import Cost
from bench.stats.limit import OperatingPoint

_LINES = ("#0b3c5d", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#999933")


def cost_figure(cost: Cost, points: Sequence[OperatingPoint] = ()) -> Drawn:
    """Call time against rows: by context for one sequence, by sequences at the shortest context.

    Dashed: the roofline. `points` are decoders' own calls, of one sequence.
    """
    table = cost.table[cost.table["seconds"].notna()]
    first_context = table["context"].min()
    one = table[table["sequences"] == table["sequences"].min()]
    shortest = table[table["context"] == first_context]
    with styled():
        figure, (left, right) = panels(2, 3.2)
        figure.set_size_inches(6.8, 3.4)
        for axes, chosen, by in ((left, one, "context"), (right, shortest, "sequences")):
            for place, (value, lines) in enumerate(chosen.groupby(by)):
                _draw(axes, lines, f"{value}", _LINES[place % len(_LINES)])
            axes.set(xscale="log", yscale="log")
            one_two_five(axes.yaxis)
            axes.grid(visible=True)
        left.set_title("1 sequence, by context (tokens)", fontsize=9)
        right.set_title(f"context {first_context}, by sequences", fontsize=9)
        palette = colours([point.decoder for point in points])
        for point in points:
            left.plot(point.rows, 1e3 * point.seconds, "o", ms=5, color=palette[point.decoder])
            left.annotate(
                point.decoder, (point.rows, 1e3 * point.seconds), (4, -8),
                textcoords="offset points", fontsize=7.5, color=INK,
            )  # fmt: skip
        for axes in (left, right):
            axes.legend(frameon=False, fontsize=7.5, handlelength=1.2, loc="upper left")
        ticks = sorted(int(rows) for rows in table["rows"].unique())
        right.set_xticks(ticks, [str(rows) for rows in ticks])
        right.minorticks_off()
        figure.supxlabel("rows a sequence (dashed: roofline)", fontsize=9)
        figure.supylabel("ms a call", fontsize=9)
    return figure, table.reset_index(drop=True)


def _draw(axes: object, lines: pd.DataFrame, label: str, colour: str) -> None:
    lines = lines.sort_values("rows")
    axes.plot(  # type: ignore[attr-defined]
        lines["rows"], 1e3 * lines["seconds"], "-", lw=1.3, color=colour, label=label
    )
    known = lines[lines["low"].notna()]
    axes.vlines(  # type: ignore[attr-defined]
        known["rows"], 1e3 * known["low"], 1e3 * known["high"], color=colour, lw=0.8
    )
    roof = lines[["memory_s", "compute_s"]].max(axis=1)
    if roof.notna().any():
        axes.plot(  # type: ignore[attr-defined]
            lines["rows"], 1e3 * roof, ls=(0, (3, 2)), lw=0.9, color=colour, alpha=0.7
        )
