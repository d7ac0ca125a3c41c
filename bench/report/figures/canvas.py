"""Style, legends, footnotes and files of all figures.

Figures are built without pyplot, so without a backend or global state, and saved without dates:
the same records give the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from PIL import Image

from bench.records.frames import csv_bytes
from bench.report.figures.style import STYLE, Look, footnotes
from bench.stats.summary import ALL, family_order

Plot = tuple[Figure, pd.DataFrame]
"""A figure and its data."""
_KEY_ROW = 0.19
"""Height of a row of the legend above a figure, in inches."""
_LETTER, _SYMBOL = 0.082, 0.35
"""Widths of a letter, and of a marker with its gaps, in the legend, in inches."""


def styled(size: float = 9) -> AbstractContextManager[None]:
    """Apply `bench.report.figures.style` inside the context, with a font size of `size` points."""
    return mpl.rc_context(dict(STYLE) | {"font.size": size})  # type: ignore[arg-type]


def render(figure: Figure, kinds: Sequence[str] = ("png", "pdf", "svg")) -> dict[str, bytes]:
    """Return a figure in the given `kinds` (png at 200 dpi, pdf, svg), without dates."""
    undated: dict[str, dict[str, object]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    files = {}
    with styled():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, the same in every format
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
        # in 256 colours a PNG has a third of its size, and figures have few colours
        image = Image.open(io.BytesIO(files["png"])).convert("RGB")
        image.quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
        files["png"] = buffer.getvalue()
    return files


def figure_files(name: str, plot: Plot) -> dict[str, bytes]:
    """Return a figure in every format and its data as CSV, by path in a report's folder."""
    figure, data = plot
    files = {f"figures/{name}.{kind}": content for kind, content in render(figure).items()}
    return files | {f"figures/data/{name}.csv": csv_bytes(data)}


def annotate(figure: Figure, summary: pd.DataFrame, *, hollow: bool) -> None:
    """Write footnotes under a figure: hollow markers (with `hollow`), and WRONG decoders."""
    notes = footnotes(summary, hollow=hollow)
    if not notes:
        return
    width, height = figure.get_size_inches()
    wide = int(17 * width)
    lines = [(line, colour) for text, colour in notes for line in textwrap.wrap(text, wide)]
    room = 0.04 + 0.15 * len(lines)
    total, below = height + room, room
    if label := figure.get_supxlabel():  # the layout reserves no room for a moved label
        figure.supxlabel(label, y=room / total, fontsize=9)
        below += 0.2
    figure.set_size_inches(width, total)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, below / total, 1, 1 - below / total))
    for row, (line, colour) in enumerate(reversed(lines)):
        y = (0.04 + 0.15 * row) / total
        figure.text(0.01, y, line, fontsize=8, color=colour, va="bottom")


def key(figure: Figure, decoders: Sequence[str], look: Look) -> None:
    """Add a legend of decoders above a figure, and make the figure taller by its rows."""
    names = look.names(decoders)
    handles = [
        Line2D([], [], ls="", ms=6, label=name, **look.marker(decoder))
        for decoder, name in zip(decoders, names, strict=True)
    ]
    width, height = figure.get_size_inches()
    columns = _columns([_LETTER * len(name) + _SYMBOL for name in names], float(width))
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


def _columns(widths: Sequence[float], width: float) -> int:
    """Return the largest number of columns that fit, with entries filled in column by column."""
    for columns in range(len(widths), 1, -1):
        if sum(max(column) for column in np.array_split(widths, columns)) < width:
            return columns
    return 1


def overall(summary: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of the summary over all families, a row per decoder."""
    rows: pd.DataFrame = summary.loc[summary["family"] == ALL, ["decoder", *columns]]
    return rows


def several_families(column: pd.Series) -> list[str]:
    """Return the families in order, then `all`, or only `all` for a single family."""
    families = [f for f in family_order(column) if f != ALL] + [ALL]
    return families[-1:] if len(families) == 2 else families
