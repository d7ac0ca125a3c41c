"""Counters against results worked out by hand, and the identities they must obey."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from bench.extras.sections.drafts import PositionCount, acceptance_by_position, step_lengths
from bench.records.record import SampleRecord
from bench.records.samples import PhasedAnswer
from bench.stats import answers, counters
from bench.stats.counters import Tally

Make = Callable[..., SampleRecord]


@pytest.fixture
def spec(record: Make) -> SampleRecord:
    """Prefill; then of 4 drafts 2 stand (3 out), of 4 none (1 out), of 2 both (3 out)."""
    return record(
        "spec",
        (1, 3, 1, 3),
        drafted=(0, 4, 4, 2),
        accepted=(0, 2, 0, 2),
        calls=(1, 1, 1, 1),
        rows=(9, 5, 5, 3),
    )


def test_every_counter_matches_a_hand_computation(spec: SampleRecord) -> None:
    tally = Tally.of(spec)
    assert tally.tokens_per_call == 8 / 4
    assert tally.tpf == 7 / 3
    assert tally.acceptance_length == 7 / 3
    assert tally.acceptance_rate == 4 / 10
    assert tally.rows_per_token == 13 / 8


def test_counters_pool_sums_and_do_not_average_ratios(record: Make, spec: SampleRecord) -> None:
    short = record("spec", (1, 1), drafted=(0, 4), accepted=(0, 0), rows=(9, 5))
    pooled = Tally.pool([spec, short])
    assert pooled.answers == 2
    assert pooled.tokens_per_call == 10 / 6
    assert pooled.acceptance_rate == 4 / 14
    assert pooled.acceptance_length == 8 / 4


def test_a_refinement_pass_that_commits_nothing_is_a_step(record: Make) -> None:
    tally = Tally.of(record("idlm", (1, 0, 0, 6), calls=(1, 1, 1, 1)))
    assert tally.acceptance_length == 6 / 3
    assert tally.tokens_per_call == 7 / 4


def test_a_prefill_of_several_tokens_and_calls_is_kept_out_of_tpf(record: Make) -> None:
    tally = Tally.of(record("nar", (8, 8), calls=(2, 1), rows=(20, 8)))
    assert tally.tokens_per_call == 16 / 3
    assert tally.tpf == 8 / 1
    assert tally.rows_per_token == 8 / 16


def test_counters_without_data_are_none_and_not_zero(record: Make) -> None:
    only_prefill = Tally.of(record("ar", (1,)))
    assert only_prefill.tpf is None
    assert only_prefill.acceptance_length is None
    assert only_prefill.acceptance_rate is None
    assert Tally.pool([]).tokens_per_call is None
    assert Tally.of(record("ar", error="boom")).rows_per_token is None
    assert counters.peak_memory_bytes([record(peak_memory_bytes=None)]) is None
    assert answers.identical_to_ar([], []) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_baseline_has_one_token_per_call_and_per_step(record: Make, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(2, 90, size=20)
    tally = Tally.pool([record("ar", (1,) * int(n)) for n in lengths])
    assert tally.tokens_per_call == 1
    assert tally.tpf == 1
    assert tally.acceptance_length == 1
    assert tally.rows_per_token == pytest.approx(1 - 20 / lengths.sum())


@pytest.mark.parametrize("seed", range(5))
def test_identities_between_the_counters_hold_on_random_steps(record: Make, seed: int) -> None:
    rng = np.random.default_rng(seed)
    records = []
    for _ in range(10):
        drafted = [0, *rng.integers(0, 6, size=12).tolist()]
        accepted = [int(rng.integers(0, d + 1)) for d in drafted]
        emitted = [1, *(a + 1 for a in accepted[1:])]
        records.append(record("spec", emitted, drafted=drafted, accepted=accepted))
    tally = Tally.pool(records)
    histogram = step_lengths(records)
    assert sum(histogram.values()) == tally.later_steps
    assert sum(n * count for n, count in histogram.items()) == tally.emitted - tally.first_emitted
    assert tally.acceptance_length == pytest.approx(tally.accepted / tally.later_steps + 1)
    positions = acceptance_by_position(records)
    assert sum(count.accepted for count in positions) == tally.accepted
    joint = 1.0
    for count in positions:
        assert count.accepted <= count.reached <= count.steps
        assert count.joint is not None
        assert 0 <= count.joint <= joint
        joint = count.joint
    equal = record("spec", (1, 3, 2, 4), drafted=(0, 3, 3, 3), accepted=(0, 2, 1, 3))
    for count in acceptance_by_position([equal]):
        assert count.joint == pytest.approx(count.accepted / count.steps)


def test_joint_acceptance_does_not_rise_even_if_longer_drafts_are_accepted_more_often(
    record: Make,
) -> None:
    """Of five short drafts three stand, of five long ones four: accepted / steps rises to 0.8."""
    drafted = (0, *(1,) * 5, *(2,) * 5)
    accepted = (0, 1, 1, 1, 0, 0, 2, 2, 2, 2, 0)
    emitted = (1, *(a + 1 for a in accepted[1:]))
    first, second = acceptance_by_position(
        [record("spec", emitted, drafted=drafted, accepted=accepted)]
    )
    assert (first.steps, second.steps) == (10, 5)
    assert first.joint == pytest.approx(7 / 10)
    assert second.accepted / second.steps == pytest.approx(0.8)
    assert (second.conditional, second.joint) == (1.0, first.joint)


def test_acceptance_by_position_counts_joint_and_conditional(spec: SampleRecord) -> None:
    first, second, third = acceptance_by_position([spec])
    assert first == PositionCount(1, 3, 3, 2, 2 / 3, 2 / 3, 2, 3, 2 / 3)
    assert second == PositionCount(2, 3, 2, 2, 2 / 3, 1.0, 2, 3, 2 / 3)
    assert third == PositionCount(3, 2, 1, 0, 0.0, 0.0, 0, 3, 0.0)


def test_tokens_per_step_are_1_plus_the_sum_of_the_unconditional_rates(record: Make) -> None:
    """A cold step, a short draft, one cut behind two drafts that stood, one led by a token."""
    drafted, accepted = (0, 4, 0, 1, 4, 4), (0, 1, 0, 1, 2, 2)
    answer = record("ptp", (1, 2, 1, 2, 2, 4), drafted=drafted, accepted=accepted)
    rates = [count.unconditional for count in acceptance_by_position([answer])]
    assert rates == [4 / 5, 1 / 5, 1 / 5, 0.0]
    assert Tally.of(answer).acceptance_length == pytest.approx(1 + sum(rate or 0 for rate in rates))
    joint = [count.joint for count in acceptance_by_position([answer])]
    assert joint[:2] == [1.0, pytest.approx(2 / 3)]  # of steps that drafted: far above


def test_positions_end_at_the_first_where_no_draft_was_accepted(record: Make) -> None:
    tree = record("spec", (1, 2), drafted=(0, 60), accepted=(0, 1))
    assert [count.position for count in acceptance_by_position([tree])] == [1, 2]
    assert acceptance_by_position([record("ar")]) == []


def test_quality_records_and_errors_are_not_counted(record: Make) -> None:
    rows = [record(), record(kind="quality"), record(error="boom")]
    assert counters.timed(rows) == rows[:1]
    assert counters.peak_memory_bytes(rows) == 1000
    assert sum(step_lengths(rows).values()) == 2


def test_failed_answers_are_not_counted_even_if_their_records_hold_numbers(record: Make) -> None:
    sound = [record(peak_memory_bytes=num_bytes) for num_bytes in (3, 5, 4)]
    failed = dataclasses.replace(record(emitted=(9, 9), peak_memory_bytes=99), error="late")
    assert counters.timed([*sound, failed]) == sound
    assert counters.peak_memory_bytes([*sound, failed]) == 5


def test_identical_to_ar_pairs_prompts_and_repeats_and_skips_errors(record: Make) -> None:
    baseline = [record(repeat=0), record(repeat=1), record(repeat=2, error="boom")]
    arm = [
        record("spec", repeat=0),
        record("spec", repeat=1, tokens=(7, 8, 9)),
        record("spec", repeat=2),
        record("spec", repeat=3),
    ]
    assert answers.identical_to_ar(arm, baseline) == 0.5


def test_the_first_difference_is_where_answers_part() -> None:
    assert answers.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert answers.first_difference([1, 2, 3], [1, 9, 9]) == 1
    assert answers.first_difference([1, 2], [1, 2, 3]) == 2


def test_shared_with_ar_is_the_share_of_tokens_before_the_first_difference(record: Make) -> None:
    baseline = [
        record("ar", tokens=(1, 2, 3, 4)),
        record("ar", tokens=(5, 6), repeat=1),
        record("ar", tokens=(7, 8), repeat=2),
    ]
    mine = [
        record("nar", tokens=(1, 2, 9, 4)),  # two of four
        record("nar", tokens=(5, 6, 7), repeat=1),  # both of two
        record("nar", error="x", repeat=2),
    ]
    assert answers.shared_with_ar(mine, baseline) == pytest.approx(4 / 6)
    assert answers.shared_with_ar(baseline, baseline) == 1.0
    assert answers.shared_with_ar(mine, []) is None


def test_an_answer_of_the_second_pass_is_matched_with_the_timed_answer_of_its_repeat(
    record: Make,
) -> None:
    records = [record("ptp", (1, 2)), record("ptp", (1, 1, 1), repeat=1)]
    fields = dict.fromkeys(("emitted", "later_emitted", "later_steps", "rows", "padded_rows"), 0)
    again = PhasedAnswer(decoder="ptp", prompts=("c0#1",), seconds={}, repeat=1, **fields)
    ((answer, (steps,)),) = counters.timed_again([again], records)
    assert (answer, steps.emitted) == (again, (1, 1, 1))
    unknown = dataclasses.replace(again, prompts=("c0#1", "c9#1"))
    assert not list(counters.timed_again([unknown], records))
