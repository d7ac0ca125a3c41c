"""The README's figure: speed-ups of decoders, a colour per machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from bench.records.plan import BASELINE
from bench.report.figures.canvas import name_rows, render, styled
from bench.report.figures.style import GREY, INK
from docs.generate.places import ROOT
from docs.generate.runs import TABLE, by_machine, headings, with_guarantee

FIGURE = ROOT / "docs/figures/machines.png"
_LOOKS = ((INK, "o"), ("#0072b2", "s"), ("#d55e00", "D"), ("#009e73", "^"), ("#cc79a7", "v"))
"""Colour and marker of each machine, again from the first for the sixth."""
_WIDTH = 5.0
"""Inches: readable on a telephone."""


def names(readme: str) -> list[str]:
    """Return the runs of the README's table of machines."""
    return next(
        mark["runs"] for mark in TABLE.finditer(readme) if mark["name"] == "machines"
    ).split()


def draw(names: Sequence[str]) -> Figure:
    """Draw the speed-ups of the table's runs over their `ar`, with 95 % intervals."""
    runs = by_machine(names)
    cells = [cell for cell in with_guarantee(runs[0]) if cell != BASELINE]
    with styled(10):
        figure = Figure(figsize=(_WIDTH, 2.2 + 0.35 * len(runs)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(1, color=GREY, lw=1, zorder=0)
        shifts = np.linspace(-0.24, 0.24, len(runs)).tolist()
        shown = zip(runs, headings(runs), shifts, itertools.cycle(_LOOKS), strict=False)
        for run, name, shift, (colour, marker) in shown:
            for y, row in enumerate(run.rows.get(cell) for cell in cells):
                if row is not None:
                    estimate = row.estimate("speedup")
                    ends = np.array([estimate.low, estimate.value, estimate.high], float)
                    axes.plot(ends[::2], [y + shift] * 2, color=colour, lw=1.6)
                    axes.plot(ends[1], y + shift, marker, color=colour, ms=5.5)
            axes.plot([], [], marker, color=colour, ms=5.5, label=name)
        name_rows(axes, cells)
        axes.xaxis.set_major_locator(MultipleLocator(0.5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        figure.legend(loc="outside upper left", ncols=2, frameon=False, handletextpad=0.1)
        figure.supxlabel("speed-up over ar, with 95 % interval", fontsize=10)
    return figure


def picture(readme: str) -> bytes:
    """Return the figure of the README's table of machines, as a PNG."""
    return render(draw(names(readme)), ["png"])["png"]
