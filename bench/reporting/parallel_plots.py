"""Figures of parallel decoding: gain against the text's entropy, quality against passes.

Drawn where a run has what they show: target entropies by family come from the quality pass, passes
from decoders that refine blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.metrics import BASELINE
from bench.plots import Drawn, beside, canvas, panels, percents, several_families, styled, whole
from bench.reporting.palette import GREY, INK, colours
from bench.summary import ALL

_FEWEST = 3
"""Families, or numbers of passes, that make a curve."""


def draw_all(summary: pd.DataFrame) -> dict[str, Drawn]:
    """Both, by file name, where there is data for them."""
    with styled():
        drawn = {"entropy": entropy_figure(summary), "passes": passes_figure(summary)}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def entropy_figure(summary: pd.DataFrame) -> Drawn | None:
    """Tokens per forward by family, families in the order of the mean entropy of ar's laws."""
    of_ar = summary[(summary["decoder"] == BASELINE) & (summary["family"] != ALL)]
    of_ar = of_ar.dropna(subset=["base_entropy"]).sort_values("base_entropy", kind="stable")
    entropy = dict(zip(of_ar["family"], of_ar["base_entropy"].astype(float), strict=True))
    data = summary.loc[
        summary["family"].isin(list(entropy)) & (summary["decoder"] != BASELINE),
        ["decoder", "family", "tpf"],
    ].dropna()
    if len(entropy) < _FEWEST or data.empty:
        return None
    data["entropy"] = data["family"].map(entropy)
    data = data.sort_values(["decoder", "entropy"], kind="stable").reset_index(drop=True)
    palette = colours(list(summary["decoder"].unique()))
    places = {family: place for place, family in enumerate(entropy)}
    figure, axes = canvas(3.2)
    for decoder in dict.fromkeys(summary["decoder"]):
        points = data[data["decoder"] == decoder]
        if len(points):
            x = points["family"].map(places)
            axes.plot(x, points["tpf"], "o-", color=palette[decoder], ms=5, lw=1.4)
    ends = data.groupby("decoder", sort=False)["tpf"].last()
    for y, decoder in _apart(ends.to_dict(), data["tpf"].max()):
        beside(axes, decoder, (len(places) - 1, y), 8)
    axes.axhline(1, color=GREY, lw=1)
    names = [f"{str(name).replace('_', ' ')}\n{value:.2g}" for name, value in entropy.items()]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.3, len(names) - 0.2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mean entropy of ar's next-token laws along its answers, nats")
    axes.set_ylabel("tokens per forward (ar is 1)")
    return figure, data


def passes_figure(summary: pd.DataFrame) -> Drawn | None:
    """Quality against passes per block, one panel per family; ar is the line above."""
    data = summary[["decoder", "family", "passes_per_block", "quality"]].dropna()
    if data["passes_per_block"].nunique() < _FEWEST:
        return None
    families = several_families(data["family"])
    baseline = summary[summary["decoder"] == BASELINE].set_index("family")["quality"]
    palette = colours(list(dict.fromkeys(d.split("@")[0] for d in summary["decoder"])))
    figure, grid = panels(len(families), 1.5)
    for family, axes in zip(families, grid, strict=True):
        points = data[data["family"] == family].sort_values("passes_per_block", kind="stable")
        for method, colour in palette.items():
            mine = points[points["decoder"].str.split("@").str[0] == method]
            axes.plot(mine["passes_per_block"], mine["quality"], "o", color=colour, ms=4.5)
        axes.plot(points["passes_per_block"], points["quality"], color=INK, lw=0.6, alpha=0.4)
        axes.axhline(float(baseline.get(family, float("nan"))), color=GREY, lw=1.2)
        axes.set_title(family.replace("_", " "), fontsize=9)
        axes.set_ylim(0, 1.04)
        percents(axes.yaxis, 4)
        whole(axes.xaxis, 4)
    named = [m for m in palette if (data["decoder"].str.split("@").str[0] == m).any()]
    last = grid[-1]
    for index, method in enumerate(named):
        at = (0.97, 0.08 + 0.13 * index)
        last.text(*at, method, color=palette[method], transform=last.transAxes, ha="right")
    figure.supxlabel("passes per block (grey line: ar)", fontsize=9)
    figure.supylabel("quality", fontsize=9)
    return figure, data.reset_index(drop=True)


def _apart(ends: Mapping[Any, float], highest: float) -> list[tuple[float, str]]:
    """Where names stand beside the ends of their lines: in order, none upon another."""
    gap = 0.055 * max(highest, 1.0)
    placed: list[tuple[float, str]] = []
    for name, y in sorted(ends.items(), key=lambda item: item[1]):
        placed.append((max(y, placed[-1][0] + gap) if placed else y, str(name)))
    return placed
