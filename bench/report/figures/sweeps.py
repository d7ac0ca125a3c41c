"""Figures of a sweep: one number of every decoder along one axis, a panel for every setting else.

Each returns the numbers in it; None where the sweep has not that axis, or nothing along it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.records.plan import BASELINE, WRONG
from bench.report.figures.axes import panels
from bench.report.figures.canvas import Drawn, annotate, key, styled
from bench.report.figures.style import GREY, colours, lossy, marker
from bench.stats.intervals import LEVEL
from bench.stats.validity import VALID

_MOST_PANELS = 8
_STEP_OCTAVES = 0.045
_STEP = 0.008
"""How far apart decoders stand at one place: doublings, or a share of the axis."""
_WRAPPED = 24
"""Characters of a panel's title in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure of a sweep: its file, the axis it goes along, the number it shows.

    `scale` multiplies the number; `doubling` says that the axis counts in powers of two; a thin
    line stands at `level`. With `cell` it is of that decoder alone.
    """

    name: str
    axis: str
    axis_label: str
    column: str
    label: str
    caption: str
    with_baseline: bool = False
    doubling: bool = False
    scale: float = 1.0
    level: float | None = None
    cell: str | None = None


HEADLINES = (
    Curve(
        name="speedup_by_batch_size",
        axis="batch_size",
        axis_label="sequences at once",
        column="speedup",
        label="speed-up over ar",
        caption=f"Speed-up over ar of the same run against batch size, with {LEVEL} intervals: "
        "where a decoder falls below the line, it no longer pays.",
        doubling=True,
        level=1.0,
    ),
    Curve(
        name="tokens_by_temperature",
        axis="temperature",
        axis_label="temperature",
        column="acceptance_length",
        label="tokens per step",
        caption=f"Tokens that a step emits after the first, against temperature, with {LEVEL} "
        "intervals: accepted ones where a decoder verifies.",
        level=1.0,
    ),
    Curve(
        name="time_by_length",
        axis="max_new_tokens",
        axis_label="tokens an answer may have",
        column="time_per_token_s",
        label="ms per token",
        caption="Time of a token, prefill included, against output length. Without a KV cache "
        "(ar@LABEL:cache=false) it grows with the text.",
        with_baseline=True,
        doubling=True,
        scale=1e3,
    ),
)


def other_curves(axes: Sequence[str]) -> list[Curve]:
    """Speed-up along every other axis; of a decoder's option for that decoder alone."""
    known = {curve.axis for curve in HEADLINES}
    return [
        Curve(
            name=f"speedup_by_{axis.replace('.', '_').replace('@', '_')}",
            axis=axis,
            axis_label=axis.replace("_", " "),
            column="speedup",
            label="speed-up over ar",
            caption=f"Speed-up over ar of the same run against {axis.replace('_', ' ')}, with "
            f"{LEVEL} intervals.",
            level=1.0,
            cell=axis.rpartition(".")[0] or None,
        )
        for axis in axes
        if axis not in known
    ]


def curve_figure(frame: pd.DataFrame, curve: Curve, axes: Sequence[str]) -> Drawn | None:
    """A line per decoder along the curve's axis, a panel per combination of the other axes.

    `frame` is `bench.report.texts.sweep.frame`'s. Decoders that are WRONG are left out. Panels
    beyond the first eight are not drawn; their numbers are in the data.
    """
    if curve.axis not in axes:
        return None
    others = [axis for axis in axes if axis != curve.axis]
    groups = _groups(_data(frame, curve), curve.axis, others)
    if not groups:
        return None
    data = pd.concat([rows for _, rows in groups], ignore_index=True)
    shown = list(dict.fromkeys(data["decoder"]))
    palette, marks = colours(shown), lossy(frame)
    with styled():
        figure, grid = panels(min(len(groups), _MOST_PANELS), 2.4)
        for (title, rows), place in zip(groups, grid, strict=False):
            for decoder in dict.fromkeys(rows["decoder"]):
                mine = rows[rows["decoder"] == decoder]
                x = _aside(mine[curve.axis].astype(float), shown.index(decoder), len(shown), curve)
                y = curve.scale * mine[curve.column]
                how = marker(palette[decoder], hollow=decoder in marks)
                place.plot(x, y, color=palette[decoder], lw=1.2, ms=4.5, **how)
                if f"{curve.column}_low" in mine:
                    low, high = mine[f"{curve.column}_low"], mine[f"{curve.column}_high"]
                    ends = (curve.scale * low, curve.scale * high)
                    place.vlines(x, *ends, color=palette[decoder], lw=1, alpha=0.6)
            if curve.level is not None:
                place.axhline(curve.level, color=GREY, lw=1)
            place.set_title(title, fontsize=8)
            ticks = sorted(set(rows[curve.axis].astype(float)))
            if curve.doubling:
                place.set_xscale("log", base=2)
                place.set_yscale("linear")
            place.minorticks_off()
            place.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            place.set_ylim(bottom=0)
        key(figure, shown, palette, marks)
        figure.supxlabel(curve.axis_label, fontsize=9)
        figure.supylabel(curve.label, fontsize=9)
        told = frame["decoder"].isin(shown) | (frame["guarantee"] == WRONG)
        annotate(figure, frame[told], hollow=True)
    return figure, data


def _aside(places: pd.Series[float], index: int, count: int, curve: Curve) -> pd.Series[float]:
    """Places of one decoder, a little beside each other's, so that intervals do not overlap."""
    steps = index - (count - 1) / 2
    if curve.doubling:
        return places * float(2 ** (_STEP_OCTAVES * steps))
    return places + _STEP * steps * (float(places.max()) - float(places.min()))


def _data(frame: pd.DataFrame, curve: Curve) -> pd.DataFrame:
    """What a curve shows: rows of whole runs that have its number and a place on its axis."""
    if curve.column not in frame or "decoder" not in frame:
        return frame.iloc[:0]
    whole = frame["verdict"].isin([VALID, WRONG])  # of a run that is WRONG the others stand
    chosen = frame[whole & (frame["guarantee"] != WRONG)]
    if curve.cell is not None:
        chosen = chosen[chosen["decoder"] == curve.cell]
    elif not curve.with_baseline:
        chosen = chosen[chosen["decoder"] != BASELINE]
    places = pd.to_numeric(chosen[curve.axis], errors="coerce")
    chosen = chosen.assign(**{curve.axis: places})
    return chosen.dropna(subset=[curve.axis, curve.column])


def _groups(data: pd.DataFrame, axis: str, others: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Points that differ on the axis alone, by what they share; at least two places each."""
    names = data[list(others)].map(_text) if others else pd.DataFrame(index=data.index)
    shared = names.agg(tuple, axis=1) if others else pd.Series([()] * len(data), index=data.index)
    made = {}
    for values in dict.fromkeys(shared):
        rows = data[[value == values for value in shared]].sort_values(axis, kind="stable")
        if rows[axis].nunique() > 1:
            columns = ["point", "decoder", axis, *others]
            numbers = [c for c in rows.columns if c not in columns]
            made[values] = rows[[*columns, *numbers]]
    told = [len(set(values)) > 1 for values in zip(*made, strict=True)]
    return [(_title(others, values, told), rows) for values, rows in made.items()]


def _title(names: Sequence[str], values: Sequence[str], told: Sequence[bool]) -> str:
    """What is a panel's own, wrapped."""
    parts = zip(names, values, told, strict=True)
    text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value, own in parts if own)
    return textwrap.fill(text, _WRAPPED)


def _text(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:g}" if isinstance(value, int | float) else str(value)
