"""Other numbers of drafts a step, against costs and acceptances that are known by hand."""

from __future__ import annotations

import pytest

from bench.extras.cost.explain import speedups_by_drafts
from bench.extras.sections.durations import Decomposition


def parts(k: int, *, alpha: float = 0.8, draft: float = 0.1, row: float = 0.02) -> Decomposition:
    """A decoder with k drafts a step: each stands with probability `alpha`."""
    return Decomposition(
        decoder="spec",
        prompts=1,
        acceptance_length=1 + sum(alpha**j for j in range(1, k + 1)),
        verify=1 + row * k,
        draft=draft * k,
        overhead=0.05,
        measured=None,
    )


def best(speedups: tuple[float, ...]) -> int:
    return 1 + speedups.index(max(speedups))


def joint(k: int, alpha: float = 0.8) -> list[float]:
    return [alpha**j for j in range(1, k + 1)]


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.8, 0.95])
def test_shorter_drafts_are_predicted_as_they_are(alpha: float) -> None:
    speedups = speedups_by_drafts(parts(12, alpha=alpha), joint(12, alpha), 12.0)
    expected = [parts(k, alpha=alpha).predicted for k in range(1, 13)]
    assert speedups == pytest.approx(expected)
    assert best(speedups) == 1 + expected.index(max(expected))


def test_dear_drafts_want_to_be_few_and_free_ones_many() -> None:
    dear = speedups_by_drafts(parts(8, draft=0.5), joint(8), 8.0)
    free = speedups_by_drafts(parts(8, draft=0.0, row=0.0), joint(8), 8.0)
    assert best(dear) <= 2
    assert best(free) == 8


def test_tokens_beside_the_drafts_are_kept() -> None:
    """Of a step that emits two tokens whatever becomes of its drafts."""
    one = parts(3)
    two = Decomposition(
        decoder="ptp", prompts=1, acceptance_length=one.acceptance_length + 1,
        verify=one.verify, draft=one.draft, overhead=one.overhead, measured=None,
    )  # fmt: skip
    speedups = speedups_by_drafts(two, joint(3), 3.0)
    assert speedups[2] == pytest.approx(two.predicted)
    assert speedups[0] == pytest.approx((2 + 0.8) / (1 + 0.02 + 0.1 + 0.05))


def test_a_call_of_several_rows_that_costs_less_than_one_token_is_no_credit_to_drafts() -> None:
    """Noise may measure it so: no number of drafts is then cheaper than none."""
    cheap = parts(4, row=-0.01, draft=0.0)
    speedups = speedups_by_drafts(cheap, joint(4), 4.0)
    assert speedups[3] == pytest.approx(cheap.predicted)
    assert best(speedups) == 4


def test_beyond_what_was_measured_drafts_stand_as_often_as_the_last() -> None:
    speedups = speedups_by_drafts(parts(4), joint(4), 4.0, 12)
    assert speedups == pytest.approx([parts(k).predicted for k in range(1, 13)])


def test_without_drafts_there_is_nothing_to_say() -> None:
    assert speedups_by_drafts(parts(4), [], 4.0) == ()
    assert speedups_by_drafts(parts(4), joint(4), 0.0) == ()


def test_a_measured_curve_says_what_other_numbers_of_rows_cost() -> None:
    """Calls of up to four rows cost as one does, larger ones twice as much."""

    def relative(rows: float) -> float:
        return 1.0 if rows <= 4 else 2.0

    ran = parts(2, draft=0.0, row=0.0)
    speedups = speedups_by_drafts(ran, joint(2), 2.0, 8, relative)
    assert best(speedups) == 3
    emitted = 1 + 0.8 + 0.8**2 + 0.8**3
    assert speedups[2] == pytest.approx(emitted / (1 + 0.05))
    assert speedups[3] == pytest.approx((emitted + 0.8**4) / (2 + 0.05))


def test_the_runs_own_cost_is_the_level_of_a_measured_curve() -> None:
    ran = parts(4, row=0.1)
    speedups = speedups_by_drafts(ran, joint(4), 4.0, 4, lambda rows: 3 + rows)
    assert speedups[3] == pytest.approx(ran.predicted)
    assert speedups[0] == pytest.approx(1.8 / (1.4 * 5 / 8 + 0.1 + 0.05))
