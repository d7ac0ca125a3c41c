"""Bars by decoder: tokens per call, tokens of a step, time by phase, memory."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from bench.records.plan import BASELINE
from bench.records.samples import PHASES
from bench.report.figures.axes import (
    annotate_point,
    name_rows,
    panels,
    percents,
    row_of_panels,
    whole,
)
from bench.report.figures.canvas import Plot, overall, several_families
from bench.report.figures.style import INK, Look
from bench.stats.decompose import Split
from bench.text import factor

_MAX_BARS = 16
_PHASE_COLOURS = {
    "prefill": "#9aa7b8",
    "draft": "#c8a45c",
    "verify": "#5a6f8f",
    "sampling": "#8aa886",
    "scheduler": "#b58a86",
    "other": "#c3bdb4",
}
"""Muted, so that no phase looks like a decoder."""
_PHASE_NAMES = {"verify": "target calls"}
"""AR verifies nothing: its ``verify`` time is that of the target calls after the first."""
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


def tokens_per_call_figure(summary: pd.DataFrame) -> Plot | None:
    """Draw tokens per target call: a panel per family, a bar per decoder."""
    data = summary[["decoder", "family", "tokens_per_call"]].dropna().reset_index(drop=True)
    if data.empty:
        return None
    decoders = list(data["decoder"].unique())
    families = several_families(data["family"])
    look, top = Look.of(summary), data["tokens_per_call"].max()
    figure, grid = panels(len(families), 0.2 * len(decoders) + 0.62)
    for family, axes in zip(families, grid, strict=True):
        for row in data[data["family"] == family].to_dict("records"):
            y, value = decoders.index(row["decoder"]), row["tokens_per_call"]
            axes.barh(y, value, height=0.72, **look.bar(row["decoder"]))
            annotate_point(axes, f"{value:.2f}", (value, y), 3, 7.5)
        axes.set_title(family.replace("_", " "), fontsize=9)
        axes.set_xlim(0, top * 1.3)
        axes.axvline(1, color=INK, lw=0.6, alpha=0.5)
        whole(axes.xaxis, 3)
        name_rows(axes, look.names(decoders))
    figure.supxlabel("tokens per target call, prefill included (ar is 1)", fontsize=9)
    return figure, data


def acceptance_length_figure(lengths: pd.DataFrame, summary: pd.DataFrame) -> Plot | None:
    """Draw how many tokens a step emits: a histogram per decoder, its mean marked."""
    decoders = [d for d in lengths["decoder"].unique() if d != BASELINE]
    if not decoders:
        return None
    look, max_tokens = Look.of(summary), int(lengths["tokens"].max())
    last, first = min(max_tokens, _MAX_BARS), min(1, int(lengths["tokens"].min()))
    clipped = lengths.assign(tokens=lengths["tokens"].clip(upper=last))
    shares = clipped.groupby(["decoder", "tokens"])["share"].sum()
    means = (lengths["tokens"] * lengths["share"]).groupby(lengths["decoder"]).sum()
    top, wide = shares.loc[decoders].max(), 22 if len(decoders) > 3 else 30
    figure, grid = panels(len(decoders), 1.45)
    for decoder, axes in zip(decoders, grid, strict=True):
        share, mean = shares.loc[decoder], float(means[decoder])
        axes.bar(share.index, share.to_numpy(), width=0.86, **look.bar(decoder))
        titles = (decoder, look.marks.get(decoder, ""))
        lines = [line for title in titles for line in textwrap.wrap(title, wide)]
        axes.set_title("\n".join(lines), fontsize=9)
        axes.axvline(min(mean, last), color=INK, lw=1, ls=(0, (2, 2)))
        left, point = mean < 0.6 * last, (min(mean, last), 1.2 * top)
        side: Literal["left", "right"] = "left" if left else "right"
        annotate_point(axes, f"mean {mean:.2f}", point, 4 if left else -4, 8, side)
        percents(axes.yaxis, 3)
        axes.set(ylim=(0, 1.3 * top))
        axes.set_xticks(range(first, last + 1) if last <= 8 else range(0, last + 1, 4))
    tail = f" (last bar: {last} or more)" if max_tokens > last else ""
    figure.supxlabel("tokens emitted by a step after prefill" + tail, fontsize=9)
    figure.supylabel("share of steps", fontsize=9)
    return figure, lengths.reset_index(drop=True)


def time_split_figure(splits: Sequence[Split], summary: pd.DataFrame) -> Plot | None:
    """Draw the time of a token by phase, as shares and in milliseconds, a bar per decoder."""
    splits = [split for split in splits if split.decoder in set(summary["decoder"])]
    if not splits:
        return None
    each = [1e3 * split.time_per_token_s for split in splits]
    rows = [
        (split.decoder, phase, share, share * ms)
        for split, ms in zip(splits, each, strict=True)
        for phase, share in split.shares.items()
    ]
    data = pd.DataFrame(rows, columns=["decoder", "phase", "share", "ms_per_token"])
    phases = [phase for phase in PHASES if data.loc[data["phase"] == phase, "share"].max() > 0]
    figure, grid = row_of_panels(2, 0.3 * len(splits) + 1.1, rows=True)
    for column, axes in zip(("share", "ms_per_token"), grid, strict=True):
        left = np.zeros(len(splits))
        for phase in phases:
            widths = data.loc[data["phase"] == phase, column].to_numpy()
            label, colour = _PHASE_NAMES.get(phase, phase), _PHASE_COLOURS[phase]
            axes.barh(range(len(splits)), widths, 0.7, left=left, label=label, color=colour)
            left += widths
    for y, ms in enumerate(each):
        annotate_point(grid[1], _short(ms), (ms, y), 3, 8)
    percents(grid[0].xaxis, 5)
    grid[0].set_xlim(0, 1)
    grid[1].set_xlim(0, 1.15 * max(each))
    grid[1].tick_params(axis="y", length=0)
    grid[0].set_title("share of time", fontsize=9)
    grid[1].set_title("ms per token", fontsize=9)
    name_rows(grid[0], Look.of(summary).names(split.decoder for split in splits))
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(phases), frameon=False)
    return figure, data


def memory_figure(summary: pd.DataFrame) -> Plot | None:
    """Draw the most memory an answer needed, by decoder, with its ratio to the baseline's."""
    data = overall(summary, ["peak_memory_bytes"]).dropna().reset_index(drop=True)
    if data.empty:
        return None
    data["peak_memory_bytes"] = data["peak_memory_bytes"].astype("int64")
    of_ar = data.loc[data["decoder"] == BASELINE, "peak_memory_bytes"]
    data["over_ar"] = data["peak_memory_bytes"] / (of_ar.iloc[0] if len(of_ar) else np.nan)
    look, peak = Look.of(summary), int(data["peak_memory_bytes"].max())
    size, unit = next(((s, u) for s, u in _UNITS if peak >= s), _UNITS[-1])
    figure, (axes,) = row_of_panels(1, 0.28 * len(data) + 0.85)
    for y, row in enumerate(data.to_dict("records")):
        value, name = row["peak_memory_bytes"] / size, row["decoder"]
        axes.barh(y, value, height=0.68, **look.bar(name))
        times = f"  ({factor(row['over_ar'])} ar)" if name != BASELINE and len(of_ar) else ""
        annotate_point(axes, f"{_short(value)} {unit}{times}", (value, y), 4, 8.5)
    for value in of_ar:
        axes.axvline(value / size, color=INK, lw=0.7, alpha=0.5)
    axes.set_xlim(0, 1.3 * peak / size)
    name_rows(axes, look.names(data["decoder"]))
    axes.set_xlabel(f"peak memory of an answer, {unit}")
    axes.set_title("Peak memory")
    return figure, data


def _short(value: float) -> str:
    return f"{value:.{1 if value >= 10 else 2}f}"
