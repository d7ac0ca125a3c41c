"""Figures of speed and counters, and what all figures are made of (`bench.report.figures.gallery`).

Each function draws one figure from a summary and returns it with the numbers in it. A decoder has
one colour in all of them (colour-blind-safe, the baseline grey) and is labelled where it is drawn.
Figures are built without pyplot, so no backend and no state are involved, and saved without dates:
the same records give the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path

from bench.records.plan import BASELINE
from bench.report.figures.axes import canvas, name_rows, panels, percents, whole
from bench.report.figures.style import (
    FAINT,
    GREY,
    INK,
    STYLE,
    bar,
    colours,
    footnotes,
    interval_of,
    lossy,
    marked,
    marker,
)
from bench.stats.intervals import Estimate
from bench.stats.summary import ALL, family_order
from bench.text import factor

Drawn = tuple[Figure, pd.DataFrame]
"""A figure and the numbers in it."""
_MOST_BARS = 16
_MEASURED_AT = 100
SANS = 1.3
"""How much wider than Times the type of figures is, at most."""
_KEY_ROW = 0.19
"""Inches of a row of names above a figure."""


def render(figure: Figure) -> dict[str, bytes]:
    """A figure as png (200 dpi), pdf and svg, without dates."""
    undated: dict[str, dict[str, object]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    files = {}
    with styled():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, the same in every format
        _round_places(figure)
        for kind in ("png", "pdf", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=200, metadata=undated.get(kind))
            files[kind] = buffer.getvalue()
    return files


def _round_places(figure: Figure) -> None:
    """Round where things stand: the layout's last bits differ from one process to the next."""
    for axes in figure.axes:
        left, bottom, width, height = (round(end, 6) for end in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((round(x, 6), round(y, 6)))


def styled(size: float = 9) -> AbstractContextManager[None]:
    """Inside it figures look as `bench.report.figures.style` says, in type of `size` points."""
    return mpl.rc_context(dict(STYLE) | {"font.size": size})  # type: ignore[arg-type]


def annotate(figure: Figure, summary: pd.DataFrame, *, hollow: bool) -> None:
    """Write under a figure what is `hollow` in it, where anything is, and who is left out."""
    if notes := footnotes(summary, hollow=hollow):
        _write_under(figure, notes)


def _write_under(figure: Figure, notes: Sequence[tuple[str, str]]) -> None:
    """Lines of text, each in its colour, under all that a figure holds."""
    width, height = figure.get_size_inches()
    wide = int(17 * width)
    lines = [(line, colour) for text, colour in notes for line in textwrap.wrap(text, wide)]
    room = 0.04 + 0.15 * len(lines)
    whole, left = height + room, room
    if label := figure.get_supxlabel():  # the layout leaves no room for one that was moved
        figure.supxlabel(label, y=room / (height + room), fontsize=9)
        left += 0.2
    figure.set_size_inches(width, whole)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, left / whole, 1, 1 - left / whole))
    for row, (line, colour) in enumerate(reversed(lines)):
        y = (0.04 + 0.15 * row) / whole
        figure.text(0.01, y, line, fontsize=8, color=colour, va="bottom")


def speedup_figure(summary: pd.DataFrame, floor: Estimate) -> Drawn | None:
    """Speed-up over the baseline by decoder, with intervals and the A/A floor.

    The fastest comes first, but lossy ones come last, beneath a line.
    """
    data = overall(summary, ["speedup", "speedup_low", "speedup_high", "prompts", "guarantee"])
    data = data[data["decoder"] != BASELINE].dropna(subset=["speedup"])
    if data.empty:
        return None
    marks = lossy(summary)
    data = data.sort_values("speedup", ascending=False, kind="stable")
    data = data.sort_values("decoder", key=lambda names: names.isin(marks), kind="stable")
    data = data.reset_index(drop=True)
    palette = colours(list(summary["decoder"].unique()))
    figure, axes = canvas(0.36 * len(data) + 1.15)
    for y, row in enumerate(data.to_dict("records")):
        colour, value, end = palette[row["decoder"]], row["speedup"], row["speedup_high"]
        hollow = row["decoder"] in marks
        bar_of = {"lw": 1, "ls": ":"} if hollow else {"lw": 5, "alpha": 0.3}
        axes.plot([1, value], [y, y], color=colour, solid_capstyle="butt", **bar_of)
        axes.plot([row["speedup_low"], end], [y, y], color=colour, lw=1.8)
        axes.plot(value, y, ms=6.5, **marker(colour, hollow=hollow))
        known = "" if math.isnan(end) else f"  [{row['speedup_low']:.2f}, {end:.2f}]"
        annotate_point(axes, f"{factor(value)}{known}", (np.nanmax([value, end, 1]), y), 7)
    axes.axvline(1, color=INK, lw=1)
    legend = f"line: {BASELINE}"
    if floor.low is not None and floor.high is not None:
        axes.axvspan(floor.low, floor.high, color=GREY, alpha=0.35, lw=0)
        legend += ", grey band: A/A noise floor"
    low = min(1.0, data["speedup_low"].min(), data["speedup"].min())
    span = (max(1.0, data["speedup_high"].max(), data["speedup"].max()) - low) or 1.0
    axes.set_xlim(low - 0.06 * span, low + 1.3 * span)
    num_exact = len(data) - data["decoder"].isin(marks).sum()
    if 0 < num_exact < len(data):
        axes.axhline(num_exact - 0.5, color=FAINT, lw=0.8, ls=(0, (4, 3)))
    name_rows(axes, list(data["decoder"]), marks)
    within = interval_of(data, "speedup", ", ")
    axes.set_xlabel(f"times as fast as ar, end to end (geometric mean of prompts{within})")
    axes.set_title("Speed-up by decoder")
    axes.set_title(legend, loc="right", fontsize=8, fontweight="normal", color=GREY)
    return figure, data


def text_width(text: str, points: float, *, bold: bool = False) -> float:
    """How wide a text of `points` is in Times, in the same unit."""
    font = FontProperties(
        family="STIXGeneral", weight="bold" if bold else "normal", size=_MEASURED_AT
    )
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) * points / _MEASURED_AT


def tokens_per_call_figure(summary: pd.DataFrame) -> Drawn | None:
    """Tokens per target call: one panel per family, one bar per decoder."""
    data = summary[["decoder", "family", "tokens_per_call"]].dropna().reset_index(drop=True)
    if data.empty:
        return None
    decoders = list(data["decoder"].unique())
    families = several_families(data["family"])
    palette, top = colours(list(summary["decoder"].unique())), data["tokens_per_call"].max()
    marks = lossy(summary)
    figure, grid = panels(len(families), 0.2 * len(decoders) + 0.62)
    for family, axes in zip(families, grid, strict=True):
        chosen = data[data["family"] == family].set_index("decoder")["tokens_per_call"]
        for y, decoder in enumerate(decoders):
            if decoder in chosen:
                value = float(chosen[decoder])
                how = bar(palette[decoder], hollow=decoder in marks)
                axes.barh(y, value, height=0.72, **how)
                annotate_point(axes, f"{value:.2f}", (value, y), 3, 7.5)
        axes.set_title(family.replace("_", " "), fontsize=9)
        axes.set_xlim(0, top * 1.3)
        axes.axvline(1, color=INK, lw=0.6, alpha=0.5)
        whole(axes.xaxis, 3)
        name_rows(axes, marked(decoders, marks))
    figure.supxlabel("tokens per target call, prefill included (ar is 1)", fontsize=9)
    return figure, data


def acceptance_length_figure(lengths: pd.DataFrame, summary: pd.DataFrame) -> Drawn | None:
    """How many tokens a step emits: one small histogram per decoder, its mean marked."""
    decoders = [d for d in lengths["decoder"].unique() if d != BASELINE]
    if not decoders:
        return None
    palette, marks = colours(list(summary["decoder"].unique())), lossy(summary)
    most = min(int(lengths["tokens"].max()), _MOST_BARS)
    first = min(1, int(lengths["tokens"].min()))
    pooled = lengths["tokens"].clip(upper=most)
    shares = {d: lengths["share"][lengths["decoder"] == d].groupby(pooled).sum() for d in decoders}
    top = max(float(share.max()) for share in shares.values())
    figure, grid = panels(len(decoders), 1.45)
    for decoder, axes in zip(decoders, grid, strict=True):
        chosen, share = lengths[lengths["decoder"] == decoder], shares[decoder]
        mean = float((chosen["tokens"] * chosen["share"]).sum())
        how = bar(palette[decoder], hollow=decoder in marks)
        axes.bar(share.index, share.to_numpy(), width=0.86, **how)
        wide = 22 if len(decoders) > 3 else 30
        lines = [*textwrap.wrap(decoder, wide), *textwrap.wrap(marks.get(decoder, ""), wide)]
        axes.set_title("\n".join(lines), fontsize=9)
        axes.axvline(min(mean, most), color=INK, lw=1, ls=(0, (2, 2)))
        left = mean < 0.6 * most
        point = (min(mean, most), 1.2 * top)
        annotate_point(
            axes, f"mean {mean:.2f}", point, 4 if left else -4, 8, "left" if left else "right"
        )
        percents(axes.yaxis, 3)
        axes.set(ylim=(0, 1.3 * top))
        axes.set_xticks(range(first, most + 1) if most <= 8 else range(0, most + 1, 4))
    tail = f" (last bar: {most} or more)" if lengths["tokens"].max() > most else ""
    figure.supxlabel("tokens emitted by a step after prefill" + tail, fontsize=9)
    figure.supylabel("share of steps", fontsize=9)
    return figure, lengths.reset_index(drop=True)


def overall(summary: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The columns of the summary over all families, a row per decoder."""
    chosen: pd.DataFrame = summary.loc[summary["family"] == ALL, ["decoder", *columns]]
    return chosen


def key(
    figure: Figure, decoders: Sequence[str], palette: Mapping[str, str], marks: Collection[str]
) -> None:
    """Names of decoders with their colours above a figure, made higher for them."""
    names = marked(decoders, marks)
    handles = [
        Line2D([], [], ls="", ms=6, label=name, **marker(palette[own], hollow=own in marks))
        for own, name in zip(decoders, names, strict=True)
    ]
    width, height = figure.get_size_inches()
    columns = _columns(names, float(width))
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


def _columns(names: Sequence[str], width: float) -> int:
    """The most columns in which names, downwards, fit into so many inches."""
    widths = [text_width(name, 9) * SANS / 72 + 0.32 for name in names]
    for columns in range(len(names), 1, -1):
        if sum(max(column) for column in np.array_split(widths, columns)) < width:
            return columns
    return 1


def several_families(column: pd.Series) -> list[str]:
    """Families in their order and then all together, which alone stands for a single one."""
    families = [f for f in family_order(column) if f != ALL] + [ALL]
    return families[-1:] if len(families) == 2 else families


def annotate_point(
    axes: Axes,
    text: str,
    point: tuple[float, float],
    gap: float,
    size: float = 9,
    side: Literal["left", "right"] = "left",
    colour: str | None = None,
) -> None:
    """Text beside a point, `gap` points to the right of it; `side` of the text is next to it."""
    how: dict[str, Any] = {"va": "center", "ha": side, "fontsize": size}
    if colour is not None:
        how["color"] = colour
    axes.annotate(text, point, (gap, 0), textcoords="offset points", **how)
