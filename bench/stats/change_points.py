"""Where a series of numbers changed its level, for a dashboard: marks to look at, and no verdicts.

Binary segmentation: the split of a series that separates its halves best is kept where shuffled
series hardly ever separate as well, and both halves are split in turn. The statistic is that of
Matteson & James (2014, arXiv 1306.4933) for means: n m / (n + m) times the squared difference of
the means. What regressed is judged by paired runs (`bench compare`), never here. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.stats.intervals import Floats

_SHUFFLES = 499
_LEVEL = 0.01
_SHORTEST = 3
"""Numbers in a segment at least: fewer cannot be told from chance."""
_SMALLEST = 1e-3
"""A change of a level by less than this share is none: counters jitter in their last digit."""


def change_points(values: Sequence[float]) -> list[int]:
    """Places at which a new level begins, ascending (at 0 none does)."""
    series = np.asarray(values, dtype=np.float64)
    places: list[int] = []
    pending = [(0, len(series))]
    generator = np.random.default_rng(0)
    while pending:
        start, end = pending.pop()
        place = _split(series[start:end], generator)
        if place is not None:
            places.append(start + place)
            pending += [(start, start + place), (start + place, end)]
    return sorted(places)


def _split(series: Floats, generator: np.random.Generator) -> int | None:
    """Where a segment is split best; None where shuffled it is split as well."""
    if len(series) < 2 * _SHORTEST:
        return None
    place, best = _best(series)
    before, after = series[:place].mean(), series[place:].mean()
    if abs(after - before) <= _SMALLEST * max(abs(before), abs(after)):
        return None
    as_good = sum(_best(generator.permutation(series))[1] >= best for _ in range(_SHUFFLES))
    return place if (as_good + 1) / (_SHUFFLES + 1) <= _LEVEL else None


def _best(series: Floats) -> tuple[int, float]:
    """The split with the largest statistic, and that."""
    sums = np.cumsum(series)
    places = np.arange(_SHORTEST, len(series) - _SHORTEST + 1)
    before = sums[places - 1] / places
    after = (sums[-1] - sums[places - 1]) / (len(series) - places)
    weight = places * (len(series) - places) / len(series)
    statistic = weight * (after - before) ** 2
    best = int(statistic.argmax())
    return int(places[best]), float(statistic[best])
