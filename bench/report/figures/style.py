"""How figures look: ink, type, one colour per decoder, hollow for lossy. No matplotlib here."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from bench.records.plan import BASELINE, NO_GUARANTEE, WRONG
from bench.stats.intervals import LEVEL
from bench.stats.summary import ALL
from bench.text import percent

INK = "#1b1f24"
"""Text and axes; the HTML report swaps it for the page's own colour, like the next two."""
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
    "text.parse_math": False,  # names of decoders are text, whatever they hold
}
WIDTH = 6.8
"""Inches: a text column, or half a slide."""


_Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""
NEAR = 14.0
"""Pixels between a point and its box from which on a line joins them."""
_GAPS = (9.0, 16.0, 26.0, 38.0, 54.0, 72.0)
_ANGLES = tuple(
    math.radians(angle) for angle in (0, 30, -30, 180, 150, -150, 60, -60, 90, -90, 120, -120)
)


def interval_of(data: pd.DataFrame, column: str, before: str) -> str:
    """How a label names the intervals of a column that are drawn; nothing where there are none.

    `before` comes before the name. Ar's speed-up over itself has an interval of no width.
    """
    drawn = (data[f"{column}_low"] < data[f"{column}_high"]).any()
    return f"{before}{LEVEL} interval" if drawn else ""


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


def marked(decoders: Iterable[str], marks: Container[str]) -> list[str]:
    """Names of decoders, those that are marked as lossy said to be."""
    return [f"{name} (lossy)" if name in marks else name for name in decoders]


def footnotes(summary: pd.DataFrame, *, hollow: bool = True) -> list[tuple[str, str]]:
    """What stands under a figure, with its colour: what is hollow, and who is left out."""
    marks = {name: what.removeprefix("lossy").strip(", ") for name, what in lossy(summary).items()}
    marked = "; ".join(f"{name}: {what}" if what else name for name, what in marks.items())
    left_out = dict.fromkeys(summary.loc[summary["guarantee"] == WRONG, "decoder"])
    return [(f"hollow: lossy, no guarantee ({marked})", GREY)] * (hollow and bool(marked)) + [
        (f"left out: {name} is {WRONG}: it claims to be lossless and is not", RED)
        for name in left_out
    ]


def colours(decoders: Sequence[str]) -> dict[str, str]:
    """One colour per decoder: a built-in name's own, spare ones (in order) for all others.

    A label of a built-in has the name's colour where neither the name itself nor another label is
    there before it.
    """
    taken: dict[str, str] = {}
    names = {BASELINE, *(decoder.split("@")[0] for decoder in decoders)}
    spare = [*_SPARE, *(colour for name, colour in _FIXED.items() if name not in names)]
    left = 0
    plain = {_FIXED[decoder] for decoder in decoders if decoder in _FIXED}
    for decoder in decoders:
        own = _FIXED.get(decoder.split("@")[0])
        if own is None or (decoder not in _FIXED and own in {*plain, *taken.values()}):
            own, left = spare[left % len(spare)], left + 1
        taken[decoder] = own
    return taken


def place(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    obstacles: Sequence[_Box],
    bounds: _Box,
) -> list[_Box]:
    """One box of the given size (width, height) per point, in the points' order.

    `obstacles` are boxes not to cover (points, whiskers); a box outside `bounds` costs most. Of
    places that cover nothing, one is taken where no line from a box to its point (`leader`) runs
    through another box, and then the nearest.
    """
    placed: dict[int, _Box] = {}
    lines: list[_Box] = []
    crowded = sorted(range(len(points)), key=lambda i: (-_neighbours(points, i), i))
    for i in crowded:
        boxes = [
            (rank, _around(points[i], sizes[i], g, a)) for rank, (g, a) in enumerate(_places())
        ]
        taken = [*obstacles, *placed.values()]
        costs = [
            (
                round(_cost(box, taken, bounds), 6),
                rank + _crossed(points[i], box, placed.values(), lines),
            )
            for rank, box in boxes
        ]
        placed[i] = boxes[costs.index(min(costs))][1]
        lines += leader(points[i], placed[i])
    return [placed[i] for i in range(len(points))]


def leader(point: tuple[float, float], box: _Box) -> list[_Box]:
    """The line from a point to a box that had to move away, as small boxes; none where it is near.

    What lies upon the point itself is left out.
    """
    (x, y), near = point, (min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3]))
    far = math.dist(point, near)
    if far <= NEAR:
        return []
    ways = [step / far for step in range(8, int(far), 3)]
    at = [(x + way * (near[0] - x), y + way * (near[1] - y)) for way in ways]
    return [(x - 1.5, y - 1.5, x + 1.5, y + 1.5) for x, y in at]


def _crossed(
    point: tuple[float, float], box: _Box, others: Iterable[_Box], lines: Iterable[_Box]
) -> float:
    """Area of other boxes that the line to a box covers, and of lines that the box covers."""
    mine = leader(point, box)
    through = sum(overlap(part, other) for other in others for part in mine)
    return 10 * (through + sum(overlap(box, line) for line in lines))


def _places() -> list[tuple[float, float]]:
    return [(gap, angle) for gap in _GAPS for angle in _ANGLES]


def _neighbours(points: Sequence[tuple[float, float]], i: int) -> int:
    return sum(math.dist(points[i], other) < 80 for other in points)


def _around(
    point: tuple[float, float], size: tuple[float, float], gap: float, angle: float
) -> _Box:
    """The box whose nearest edge lies `gap` from the point in direction `angle`."""
    (x, y), (width, height) = point, size
    across, up = math.cos(angle), math.sin(angle)
    x += across * (gap + width / 2 * (abs(across) > 0.1))
    y += up * (gap + height / 2)
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def overlap(a: _Box, b: _Box) -> float:
    """Area two boxes share."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def _cost(box: _Box, taken: Sequence[_Box], bounds: _Box) -> float:
    area = (box[2] - box[0]) * (box[3] - box[1])
    outside = area - overlap(box, bounds)
    return 10 * sum(overlap(box, other) for other in taken) + 100 * outside
