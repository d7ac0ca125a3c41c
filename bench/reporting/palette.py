"""How figures look: ink, type, and one colour per decoder. Plain data, no matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.metrics import BASELINE

INK = "#1b1f24"
"""Text and axes; the HTML report swaps it for the page's own colour, like the next two."""
FAINT = "#c9ced6"
PAPER = "#ffffff"
GREY = "#7d8590"
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
