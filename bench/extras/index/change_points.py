"""Change points of a series, as marks on a dashboard and not as verdicts.

The method is binary segmentation: the best split of a series is kept if a permutation test finds it
significant, and both halves are then split in turn. The statistic is that of Matteson & James
(2014, arXiv 1306.4933) for means: n m / (n + m) times the squared difference of the means.
Regressions are judged only by paired runs (`bench compare`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.stats.intervals import Floats

_SHUFFLES = 499
_LEVEL = 0.01
_MIN_LENGTH = 3
"""Fewest numbers in a segment: fewer cannot be distinguished from chance."""
_MIN_CHANGE = 1e-3
"""Smallest relative change of a level that counts: counters jitter in their last digit."""


def change_points(values: Sequence[float]) -> list[int]:
    """Return the indices at which a new level begins, ascending and without 0."""
    series = np.asarray(values, dtype=np.float64)
    indices: list[int] = []
    pending = [(0, len(series))]
    generator = np.random.default_rng(0)
    while pending:
        start, end = pending.pop()
        index = _split(series[start:end], generator)
        if index is not None:
            indices.append(start + index)
            pending += [(start, start + index), (start + index, end)]
    return sorted(indices)


def _split(series: Floats, generator: np.random.Generator) -> int | None:
    if len(series) < 2 * _MIN_LENGTH:
        return None
    index, best = _best(series)
    before, after = series[:index].mean(), series[index:].mean()
    if abs(after - before) <= _MIN_CHANGE * max(abs(before), abs(after)):
        return None
    as_good = sum(_best(generator.permutation(series))[1] >= best for _ in range(_SHUFFLES))
    return index if (as_good + 1) / (_SHUFFLES + 1) <= _LEVEL else None


def _best(series: Floats) -> tuple[int, float]:
    """Return the split with the largest statistic, and the statistic."""
    sums = np.cumsum(series)
    splits = np.arange(_MIN_LENGTH, len(series) - _MIN_LENGTH + 1)
    before = sums[splits - 1] / splits
    after = (sums[-1] - sums[splits - 1]) / (len(series) - splits)
    weight = splits * (len(series) - splits) / len(series)
    statistic = weight * (after - before) ** 2
    best = int(statistic.argmax())
    return int(splits[best]), float(statistic[best])
