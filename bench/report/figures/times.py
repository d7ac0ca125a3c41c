"""What answers cost: waiting for tokens, time by phase, memory, and speed-up by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.records.phases import PHASES
from bench.records.plan import BASELINE
from bench.report.figures.axes import canvas, decades, dodged, name_rows, percents, row_of_panels
from bench.report.figures.canvas import Drawn, annotate_point, key, overall
from bench.report.figures.style import GREY, INK, bar, colours, lossy, marked, marker
from bench.stats.decompose import Split
from bench.stats.latency import BETWEEN, FIRST
from bench.text import factor

_PHASE_COLOURS = {
    "prefill": "#9aa7b8",
    "draft": "#c8a45c",
    "verify": "#5a6f8f",
    "sampling": "#8aa886",
    "scheduler": "#b58a86",
    "other": "#c3bdb4",
}
"""Muted, so that none is taken for a decoder's."""
_PHASE_NAMES = {"verify": "target calls"}
"""AR verifies nothing: what is timed there are the calls of the target after the first."""
_VARIES = 1.5
"""How many times as long as short answers long ones are, for lengths to be shown."""
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def latency_figure(latency: pd.DataFrame, summary: pd.DataFrame) -> Drawn | None:
    """How many waits for the first token, and for the next chunk, were no longer than that.

    `latency` is `bench.stats.latency.latency_table`'s.
    """
    data = latency[latency["decoder"].isin(summary["decoder"])].reset_index(drop=True)
    if data.empty:
        return None
    palette, marks = colours(list(summary["decoder"].unique())), lossy(summary)
    waits = [wait for wait in (BETWEEN, FIRST) if (data["wait"] == wait).any()]
    figure, grid = row_of_panels(len(waits), 2.8, rows=True)
    for wait, axes in zip(waits, grid, strict=True):
        for decoder in data["decoder"].unique():
            mine = data[(data["decoder"] == decoder) & (data["wait"] == wait)]
            if mine.empty:
                continue
            line = (0, (3, 1.5)) if decoder in marks else "-"
            how: dict[str, Any] = {
                "color": palette[decoder],
                "lw": 1.5,
                "ls": line,
                "drawstyle": "steps-post",
            }
            axes.plot(1e3 * mine["seconds"], mine["percentile"] / 100, **how)
        axes.set_title(f"time to {wait}" if wait == FIRST else f"time {wait}", fontsize=9)
        axes.set_xlabel("ms")
        axes.grid(visible=True)
        axes.set_ylim(0, 1.01)
        decades(axes.xaxis)
    percents(grid[0].yaxis, 5)
    grid[0].set_yticks([0, 0.25, 0.5, 0.75, 0.9, 0.99])
    grid[0].set_ylabel("share that waited no longer")
    key(figure, list(data["decoder"].unique()), palette, marks)
    return figure, data


def time_split_figure(splits: Sequence[Split], summary: pd.DataFrame) -> Drawn | None:
    """Where the time of a token goes, as shares and in milliseconds, a bar per decoder."""
    shown = [split for split in splits if split.decoder in set(summary["decoder"])]
    if not shown:
        return None
    rows = [
        (split.decoder, phase, share, 1e3 * share * split.time_per_token_s)
        for split in shown
        for phase, share in split.shares.items()
    ]
    data = pd.DataFrame(rows, columns=["decoder", "phase", "share", "ms_per_token"])
    phases = [phase for phase in PHASES if data.loc[data["phase"] == phase, "share"].max() > 0]
    figure, grid = row_of_panels(2, 0.3 * len(shown) + 1.1, rows=True)
    for column, axes in zip(("share", "ms_per_token"), grid, strict=True):
        left = np.zeros(len(shown))
        for phase in phases:
            widths = data.loc[data["phase"] == phase, column].to_numpy()
            colour = _PHASE_COLOURS[phase]
            how: dict[str, Any] = {"height": 0.7, "color": colour}
            label = _PHASE_NAMES.get(phase, phase)
            axes.barh(range(len(shown)), widths, left=left, label=label, **how)
            left += widths
    for y, split in enumerate(shown):
        each = 1e3 * split.time_per_token_s
        annotate_point(grid[1], _short(each), (each, y), 3, 8)
    percents(grid[0].xaxis, 5)
    grid[0].set_xlim(0, 1)
    grid[1].set_xlim(0, 1.15e3 * max(split.time_per_token_s for split in shown))
    grid[1].tick_params(axis="y", length=0)
    grid[0].set_title("share of the time", fontsize=9)
    grid[1].set_title("ms per token", fontsize=9)
    name_rows(grid[0], marked([split.decoder for split in shown], lossy(summary)))
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(phases), frameon=False)
    return figure, data


def memory_figure(summary: pd.DataFrame) -> Drawn | None:
    """The most memory an answer needed, by decoder, and how that compares with the baseline's."""
    data = overall(summary, ["peak_memory_bytes"]).dropna().reset_index(drop=True)
    if data.empty:
        return None
    data["peak_memory_bytes"] = data["peak_memory_bytes"].astype("int64")
    of_ar = data.loc[data["decoder"] == BASELINE, "peak_memory_bytes"]
    data["over_ar"] = data["peak_memory_bytes"] / (of_ar.iloc[0] if len(of_ar) else np.nan)
    palette, marks = colours(list(summary["decoder"].unique())), lossy(summary)
    most = int(data["peak_memory_bytes"].max())
    size, unit = next(((s, u) for s, u in _UNITS if most >= s), (1, "bytes"))
    figure, axes = canvas(0.28 * len(data) + 0.85)
    for y, row in enumerate(data.to_dict("records")):
        value, name = row["peak_memory_bytes"] / size, row["decoder"]
        axes.barh(y, value, height=0.68, **bar(palette[name], hollow=name in marks))
        known = name != BASELINE and not np.isnan(row["over_ar"])
        times = f"  ({factor(row['over_ar'])} ar)" if known else ""
        annotate_point(axes, f"{_short(value)} {unit}{times}", (value, y), 4, 8.5)
    if len(of_ar):
        axes.axvline(of_ar.iloc[0] / size, color=INK, lw=0.7, alpha=0.5)
    axes.set_xlim(0, 1.3 * most / size)
    name_rows(axes, marked(data["decoder"], marks))
    axes.set_xlabel(f"peak memory of an answer, {unit}")
    axes.set_title("Peak memory")
    return figure, data


def speedup_by_length_figure(lengths: pd.DataFrame, summary: pd.DataFrame) -> Drawn | None:
    """Speed-up in groups of prompts, from those ar answers shortly to those it answers at length.

    `lengths` is `bench.stats.lengths.by_length`'s.
    """
    data = lengths[lengths["decoder"].isin(summary["decoder"])].reset_index(drop=True)
    if data.empty or data["ar_tokens"].max() < _VARIES * data["ar_tokens"].min():
        return None
    palette, marks = colours(list(summary["decoder"].unique())), lossy(summary)
    decoders = list(data["decoder"].unique())
    groups = data.drop_duplicates("ar_tokens").sort_values("ar_tokens")
    places = {tokens: place for place, tokens in enumerate(groups["ar_tokens"])}
    figure, axes = canvas(2.9)
    for index, decoder in enumerate(decoders):
        mine = data[data["decoder"] == decoder]
        colour, hollow = palette[decoder], decoder in marks
        x = mine["ar_tokens"].map(places) + dodged(index, len(decoders), 0.3)
        axes.plot(x, mine["speedup"], color=colour, lw=0.9, alpha=0.6)
        axes.vlines(x, mine["speedup_low"], mine["speedup_high"], color=colour, lw=1.4)
        axes.plot(x, mine["speedup"], ls="", ms=5, **marker(colour, hollow=hollow))
    axes.axhline(1, color=GREY, lw=1)
    ends = zip(groups["shortest"], groups["longest"], strict=True)
    names = [f"{low:g}" if low == high else f"{low:g} to {high:g}" for low, high in ends]
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("length of ar's answer, tokens")
    axes.set_ylabel("times as fast as ar")
    axes.set_title("Speed-up by length")
    key(figure, decoders, palette, marks)
    return figure, data


def _short(value: float) -> str:
    return f"{value:.{1 if value >= 10 else 2}f}"
