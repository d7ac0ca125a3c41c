"""Slots of branches against brute force over all allocations of small cases.

Where the budget binds, slots are bought by return, which finds the vertices of the concave envelope
of value over slots. So the method is held to the optimum there, and to a share of it in between.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.core.drafting.proposer import Survival, _best_length, allocate, branch_chances

PROBABILITY = st.floats(0, 1)
CONFIDENCES = st.lists(PROBABILITY, max_size=3)
LONGEST = 5
SURVIVALS = st.lists(PROBABILITY, min_size=1, max_size=LONGEST + 1).map(Survival.of)
LEADS = st.integers(0, 1)


def geometric(rate, count=16):
    return Survival.of([rate**g for g in range(1, count + 1)])


def value(chances, survival, sizes, lead):
    """Expected proposals that stand, summed one by one."""
    return sum(
        chance * math.fsum(survival.chances[: max(0, size - lead)])
        for chance, size in zip(chances, sizes, strict=True)
    )


def every(num_branches, survival, max_size, lead):
    """All allocations without a branch that proposes nothing of use or more than is known."""
    most = min(max_size, len(survival.chances) + lead)
    return itertools.product((0, *range(lead + 1, most + 1)), repeat=num_branches)


def best_values(chances, survival, max_size, lead):
    """Most value of exactly b slots; b -> value."""
    found: dict[int, float] = {}
    for sizes in every(len(chances), survival, max_size, lead):
        worth = value(chances, survival, sizes, lead)
        found[sum(sizes)] = max(worth, found.get(sum(sizes), 0.0))
    return found


# The parts.


def test_branch_chances_are_the_chances_that_each_draft_is_the_first_rejected():
    assert branch_chances([]) == [1.0]
    assert branch_chances([0.9, 0.5]) == pytest.approx([0.1, 0.45, 0.45])
    assert branch_chances([1.0, 0.0, 0.7]) == [0.0, 1.0, 0.0, 0.0]


@given(st.lists(PROBABILITY, max_size=40))
def test_branch_chances_sum_to_one(confidences):
    chances = branch_chances(confidences)
    assert len(chances) == len(confidences) + 1
    assert min(chances) >= 0
    assert math.fsum(chances) == pytest.approx(1)


@given(st.lists(st.floats(-0.5, 1.5), max_size=12))
def test_survival_is_made_a_probability_that_never_rises(noisy):
    survival = Survival.of(noisy)
    expected = [min([1.0, *(max(0.0, c) for c in noisy[: g + 1])]) for g in range(len(noisy))]
    assert list(survival.chances) == expected
    assert survival.values == pytest.approx(
        [math.fsum(expected[:b]) for b in range(len(noisy) + 1)]
    )


def test_a_survival_that_never_rises_is_unchanged_and_a_rise_is_flattened():
    assert Survival.of([0.9, 0.9, 0.4]).chances == (0.9, 0.9, 0.4)
    assert Survival.of([0.5, 0.8, 0.4]).chances == (0.5, 0.5, 0.4)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.85, 1.0])
def test_values_are_the_expected_leading_length_of_a_geometric_distribution(rate):
    survival = geometric(rate, 8)
    for b in range(9):
        exact = sum(g * rate**g * (1 - rate) for g in range(b)) + b * rate**b
        assert survival.values[b] == pytest.approx(exact)


def test_values_are_the_mean_of_simulated_leading_lengths():
    draws = np.random.default_rng(0).geometric(0.2, 40_000) - 1  # proposals before the first miss
    survival = Survival.of([(draws >= g).mean() for g in range(1, 7)])
    for b in range(7):
        assert survival.values[b] == pytest.approx(np.minimum(draws, b).mean())
        assert survival.values[b] == pytest.approx(geometric(0.8).values[b], abs=0.05)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.85, 1.0])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_mean_chance_of_a_geometric_distribution_is_its_rate(rate, count):
    assert geometric(rate, count).mean_chance == pytest.approx(rate)


def test_the_mean_chance_is_the_ratio_of_accepted_to_tested_proposals():
    lengths = np.random.default_rng(1).integers(0, 7, 1000)  # leading proposals that stood, of 6
    survival = Survival.of([(lengths >= g).mean() for g in range(1, 7)])
    tested = np.minimum(lengths + 1, 6).sum()
    assert survival.mean_chance == pytest.approx(lengths.sum() / tested)
    assert Survival.of([]).mean_chance == 0.0


def test_scaled_survival_falls_and_rises_with_its_power():
    assert geometric(0.8, 5).scaled(2).chances == pytest.approx(geometric(0.64, 5).chances)
    assert geometric(0.8, 5).scaled(0.5).chances == pytest.approx(geometric(0.8**0.5, 5).chances)
    assert geometric(1.0, 5).scaled(9).chances[-1] < 0.9  # what always stood may fall as well


@given(SURVIVALS, LEADS, st.integers(1, LONGEST), st.floats(0, 2))
def test_the_best_length_of_a_lone_proposal_gives_most_tokens_per_cost(
    survival, lead, max_size, row_cost
):
    def rate(size):
        proposed = size - lead
        stand = math.fsum(survival.chances[:proposed])
        return (2 + stand) / (2 + row_cost * ((1 + size) + (1 + proposed)))

    size = _best_length(survival, max_size, lead, row_cost)
    allowed = range(lead, max(lead, min(max_size, len(survival.chances) + lead)) + 1)
    assert size in allowed
    assert rate(size) == pytest.approx(max(map(rate, allowed)))


# All together.


@settings(max_examples=150, deadline=None)
@given(CONFIDENCES, SURVIVALS, LEADS, st.floats(0.001, 3), st.integers(0, LONGEST))
def test_with_a_large_budget_the_allocation_has_the_best_value_per_cost(
    confidences, survival, lead, row_cost, max_size
):
    chances = branch_chances(confidences)

    def rate(sizes):
        rows = len(chances) + sum(sizes)
        return (1 + value(chances, survival, sizes, lead)) / (1 + row_cost * rows)

    options = {"max_size": max_size + lead, "num_unused_slots": lead, "row_cost": row_cost}
    found = allocate(chances, survival, budget=99, **options)
    best = max(map(rate, every(len(chances), survival, max_size + lead, lead)))
    assert rate(found) == pytest.approx(best, rel=1e-5)


@settings(max_examples=150, deadline=None)
@given(CONFIDENCES, SURVIVALS, LEADS, st.floats(0, 3), st.integers(1, 25))
def test_the_budget_is_kept_and_no_branch_gets_a_useless_number_of_slots(
    confidences, survival, lead, row_cost, budget
):
    chances = branch_chances(confidences)
    sizes = allocate(
        chances, survival, budget=budget, max_size=LONGEST, num_unused_slots=lead, row_cost=row_cost
    )
    most = min(LONGEST, len(survival.chances) + lead)
    assert len(sizes) == len(chances)
    assert sum(sizes) <= budget
    assert all(size == 0 or lead < size <= most for size in sizes)


@settings(max_examples=150, deadline=None)
@given(CONFIDENCES, SURVIVALS, LEADS, st.integers(1, 25))
def test_a_tight_budget_gives_the_best_value_and_with_unused_slots_at_least_half_of_it(
    confidences, survival, lead, budget
):
    """All there is without a lead; with one a branch cannot start small, and half is sure."""
    chances = branch_chances(confidences)
    sizes = allocate(
        chances, survival, budget=budget, max_size=LONGEST, num_unused_slots=lead, row_cost=0
    )
    values = best_values(chances, survival, LONGEST, lead)
    best = max(worth for slots, worth in values.items() if slots <= budget)
    share = 0.5 if lead else 1.0
    assert value(chances, survival, sizes, lead) >= share * best - 1e-9


@pytest.mark.parametrize("lead", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_with_free_rows_the_optimum_is_found_at_every_vertex_of_the_concave_envelope(seed, lead):
    """At every budget that a vertex of the concave envelope uses up, the optimum is found."""
    rng = np.random.default_rng(seed)
    chances = branch_chances(rng.uniform(0.2, 0.95, 2).tolist())
    survival = Survival.of(sorted(rng.uniform(0.1, 1, LONGEST), reverse=True))
    best = best_values(chances, survival, LONGEST, lead)
    place, vertices = 0, [0]
    while later := [b for b in best if b > place and best[b] > best[place]]:
        start = place
        slopes = {b: (best[b] - best[start]) / (b - start) for b in later}
        place = max(later, key=slopes.__getitem__)
        vertices.append(place)
    assert len(vertices) >= 4
    for budget in range(1, max(best) + 1):
        sizes = allocate(
            chances, survival, budget=budget, max_size=LONGEST, num_unused_slots=lead, row_cost=0
        )
        worth = value(chances, survival, sizes, lead)
        vertex = max(v for v in vertices if v <= budget)
        assert worth >= best[vertex] - 1e-9
        assert vertex < budget or worth == pytest.approx(best[budget])


@pytest.mark.parametrize("max_size", [1, 2, 4, 16])
@pytest.mark.parametrize("lead", [0, 1])
def test_branches_grow_to_the_longest_where_rows_are_free(max_size, lead):
    sizes = allocate(
        [0.3, 0.0, 0.7],
        geometric(0.9),
        budget=99,
        max_size=max_size,
        num_unused_slots=lead,
        row_cost=0,
    )
    full = max_size if max_size > lead else 0
    assert sizes == [full, 0, full]


def test_rows_that_cost_more_than_they_bring_are_not_run():
    options = {"budget": 99, "max_size": 8, "num_unused_slots": 0}
    assert allocate([0.5, 0.5], geometric(0.5), row_cost=9.0, **options) == [0, 0]
    few = allocate([0.1, 0.9], geometric(0.8), row_cost=0.2, **options)
    many = allocate([0.1, 0.9], geometric(0.8), row_cost=0.02, **options)
    assert sum(few) < sum(many)
    assert few[0] <= few[1]


@pytest.mark.parametrize(
    ("chances", "rate", "budget", "expected"),
    [
        ((0.1, 0.9), 1.0, 8, [0, 8]),  # every slot of a branch is worth the same
        ((0.5, 0.5), 0.85, 4, [4, 0]),  # both branches begin to pay at the same price
        ((1.0,), 0.85, 3, [3]),  # 4 slots are the first that pay for their lead
    ],
)
def test_a_budget_below_the_best_size_of_a_branch_is_not_left_unspent(
    chances, rate, budget, expected
):
    survival = geometric(rate)
    sizes = allocate(chances, survival, budget=budget, max_size=16, num_unused_slots=1, row_cost=0)
    assert sizes == expected


def test_the_value_of_the_authors_code_gives_a_worse_allocation():
    """Their E[G 1{G <= b}] forgets the answers in which more than b proposals stand."""
    rate, chances, budget = 0.9, (0.4, 0.6), 6
    counted = [sum(g * rate**g * (1 - rate) for g in range(b + 1)) for b in range(budget + 1)]

    def theirs(sizes):
        return sum(c * counted[b] for c, b in zip(chances, sizes, strict=True))

    survival = geometric(rate, budget)
    fitting = [s for s in every(2, survival, budget, 0) if sum(s) <= budget]
    chosen = max(fitting, key=theirs)
    ours = allocate(
        chances, survival, budget=budget, max_size=budget, num_unused_slots=0, row_cost=0
    )
    assert chosen == (0, 6)
    assert ours == [1, 5]
    assert value(chances, survival, ours, 0) > value(chances, survival, chosen, 0)
