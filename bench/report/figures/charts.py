"""Bars by decoder: tokens per call by family, and memory."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bench.report.figures.canvas import (
    Plot,
    annotate_point,
    name_rows,
    overall,
    panels,
    row_of_panels,
    several_families,
    whole,
)
from bench.report.figures.style import INK, Look
from bench.report.tables.table import over
from bench.text import factor

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
        annotate_point(
            axes, f"{value:.{1 if value >= 10 else 2}f} {unit}{times}", (value, y), 4, 8.5
        )
    for value in of_ar:
        axes.axvline(value / size, color=INK, lw=0.7, alpha=0.5)
    axes.set_xlim(0, 1.3 * peak / size)
    name_rows(axes, look.names(data["decoder"]))
    axes.set_xlabel(f"peak memory of an answer, {unit}")
    axes.set_title("Peak memory")
    return figure, data
