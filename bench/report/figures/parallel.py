"""Figures of parallel decoding: gain against the text's entropy, quality against passes.

Drawn where a run has what they show: target entropies by family come from the quality pass, passes
from decoders that refine blocks.
"""

from __future__ import annotations

import pandas as pd

from bench.records.plan import BASELINE
from bench.report.figures.axes import canvas, dodged, panels, percents, whole
from bench.report.figures.canvas import Drawn, key, several_families
from bench.report.figures.style import FAINT, GREY, colours, lossy, marker
from bench.stats.parallel_counters import curves as settings_of
from bench.stats.summary import ALL

_FEWEST = 3
"""Families, or decoders of blocks, that make a curve."""


def entropy_figure(summary: pd.DataFrame) -> Drawn | None:
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
    decoders = [name for name in dict.fromkeys(summary["decoder"]) if name in set(data["decoder"])]
    figure, axes = canvas(3.0)
    for place in places.values():
        axes.axvspan(place - 0.42, place + 0.42, color=FAINT, alpha=0.25, lw=0)
    for index, decoder in enumerate(decoders):
        points = data[data["decoder"] == decoder]
        x = points["family"].map(places) + dodged(index, len(decoders), 0.34)
        how = marker(palette[decoder], hollow=decoder in marks)
        axes.plot(x, points["tpf"], ls="", ms=5.5, **how)
    axes.axhline(1, color=GREY, lw=1)
    names = [f"{str(name).replace('_', ' ')}\n{value:.2g}" for name, value in entropy.items()]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mean entropy of ar's next-token distributions along its answers, nats")
    axes.set_ylabel("tokens per forward (ar is 1)")
    key(figure, decoders, palette, marks)
    return figure, data


def passes_figure(summary: pd.DataFrame) -> Drawn | None:
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
    palette, marks = colours(list(summary["decoder"].unique())), lossy(summary)
    first = data.loc[data["passes_per_block"] == 1, "decoder"].unique()
    figure, grid = panels(len(families), 1.5)
    for family, axes in zip(families, grid, strict=True):
        points = data[data["family"] == family].sort_values("passes_per_block", kind="stable")
        for cells in curves.values():
            mine = points[points["decoder"].isin(cells)]
            if len(cells) > 1:
                line = points[points["decoder"].isin([*first[:1], *cells])]
                x, y = line["passes_per_block"], line["quality"]
                axes.plot(x, y, color=palette[cells[0]], lw=0.9, alpha=0.7)
            for row in mine.to_dict("records"):
                how = marker(palette[row["decoder"]], hollow=row["decoder"] in marks)
                axes.plot(row["passes_per_block"], row["quality"], ls="", ms=4, **how)
        axes.axhline(float(baseline.get(family, float("nan"))), color=GREY, lw=1.2)
        axes.set_title(family.replace("_", " "), fontsize=9)
        axes.set_ylim(0, 1.04)
        percents(axes.yaxis, 4)
        whole(axes.xaxis, 4)
    key(figure, list(dict.fromkeys(data["decoder"])), palette, marks)
    figure.supxlabel("passes per block (grey line: ar)", fontsize=9)
    figure.supylabel("quality", fontsize=9)
    return figure, data.reset_index(drop=True)
