"""Bars and curves by decoder, a figure each.

Bars: tokens per call, tokens of a step, time by phase, memory. Curves: drafts by position, waiting
times, entropy, passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from bench.records.plan import BASELINE
from bench.records.samples import PHASES
from bench.report.figures.canvas import (
    Plot,
    annotate_point,
    key,
    log_ticks,
    name_rows,
    overall,
    panels,
    percents,
    points,
    row_of_panels,
    several_families,
    whole,
)
from bench.report.figures.style import FAINT, GREY, INK, Look
from bench.report.tables.table import over
from bench.stats.calibration import NUM_BINS
from bench.stats.decompose import Split
from bench.stats.further_tables import BETWEEN, FIRST
from bench.stats.parallel_counters import curves as settings_of
from bench.stats.summary import ALL
from bench.text import factor, name_lines

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
_MIN_STEPS = 20
"""Steps that must reach a position for it to be shown; the data has all positions."""
_MAX_POSITIONS = 16
_ACCEPTANCE = (
    ("joint", "joint: drafts\n1 to j all accepted", "share of steps"),
    ("conditional", "conditional: draft j, if\nall earlier are accepted", "share of drafts j"),
    ("decay", "change along the step\n(below 0: suffix decay)", "points above position 1"),
)
_MIN_POINTS = 3
"""Smallest number of families, or of block decoders, for a curve."""


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
    top, wide = shares.loc[decoders].max(), 22 if len(decoders) > 2 else 30
    figure, grid = panels(len(decoders), 1.45)
    for decoder, axes in zip(decoders, grid, strict=True):
        share, mean = shares.loc[decoder], float(means[decoder])
        axes.bar(share.index, share.to_numpy(), width=0.86, **look.bar(decoder))
        titles = (decoder, look.marks.get(decoder, ""))
        lines = [line for title in titles for line in name_lines(title, wide)]
        axes.set_title("\n".join(lines), fontsize=8.5)
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
    base = over(summary)
    of_ar = data.loc[data["decoder"] == base, "peak_memory_bytes"]
    data["over_ar"] = data["peak_memory_bytes"] / (of_ar.iloc[0] if len(of_ar) else np.nan)
    look, peak = Look.of(summary), int(data["peak_memory_bytes"].max())
    size, unit = next(((s, u) for s, u in _UNITS if peak >= s), _UNITS[-1])
    figure, (axes,) = row_of_panels(1, 0.28 * len(data) + 0.85)
    for y, row in enumerate(data.to_dict("records")):
        value, name = row["peak_memory_bytes"] / size, row["decoder"]
        axes.barh(y, value, height=0.68, **look.bar(name))
        times = f"  ({factor(row['over_ar'])} {base})" if name != base and len(of_ar) else ""
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


def acceptance_figure(acceptance: pd.DataFrame, summary: pd.DataFrame) -> Plot | None:
    """Draw joint and conditional acceptance by position, and the conditional less position 1's.

    Joint acceptance falls with j by definition; conditional acceptance falls if drafts get worse.
    """
    mask = acceptance["decoder"].isin(summary["decoder"]) & (acceptance["family"] == ALL)
    data = acceptance[mask].drop(columns="family").reset_index(drop=True)
    if (data["reached"] < _MIN_STEPS).all():
        return None
    first = data[data["position"] == 1].set_index("decoder")["conditional"]
    data["decay"] = data["conditional"] - data["decoder"].map(first)
    shown = data[(data["reached"] >= _MIN_STEPS) & (data["position"] <= _MAX_POSITIONS)]
    look, last = Look.of(summary), int(shown["position"].max())
    figure, grid = row_of_panels(len(_ACCEPTANCE), 2.5)
    for (column, title, label), axes in zip(_ACCEPTANCE, grid, strict=True):
        for decoder, rows in shown.groupby("decoder", sort=False):
            style: dict[str, Any] = {"color": look.palette[str(decoder)], "ms": 3.5, "lw": 1.3}
            axes.plot(rows["position"], rows[column], "-o", **style)
        axes.set_title(title, fontsize=9)
        axes.set_ylabel(label, fontsize=8)
        axes.grid(visible=True, axis="y")
        axes.set_xticks(range(1, last + 1) if last <= 8 else [1, *range(4, last + 1, 4)])
    for axes in grid[:2]:
        percents(axes.yaxis, 5)
        axes.set_ylim(0, 1.04)
    grid[2].axhline(0, color=GREY, lw=1)
    points(grid[2].yaxis)
    grid[2].set_ylim(min(-0.1, 1.25 * shown["decay"].min()), max(0.1, 1.25 * shown["decay"].max()))
    key(figure, list(shown["decoder"].unique()), Look(look.palette, {}))
    figure.supxlabel("position j of a draft in its step", fontsize=9)
    return figure, data


def latency_figure(latency: pd.DataFrame, summary: pd.DataFrame) -> Plot | None:
    """Draw the cumulative shares of waits for the first token, and for the next chunk.

    `latency` comes from `bench.stats.further_tables.latency_table`.
    """
    data = latency[latency["decoder"].isin(summary["decoder"])].reset_index(drop=True)
    if data.empty:
        return None
    look = Look.of(summary)
    waits = [wait for wait in (BETWEEN, FIRST) if (data["wait"] == wait).any()]
    figure, grid = row_of_panels(len(waits), 2.8, rows=True)
    for wait, axes in zip(waits, grid, strict=True):
        for decoder, rows in data[data["wait"] == wait].groupby("decoder", sort=False):
            style: dict[str, Any] = {"color": look.palette[str(decoder)], "lw": 1.5}
            style |= {"ls": (0, (3, 1.5)) if decoder in look.marks else "-"}
            x, y = 1e3 * rows["seconds"], rows["percentile"] / 100
            axes.plot(x, y, drawstyle="steps-post", **style)
        axes.set_title(f"time to {wait}" if wait == FIRST else f"time {wait}", fontsize=9)
        axes.set_xlabel("ms")
        axes.grid(visible=True)
        axes.set_ylim(0, 1.01)
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
    percents(grid[0].yaxis, 5)
    grid[0].set_yticks([0, 0.25, 0.5, 0.75, 0.9, 0.99])
    grid[0].set_ylabel("cumulative share of waits")
    key(figure, list(data["decoder"].unique()), look)
    return figure, data


def calibration_figure(table: pd.DataFrame, summary: pd.DataFrame) -> Plot | None:
    """Draw the accepted share of drafts against their confidence, a panel per decoder."""
    data = table[table["decoder"].isin(summary["decoder"])]
    data = data.groupby(["decoder", "bin"], sort=False)[["drafts", "accepted", "confidence"]].sum()
    data = data.reset_index().sort_values("bin", kind="stable")
    data[["accepted", "confidence"]] = data[["accepted", "confidence"]].div(data["drafts"], axis=0)
    decoders = [name for name in summary["decoder"].unique() if name in set(data["decoder"])]
    if not decoders:
        return None
    look, errors = Look.of(summary), overall(summary, ["ece"]).set_index("decoder")["ece"]
    figure, grid = panels(len(decoders), 1.65)
    for decoder, axes in zip(decoders, grid, strict=True):
        rows = data[data["decoder"] == decoder]
        heights, colour = rows["drafts"] / rows["drafts"].sum(), look.palette[decoder]
        axes.bar((rows["bin"] - 0.5) / NUM_BINS, heights, 0.9 / NUM_BINS, color=FAINT)
        axes.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=(0, (2, 2)))
        shown = rows[rows["drafts"] >= _MIN_STEPS]
        axes.plot(shown["confidence"], shown["accepted"], "-o", color=colour, ms=3, lw=1.2)
        axes.set_title("\n".join(name_lines(decoder, 22)), fontsize=9)
        annotate_point(axes, f"ECE {errors[decoder]:.3f}", (0.03, 0.94), 0, 7.5)
        axes.set(xlim=(0, 1), ylim=(0, 1.02))
        percents(axes.xaxis, 4)
        percents(axes.yaxis, 4)
        axes.set_xticks([0.25, 0.5, 0.75])  # those at the ends would touch the next panel's
    figure.supxlabel("confidence of a draft (grey bars: share of drafts)", fontsize=9)
    figure.supylabel("accepted", fontsize=9)
    return figure, data.reset_index(drop=True)


def entropy_figure(summary: pd.DataFrame) -> Plot | None:
    """Draw tokens per forward by family, ordered by the mean entropy of ar's distributions."""
    of_ar = summary[(summary["decoder"] == BASELINE) & (summary["family"] != ALL)]
    of_ar = of_ar.dropna(subset=["base_entropy", "tpf"]).sort_values("base_entropy", kind="stable")
    entropy = of_ar.set_index("family")["base_entropy"].astype(float)
    mask = summary["family"].isin(entropy.index) & (summary["decoder"] != BASELINE)
    data = summary.loc[mask, ["decoder", "family", "tpf"]].dropna()
    if len(entropy) < _MIN_POINTS or data.empty:
        return None
    data["entropy"] = data["family"].map(entropy)
    data = data.sort_values(["decoder", "entropy"], kind="stable").reset_index(drop=True)
    look, families = Look.of(summary), list(entropy.index)
    decoders = [name for name in summary["decoder"].unique() if name in set(data["decoder"])]
    figure, (axes,) = row_of_panels(1, 3.0)
    for position in range(len(families)):
        axes.axvspan(position - 0.42, position + 0.42, color=FAINT, alpha=0.25, lw=0)
    for index, decoder in enumerate(decoders):
        rows = data[data["decoder"] == decoder]
        offset = 0.34 * (2 * index / (len(decoders) - 1) - 1) if len(decoders) > 1 else 0.0
        x = rows["family"].map(families.index) + offset
        axes.plot(x, rows["tpf"], ls="", ms=5.5, **look.marker(decoder))
    axes.axhline(1, color=GREY, lw=1)
    names = [f"{str(name).replace('_', ' ')}\n{value:.2g}" for name, value in entropy.items()]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mean entropy of ar's next-token distributions along its answers, nats")
    axes.set_ylabel("tokens per forward (ar is 1)")
    key(figure, decoders, look)
    return figure, data


def passes_figure(summary: pd.DataFrame) -> Plot | None:
    """Draw quality against passes per block, a panel per family, with ar as the grey line.

    Cells of one decoder whose labels differ in the number at their end form a curve, which begins
    with a decoder of a single pass.
    """
    data = summary[["decoder", "family", "passes_per_block", "quality"]].dropna()
    if data["decoder"].nunique() < _MIN_POINTS:
        return None
    families, look = several_families(data["family"]), Look.of(summary)
    baseline = summary[summary["decoder"] == BASELINE].set_index("family")["quality"]
    decoders = list(data["decoder"].unique())
    first = data.loc[data["passes_per_block"] == 1, "decoder"].unique()[:1]
    figure, grid = panels(len(families), 1.5)
    for family, axes in zip(families, grid, strict=True):
        rows = data[data["family"] == family].sort_values("passes_per_block", kind="stable")
        for cells in settings_of(decoders).values():
            if len(cells) > 1:
                line = rows[rows["decoder"].isin([*first, *cells])]
                style: dict[str, Any] = {"color": look.palette[cells[0]], "lw": 0.9, "alpha": 0.7}
                axes.plot(line["passes_per_block"], line["quality"], **style)
        for row in rows.to_dict("records"):
            axes.plot(row["passes_per_block"], row["quality"], ms=4, **look.marker(row["decoder"]))
        axes.axhline(float(baseline.get(family, float("nan"))), color=GREY, lw=1.2)
        axes.set_title(family.replace("_", " "), fontsize=9)
        axes.set_ylim(0, 1.04)
        percents(axes.yaxis, 4)
        whole(axes.xaxis, 4)
    key(figure, decoders, look)
    aside = "" if baseline.dropna().empty else " (grey line: ar)"
    figure.supxlabel(f"passes per block{aside}", fontsize=9)
    figure.supylabel("quality", fontsize=9)
    return figure, data.reset_index(drop=True)
