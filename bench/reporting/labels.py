"""Where to put the labels of a scatter plot so that they cover neither points nor each other.

Greedy: one label after another takes the cheapest of the places around its point, where cost is
what it would cover, and then how far it is away. Plain geometry in pixels; nothing here draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""
_GAPS = (9.0, 16.0, 26.0, 38.0, 54.0, 72.0)
_ANGLES = tuple(
    math.radians(angle) for angle in (0, 30, -30, 180, 150, -150, 60, -60, 90, -90, 120, -120)
)


def place(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    obstacles: Sequence[Box],
    bounds: Box,
) -> list[Box]:
    """One box of the given size (width, height) per point, in the points' order.

    `obstacles` are boxes not to cover (points, whiskers); a box outside `bounds` costs most.
    """
    placed: dict[int, Box] = {}
    crowded = sorted(range(len(points)), key=lambda i: (-_neighbours(points, i), i))
    for i in crowded:
        boxes = [
            (rank, _around(points[i], sizes[i], g, a)) for rank, (g, a) in enumerate(_places())
        ]
        taken = [*obstacles, *placed.values()]
        placed[i] = min(boxes, key=lambda b: _cost(b[1], taken, bounds) + b[0])[1]
    return [placed[i] for i in range(len(points))]


def _places() -> list[tuple[float, float]]:
    return [(gap, angle) for gap in _GAPS for angle in _ANGLES]


def _neighbours(points: Sequence[tuple[float, float]], i: int) -> int:
    return sum(math.dist(points[i], other) < 80 for other in points)


def _around(point: tuple[float, float], size: tuple[float, float], gap: float, angle: float) -> Box:
    """The box whose nearest edge lies `gap` from the point in direction `angle`."""
    (x, y), (width, height) = point, size
    across, up = math.cos(angle), math.sin(angle)
    x += across * (gap + width / 2 * (abs(across) > 0.1))
    y += up * (gap + height / 2)
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def overlap(a: Box, b: Box) -> float:
    """Area two boxes share."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def _cost(box: Box, taken: Sequence[Box], bounds: Box) -> float:
    area = (box[2] - box[0]) * (box[3] - box[1])
    outside = area - overlap(box, bounds)
    return 10 * sum(overlap(box, other) for other in taken) + 100 * outside
