"""Define the style of figures: ink, type, one colour per decoder, hollow for lossy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.records.plan import BASELINE, NO_GUARANTEE
from bench.stats.intervals import LEVEL
from bench.stats.summary import ALL
from bench.text import percent

INK = "#1b1f24"
"""Colour of text and axes. The HTML report replaces this and the next two by the page's colours."""
FAINT = "#c9ced6"
PAPER = "#ffffff"
GREY = "#7d8590"
RED = "#c02a1f"
_FIXED = {
    "ar": GREY,
    "spec": "#0072b2",
    "lookup": "#56b4e9",
    "ptp": "#d55e00",
    "nar": "#cc79a7",
    "idlm": "#009e73",
}
_SPARE = ("#e69f00", "#7b68c8", "#999933", "#b0356f", "#44aa99", "#8c564b", "#d4a6c8")
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
    "text.parse_math": False,  # decoder names are plain text, even if they contain a $
}
WIDTH = 6.8
"""Inches: a text column, or half a slide."""


@dataclass(frozen=True, slots=True)
class Look:
    """Hold the colours of decoders, and the labels of decoders that guarantee nothing."""

    palette: Mapping[str, str]
    marks: Mapping[str, str]

    @classmethod
    def of(cls, summary: pd.DataFrame) -> Look:
        """Return the look of all decoders of a summary."""
        return cls(colours(list(summary["decoder"].unique())), lossy(summary))

    def marker(self, decoder: str) -> dict[str, Any]:
        """Return `Axes.plot`'s arguments for a point, or for a ring if the decoder is lossy."""
        colour = self.palette[decoder]
        ring = {"mfc": PAPER, "mew": 1.5} if decoder in self.marks else {"mfc": colour}
        return {"marker": "o", "mec": colour, **ring}

    def names(self, decoders: Iterable[str]) -> list[str]:
        """Return the names, with lossy decoders marked."""
        return [f"{name} (lossy)" if name in self.marks else name for name in decoders]


def interval_note(data: pd.DataFrame, column: str, before: str) -> str:
    """Name the intervals of a column, after `before`, if one of them has a width."""
    has_width = (data[f"{column}_low"] < data[f"{column}_high"]).any()
    return f"{before}{LEVEL} interval" if has_width else ""


def lossy(summary: pd.DataFrame) -> dict[str, str]:
    """Describe the decoders that guarantee nothing: ``lossy, quality 58 %``."""
    rows = summary[(summary["family"] == ALL) & (summary["guarantee"] == NO_GUARANTEE)]
    return {
        str(decoder): "lossy" if pd.isna(quality) else f"lossy, quality {percent(quality)}"
        for decoder, quality in zip(rows["decoder"], rows["quality"], strict=True)
    }


def colours(decoders: Sequence[str]) -> dict[str, str]:
    """Give each decoder a colour: fixed for built-in decoders, spare colours in order for the rest.

    A labelled built-in (``spec@LABEL``) gets the built-in's colour, unless the plain name is
    present or another label comes first.
    """
    palette: dict[str, str] = {}
    names = {BASELINE, *(decoder.split("@")[0] for decoder in decoders)}
    spare = itertools.cycle(
        [*_SPARE, *(colour for name, colour in _FIXED.items() if name not in names)]
    )
    plain = {_FIXED[decoder] for decoder in decoders if decoder in _FIXED}
    for decoder in decoders:
        colour = _FIXED.get(decoder.split("@")[0])
        if colour is None or (decoder not in _FIXED and colour in {*plain, *palette.values()}):
            colour = next(spare)
        palette[decoder] = colour
    return palette
