"""Goodness of fit: cells are exact, levels and power are what is stated, Holm is Holm."""

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from decoders.core.testing.goodness import (
    MIN_EXPECTED,
    POWER,
    Answer,
    Distribution,
    Fit,
    Outcomes,
    detectable_distance,
    enumerate_distribution,
    fit,
    holm,
)

COIN = np.array([0.75, 0.25, 0.0])


def fit_of(dof: int, num_draws: int) -> Fit:
    return Fit(statistic=0.0, dof=dof, p_value=1.0, num_draws=num_draws)


def coin(_prefix: Answer) -> NDArray[np.float64]:
    return COIN


def singles(masses: NDArray[np.float64]) -> Distribution:
    """A distribution of answers of one token."""
    return enumerate_distribution(lambda _prefix: masses, 1, 10**6)


def test_cells_are_whole_answers_where_draws_suffice() -> None:
    distribution = enumerate_distribution(coin, 2, 1000)
    assert distribution.cells == pytest.approx(
        {(0, 0): 0.5625, (0, 1): 0.1875, (1, 0): 0.1875, (1, 1): 0.0625}
    )
    assert distribution.rest == pytest.approx(0)


def test_rare_answers_share_the_cell_of_their_prefix_and_rarer_answers_join_the_rest() -> None:
    distribution = enumerate_distribution(
        coin, 3, 150
    )  # (1,) expects 37.5 draws and is not looked behind
    assert (1,) in distribution.cells
    assert distribution.cell((1, 0, 0)) == (1,)
    assert distribution.cell((0, 0, 1)) == (0, 0, 1)
    distribution = enumerate_distribution(coin, 3, 30)
    assert distribution.cell((1, 0, 0)) == "rest"
    assert distribution.rest == pytest.approx(0.25)


def test_a_stop_id_ends_an_answer() -> None:
    distribution = enumerate_distribution(coin, 3, 10**6, stop_ids={1})
    assert set(distribution.cells) == {(1,), (0, 1), (0, 0, 1), (0, 0, 0)}


def test_a_single_impossible_answer_rejects_the_distribution() -> None:
    distribution = enumerate_distribution(coin, 2, 1000)
    assert distribution.cell((0, 2)) == "impossible"
    assert distribution.cell((0,)) == "impossible"  # it stopped where the distribution goes on
    counts: Counter[Outcomes] = Counter()
    counts.update({cell: round(mass * 1000) for cell, mass in distribution.cells.items()})
    assert fit(distribution, counts).p_value > 0.99
    counts["impossible"] += 1
    assert fit(distribution, counts).p_value == 0


def test_cells_with_too_small_expected_counts_are_pooled() -> None:
    distribution = singles(np.array([0.5, 0.3, 0.15, 0.05]))
    assert fit(distribution, Counter({(0,): 500, (1,): 300, (2,): 150, (3,): 50})).dof == 3
    assert fit(distribution, Counter({(0,): 20, (1,): 12, (2,): 6, (3,): 2})).dof == 1
    assert fit(distribution, Counter()).p_value == 1


def test_a_true_distribution_is_rejected_at_the_rate_of_the_significance_level() -> None:
    rng = np.random.default_rng(1)
    masses = rng.dirichlet(np.ones(40))
    distribution = singles(masses)
    draws = rng.multinomial(5000, masses, size=4000)
    rejected = np.mean([fit(distribution, counted(row)).p_value < 0.01 for row in draws])
    assert 0.005 < rejected < 0.016


@pytest.mark.parametrize("spread", ["even", "one pair"])
def test_a_distribution_at_the_stated_distance_is_caught_with_the_stated_power(spread: str) -> None:
    rng = np.random.default_rng(2)
    masses = np.full(40, 1 / 40)
    distribution, num_draws = singles(masses), 4000
    distance = detectable_distance(fit_of(39, num_draws), 0.001)
    if spread == "even":  # the direction that is hardest to see
        shift = 2 * distance * masses * np.where(np.arange(40) < 20, 1, -1)
    else:
        shift = np.zeros(40)
        shift[0] = distance
        shift[1:4] = -distance / 3
    wrong = masses + np.clip(shift, -masses, None)
    draws = rng.multinomial(num_draws, wrong / wrong.sum(), size=2000)
    caught = np.mean([fit(distribution, counted(row)).p_value < 0.001 for row in draws])
    if spread == "even":
        assert caught == pytest.approx(POWER, abs=0.03)
    else:
        assert caught >= POWER


def counted(row: NDArray[np.int64]) -> Counter[Outcomes]:
    return Counter({(cell,): int(seen) for cell, seen in enumerate(row)})


def test_more_draws_detect_smaller_distances() -> None:
    distances = [detectable_distance(fit_of(80, num), 0.001) for num in (500, 5000, 50_000)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] / distances[1] == pytest.approx(math.sqrt(10))
    assert detectable_distance(fit_of(0, 1000), 0.001) == 1  # one cell tells nothing
    assert MIN_EXPECTED >= 5


def test_holm_adjusts_p_values() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []
