"""How figures look: ink, type, one colour per decoder, hollow for lossy. No matplotlib here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bench.metrics import BASELINE
from bench.plan import NO_GUARANTEE, WRONG
from bench.reporting.tables import percent
from bench.summary import ALL

INK = "#1b1f24"
"""Text and axes; the HTML report swaps it for the page's own colour, like the next two."""
FAINT = "#c9ced6"
PAPER = "#ffffff"
GREY = "#7d8590"
RED = "#c02a1f"
_FIXED = {"ar": GREY, "spec": "#0072b2", "ptp": "#d55e00", "nar": "#cc79a7", "idlm": "#009e73"}
_SPARE = ("#e69f00", "#56b4e9", "#7b68c8", "#999933", "#b0356f", "#44aa99", "#8c564b", "#d4a6c8")
STYLE: Mapping[str, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "bench",
    "text.parse_math": False,  # names of decoders are text, whatever they hold
}
WIDTH = 6.8
"""Inches: a text column, or half a slide."""


def marker(colour: str, *, hollow: bool) -> dict[str, Any]:
    """A point of that colour, or a ring: what `Axes.plot` takes."""
    if hollow:
        return {"marker": "o", "mfc": PAPER, "mec": colour, "mew": 1.5}
    return {"marker": "o", "mfc": colour, "mec": colour}


def bar(colour: str, *, hollow: bool) -> dict[str, Any]:
    """A bar of that colour, or its outline: what `Axes.bar` takes."""
    return {"facecolor": "none" if hollow else colour, "edgecolor": colour}


def lossy(summary: pd.DataFrame) -> dict[str, str]:
    """What is written at decoders that guarantee nothing: ``lossy, quality 58 %``."""
    rows = summary[(summary["family"] == ALL) & (summary["guarantee"] == NO_GUARANTEE)]
    return {
        str(decoder): "lossy" if pd.isna(quality) else f"lossy, quality {percent(quality)}"
        for decoder, quality in zip(rows["decoder"], rows["quality"], strict=True)
    }


def without_wrong(summary: pd.DataFrame) -> pd.DataFrame:
    """The summary of what figures show: no decoder that claims to be lossless and is not."""
    return summary[summary["guarantee"] != WRONG]


def footnotes(summary: pd.DataFrame) -> list[tuple[str, str]]:
    """What stands under a figure, with its colour: what is hollow, and who is left out."""
    marks = {name: what.removeprefix("lossy").strip(", ") for name, what in lossy(summary).items()}
    marked = "; ".join(f"{name}: {what}" if what else name for name, what in marks.items())
    left_out = dict.fromkeys(summary.loc[summary["guarantee"] == WRONG, "decoder"])
    return [(f"hollow: lossy, no guarantee ({marked})", GREY)] * bool(marked) + [
        (f"left out: {name} is {WRONG}: it claims to be lossless and is not", RED)
        for name in left_out
    ]


def colours(decoders: Sequence[str]) -> dict[str, str]:
    """One colour per decoder: a built-in name's own, spare ones (in order) for all others."""
    taken: dict[str, str] = {}
    spare = [*_SPARE, *(c for n, c in _FIXED.items() if n not in decoders and n != BASELINE)]
    left = 0
    for decoder in decoders:
        own = _FIXED.get(decoder.split("@")[0])
        if own is None or own in taken.values():
            own, left = spare[left % len(spare)], left + 1
        taken[decoder] = own
    return taken
