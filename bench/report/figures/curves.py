"""Curves: drafts by position, waiting times, entropy, passes, call times."""

from __future__ import annotations

from typing import Any

import pandas as pd

from bench.records.plan import BASELINE
from bench.report.figures.axes import (
    log_ticks,
    panels,
    percents,
    points,
    row_of_panels,
    whole,
)
from bench.report.figures.canvas import Plot, key, several_families
from bench.report.figures.style import FAINT, GREY, Look
from bench.stats.further_tables import BETWEEN, FIRST
from bench.stats.parallel_counters import curves as settings_of
from bench.stats.summary import ALL

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


def entropy_figure(summary: pd.DataFrame) -> Plot | None:
    """Draw tokens per forward by family, ordered by the mean entropy of ar's distributions."""
    of_ar = summary[(summary["decoder"] == BASELINE) & (summary["family"] != ALL)]
    of_ar = of_ar.dropna(subset=["base_entropy"]).sort_values("base_entropy", kind="stable")
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
    figure.supxlabel("passes per block (grey line: ar)", fontsize=9)
    figure.supylabel("quality", fontsize=9)
    return figure, data.reset_index(drop=True)
