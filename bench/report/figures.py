"""The figures of a report; with `bench.report.dots` all of `bench` that imports matplotlib.

Each function draws one figure from a summary and returns it with the numbers in it. A decoder has
one colour in all of them (colour-blind-safe, the baseline grey) and is labelled where it is drawn.
Figures are built without pyplot, so no backend and no state are involved, and saved without dates:
the same records give the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bench.records.plan import BASELINE
from bench.report.style import (
    FAINT,
    GREY,
    INK,
    STYLE,
    WIDTH,
    bar,
    colours,
    footnotes,
    lossy,
    marker,
    place,
    without_wrong,
)
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.summary import ALL, family_order

Drawn = tuple[Figure, pd.DataFrame]
"""A figure and the numbers in it."""
_MOST_BARS = 16
_MEASURED_AT = 100
_WHOLE = [1, 2, 5, 10]
"""Steps between ticks that read as whole per cents."""


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
    """Inside it figures look as `bench.report.style` says, in type of `size` points."""
    return mpl.rc_context(dict(STYLE) | {"font.size": size})  # type: ignore[arg-type]


def draw_all(summary: pd.DataFrame, lengths: pd.DataFrame, floor: Estimate) -> dict[str, Drawn]:
    """Every figure there is data for, by file name, each with its data.

    Decoders that claim to be lossless and are not are left out, which a line under it says.
    """
    shown = without_wrong(summary)
    lengths = lengths[lengths["decoder"].isin(shown["decoder"])]
    with styled():
        drawn = {
            "speedup": speedup_figure(shown, floor),
            "tokens_per_call": _tokens_per_call_figure(shown),
            "acceptance_length": acceptance_length_figure(lengths, shown),
            "quality_speed": quality_speed_figure(shown),
        }
        return annotated(drawn, summary)


def annotated(drawn: Mapping[str, Drawn | None], summary: pd.DataFrame) -> dict[str, Drawn]:
    """The figures there are, made higher for the lines that stand under them."""
    there = {name: figure for name, figure in drawn.items() if figure is not None}
    notes = footnotes(summary)
    for figure, _ in there.values() if notes else ():
        _write_under(figure, notes)
    return there


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
    data = _overall(summary, ["speedup", "speedup_low", "speedup_high", "prompts", "guarantee"])
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
        beside(axes, f"{value:.2f}x{known}", (np.nanmax([value, end, 1]), y), 7)
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
    _name_rows(axes, list(data["decoder"]), marks)
    axes.set_xlabel(
        f"times as fast as ar, end to end (geometric mean of prompts, {LEVEL} interval)"
    )
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


def _tokens_per_call_figure(summary: pd.DataFrame) -> Drawn | None:
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
                beside(axes, f"{value:.2f}", (value, y), 3, 7.5)
        axes.set_title(family.replace("_", " "), fontsize=9)
        axes.set_xlim(0, top * 1.3)
        axes.axvline(1, color=INK, lw=0.6, alpha=0.5)
        whole(axes.xaxis, 3)
        _name_rows(axes, [f"{name} (lossy)" if name in marks else name for name in decoders])
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
        beside(axes, f"mean {mean:.2f}", point, 4 if left else -4, 8, "left" if left else "right")
        percents(axes.yaxis, 3)
        axes.set(ylim=(0, 1.3 * top))
        axes.set_xticks(range(first, most + 1) if most <= 8 else range(0, most + 1, 4))
    tail = f" (last bar: {most} or more)" if lengths["tokens"].max() > most else ""
    figure.supxlabel("tokens emitted by a step after prefill" + tail, fontsize=9)
    figure.supylabel("share of steps", fontsize=9)
    return figure, lengths.reset_index(drop=True)


def quality_speed_figure(summary: pd.DataFrame) -> Drawn | None:
    """Quality against speed-up, both with intervals; up and to the right is better."""
    ends = ("", "_low", "_high")
    names = [f"{name}{end}" for name in ("speedup", "quality") for end in ends] + ["guarantee"]
    data = _overall(summary, names).dropna(subset=["speedup", "quality"]).reset_index(drop=True)
    if data.empty:
        return None
    palette, marks = colours(list(summary["decoder"].unique())), lossy(summary)
    figure, axes = canvas(3.9)
    for row in data.to_dict("records"):
        (x, y), colour = (row["speedup"], row["quality"]), palette[row["decoder"]]
        axes.plot([row["speedup_low"], row["speedup_high"]], [y, y], color=colour, lw=1.2)
        axes.plot([x, x], [row["quality_low"], row["quality_high"]], color=colour, lw=1.2)
        axes.plot(x, y, ms=7, zorder=3, **marker(colour, hollow=row["decoder"] in marks))
    axes.margins(0.12)
    axes.grid(visible=True)
    bottom, top = axes.get_ylim()
    spare = max(0.0, 0.1 - (top - bottom)) / 2  # at least ten points: a hair is no difference
    highest = min(top + spare, 1.012)  # a share has no more than 100 %
    axes.set_ylim(bottom - spare - max(0.0, top + spare - highest), highest)
    percents(axes.yaxis, 7)
    axes.set_xlabel(f"times as fast as ar, end to end ({LEVEL} interval)")
    axes.set_ylabel(f"quality (mean of families, {LEVEL} interval)")
    axes.set_title("Quality against speed")
    texts = [f"{name} (lossy)" if name in marks else name for name in data["decoder"]]
    _label_points(figure, axes, data, texts, palette)
    return figure, data


def _overall(summary: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    chosen: pd.DataFrame = summary.loc[summary["family"] == ALL, ["decoder", *columns]]
    return chosen


def canvas(height: float) -> tuple[Figure, Axes]:
    """A figure of one panel, as wide as a text column; `height` in inches."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def several_families(column: pd.Series) -> list[str]:
    """Families in their order and then all together, which alone stands for a single one."""
    families = [f for f in family_order(column) if f != ALL] + [ALL]
    return families[-1:] if len(families) == 2 else families


def _name_rows(
    axes: Axes, decoders: Sequence[str], marks: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Decoders down the side, the first on top; long names wrap, and marks stand beneath."""
    names = [
        "\n".join([*textwrap.wrap(name, 26), *([marks[name]] if name in marks else [])])
        for name in decoders
    ]
    axes.set_yticks(range(len(decoders)), names)
    axes.set_ylim(len(decoders) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A grid of at most four panels a row, each `height` inches high, with shared axes."""
    columns = min(4, count)
    rows = math.ceil(count / columns)
    size = (WIDTH * max(columns, 3) / 4, height * rows + 0.35)
    figure = Figure(figsize=size, layout="constrained")
    grid = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for index, axes in enumerate(grid):
        axes.set_visible(index < count)
        axes.tick_params(labelsize=8, labelbottom=index + columns >= count)
    return figure, grid[:count]


def whole(axis: Axis, most: int) -> None:
    """At most so many ticks, at whole numbers."""
    axis.set_major_locator(MaxNLocator(most, integer=True))


def percents(axis: Axis, most: int) -> None:
    """At most so many ticks, at whole per cents of fractions."""
    axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_major_locator(MaxNLocator(most, steps=_WHOLE))


def beside(
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


def _label_points(
    figure: Figure,
    axes: Axes,
    data: pd.DataFrame,
    texts: Sequence[str],
    palette: Mapping[str, str],
) -> None:
    """Write each point's text next to it, with a thin line where it had to move away."""
    figure.draw_without_rendering()
    points, obstacles = [], []
    for row in data.to_dict("records"):
        at = [row["speedup"], row["quality"]]
        low, high = ([row[f"speedup_{end}"], row[f"quality_{end}"]] for end in ("low", "high"))
        ends = [at, np.where(np.isnan(low), at, low), np.where(np.isnan(high), at, high)]
        (x, y), (left, bottom), (right, top) = axes.transData.transform(np.array(ends))
        points.append((x, y))
        obstacles += [(x - 6, y - 6, x + 6, y + 6)]
        obstacles += [(left, y - 2, right, y + 2), (x - 2, bottom, x + 2, top)]
    unit = figure.dpi / 72
    sizes = [(len(text) * 5.6 * unit, 11.0 * unit) for text in texts]
    frame = axes.get_window_extent()
    boxes = place(points, sizes, obstacles, (frame.x0, frame.y0, frame.x1, frame.y1))
    to_axes = axes.transAxes.inverted().transform
    for text, name, (x, y), box in zip(texts, data["decoder"], points, boxes, strict=True):
        nearest = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))
        line = {"arrowstyle": "-", "color": palette[name], "lw": 0.7, "shrinkB": 4}
        axes.annotate(
            text,
            tuple(to_axes((x, y))),
            tuple(to_axes(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))),
            xycoords="axes fraction",
            textcoords="axes fraction",
            ha="center",
            va="center",
            arrowprops=line if math.dist((x, y), nearest) > 14 else None,
        )
