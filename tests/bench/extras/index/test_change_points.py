"""Change points: every level's begin is found, in either half and direction; jitter has none."""

from __future__ import annotations

import pytest

from bench.extras.index.index import change_points


@pytest.mark.parametrize(
    "order",
    [[0.0, 1.0, 5.0, 20.0], [0.0, 5.0, 20.0, 1.0], [5.0, 0.0, 1.0, 20.0], [20.0, 1.0, 5.0, 0.0]],
)
def test_levels_are_found_in_halves_of_halves_and_in_any_direction(
    order: list[float],
) -> None:
    assert change_points([level for level in order for _ in range(12)]) == [12, 24, 36]


def test_levels_of_different_lengths_are_found_where_they_begin() -> None:
    series = [100.0] * 20 + [10.0] * 8 + [11.0] * 8 + [13.0] * 14
    assert change_points(series) == [20, 28, 36]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_smallest_change_that_counts_is_relative_and_counts_both_ways(
    scale: float, sign: int
) -> None:
    for relative, found in ((0.0008, []), (0.0015, [15])):
        before, after = (scale, scale * (1 + relative))[::sign]
        assert change_points([before] * 15 + [after] * 15) == found


def test_a_level_from_nothing_is_a_change() -> None:
    assert change_points([0.0] * 10 + [1e-6] * 10) == [10]
