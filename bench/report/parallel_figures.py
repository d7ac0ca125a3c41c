"""Figures of parallel decoding: gain against the text's entropy, quality against passes.

Drawn where a run has what they show: target entropies by family come from the quality pass, passes
from decoders that refine blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.records.plan import BASELINE
from bench.report.figures import (
    Drawn,
    annotated,
    beside,
    canvas,
    panels,
    percents,
    several_families,
    styled,
    whole,
)
from bench.report.style import GREY, colours, lossy, marker, without_wrong
from bench.stats.parallel_counters import curves as settings_of
from bench.stats.summary import ALL

_FEWEST = 3
"""Families, or decoders of blocks, that make a curve."""


def draw_all(summary: pd.DataFrame) -> dict[str, Drawn]:
    """Both, by file name, where there is data for them."""
    shown = without_wrong(summary)
    with styled():
        drawn = {"entropy": _entropy_figure(shown), "passes": _passes_figure(shown)}
        return annotated(drawn, summary)


def _entropy_figure(summary: pd.DataFrame) -> Drawn | None:
    """Tokens per forward by family, in the order of the mean entropy of ar's distributions."""
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
    palette, marks = colours(list(summary["decoder"].unique())), lossy(summary)
    places = {family: place for place, family in enumerate(entropy)}
    figure, axes = canvas(3.2)
    for decoder in dict.fromkeys(summary["decoder"]):
        points = data[data["decoder"] == decoder]
        if len(points):
            x = points["family"].map(places)
            how = marker(palette[decoder], hollow=decoder in marks)
            axes.plot(x, points["tpf"], "-", color=palette[decoder], ms=5, lw=1.4, **how)
    ends = data.groupby("decoder", sort=False)["tpf"].last()
    for y, decoder in _apart(ends.to_dict(), data["tpf"].max()):
        beside(axes, decoder, (len(places) - 1, y), 8, colour=palette[decoder])
    axes.axhline(1, color=GREY, lw=1)
    names = [f"{str(name).replace('_', ' ')}\n{value:.2g}" for name, value in entropy.items()]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.3, len(names) - 0.2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mean entropy of ar's next-token distributions along its answers, nats")
    axes.set_ylabel("tokens per forward (ar is 1)")
    return figure, data


def _passes_figure(summary: pd.DataFrame) -> Drawn | None:
    """Quality against passes per block, one panel per family; ar is the line above.

    Cells of one decoder whose labels differ in a number at their end are a curve, which begins with
    a decoder of a single pass.
    """
    data = summary[["decoder", "family", "passes_per_block", "quality"]].dropna()
    if data["decoder"].nunique() < _FEWEST:
        return None
    families = several_families(data["family"])
    baseline = summary[summary["decoder"] == BASELINE].set_index("family")["quality"]
    curves = settings_of(dict.fromkeys(data["decoder"]))
    palette, marks = colours(list(curves)), lossy(summary)
    first = data.loc[data["passes_per_block"] == 1, "decoder"].unique()
    figure, grid = panels(len(families), 1.5)
    for family, axes in zip(families, grid, strict=True):
        points = data[data["family"] == family].sort_values("passes_per_block", kind="stable")
        for curve, cells in curves.items():
            mine = points[points["decoder"].isin(cells)]
            if len(cells) > 1:
                line = points[points["decoder"].isin([*first[:1], *cells])]
                x, y = line["passes_per_block"], line["quality"]
                axes.plot(x, y, color=palette[curve], lw=0.9, alpha=0.7)
            x, y = mine["passes_per_block"], mine["quality"]
            how = marker(palette[curve], hollow=all(cell in marks for cell in cells))
            axes.plot(x, y, ls="", ms=4, **how)
        axes.axhline(float(baseline.get(family, float("nan"))), color=GREY, lw=1.2)
        axes.set_title(family.replace("_", " "), fontsize=9)
        axes.set_ylim(0, 1.04)
        percents(axes.yaxis, 4)
        whole(axes.xaxis, 4)
    for index, curve in enumerate(reversed(curves)):
        at = (0.97, 0.06 + 0.12 * index)
        text: dict[str, Any] = {"color": palette[curve], "ha": "right", "fontsize": 8}
        grid[-1].text(*at, curve, transform=grid[-1].transAxes, **text)
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
