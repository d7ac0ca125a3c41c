"""Times per token against hand-made answers and groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from bench.records.record import SampleRecord
from bench.stats import times

Make = Callable[..., SampleRecord]


def test_times_per_token_are_pooled_sums(record: Make) -> None:
    units = times.timed_units(
        [
            record(emitted=(1,) * 10, total_s=2.0, ttft_s=0.2),
            record(emitted=(1,) * 2, conversation="c1", total_s=1.0, ttft_s=0.4),
        ]
    )
    assert times.time_per_token_s(units) == pytest.approx(3.0 / 12)
    assert times.decode_time_per_token_s(units) == pytest.approx((1.8 + 0.6) / (9 + 1))


def test_decode_time_per_token_excludes_the_tokens_of_the_first_emitting_step(
    record: Make,
) -> None:
    (unit,) = times.timed_units([record(emitted=(0, 0, 3, 2, 0, 5), total_s=2.0, ttft_s=0.6)])
    assert unit.tokens == 10
    assert unit.decode_time_per_token == pytest.approx(1.4 / 7)


def test_time_to_first_token_is_the_mean_over_answers(record: Make) -> None:
    rows = [record(ttft_s=0.1), record(ttft_s=0.3), record(error="boom")]
    assert times.ttft_s(rows) == pytest.approx(0.2)
    assert times.ttft_s([record(ttft_s=None)]) is None


def test_an_answer_of_the_prefill_alone_has_no_decode_time(record: Make) -> None:
    (unit,) = times.timed_units([record(emitted=(1,))])
    assert unit.time_per_token == pytest.approx(0.01)
    assert unit.decode_time_per_token is None
    assert times.decode_time_per_token_s([unit]) is None
    usual = record(conversation="c1", emitted=(1, 1, 1), total_s=0.5, ttft_s=0.1)
    both = times.timed_units([record(emitted=(1,), total_s=0.9, ttft_s=0.2), usual])
    assert times.decode_time_per_token_s(both) == pytest.approx(0.4 / 2)


def test_a_group_counts_its_makespan_once(record: Make) -> None:
    group = {"batch_size": 2, "ttft_s": None, "total_s": None, "group_s": 3.0, "block": 5}
    (unit,) = times.timed_units(
        [record(conversation=c, emitted=(1,) * 4, **group) for c in ("a", "b", "c")]
    )
    assert unit.time_per_token == pytest.approx(3.0 / 12)
    assert unit.decode_time_per_token is None
    assert unit.key == unit.cluster == "a#1|b#1|c#1"
    assert unit.family == "qa"
    assert unit.prompts == 3


def test_a_group_with_a_failed_answer_has_no_time(record: Make) -> None:
    group = {"batch_size": 2, "ttft_s": None, "total_s": None, "block": 5}
    failed = record(conversation="a", error="boom", group_s=None, **group)
    rest = [record(conversation=c, emitted=(1,) * 4, group_s=3.0, **group) for c in ("b", "c")]
    (unit,) = times.timed_units([*rest, failed])
    assert not unit.ok
    assert unit.key == "a#1|b#1|c#1"
    assert unit.time_per_token is None


def test_one_error_voids_its_whole_group(record: Make) -> None:
    group = {"batch_size": 2, "ttft_s": None, "total_s": None, "group_s": 3.0}
    (unit,) = times.timed_units(
        [record(conversation="a", **group), record(conversation="b", error="boom", **group)]
    )
    assert not unit.ok
    assert times.time_per_token_s([unit]) is None


def test_times_of_failed_answers_do_not_count_even_where_they_were_measured(record: Make) -> None:
    """A failed group has a makespan, and a failed answer may have been timed up to its error."""
    failed = record(conversation="a", emitted=(1,) * 4)
    failed = dataclasses.replace(failed, error="late", total_s=99.0, ttft_s=50.0)
    sound = record(conversation="b", emitted=(1,) * 4, total_s=2.0, ttft_s=0.5)
    units = times.timed_units([failed, sound])
    assert [unit.ok for unit in units] == [False, True]
    assert times.time_per_token_s(units) == pytest.approx(2.0 / 4)
    assert times.decode_time_per_token_s(units) == pytest.approx(1.5 / 3)
    assert times.ttft_s([failed, sound]) == 0.5

    group = {"batch_size": 2, "ttft_s": None, "total_s": None}
    failing = [
        record(conversation="a", group_s=99.0, block=0, **group),
        record(conversation="b", error="late", block=0, **group),
    ]
    whole = record(conversation="c", emitted=(1,) * 4, group_s=2.0, block=1, **group)
    units = times.timed_units([*failing, whole])
    assert [unit.ok for unit in units] == [False, True]
    assert times.time_per_token_s(units) == pytest.approx(2.0 / 4)


def test_answers_of_the_untimed_pass_are_no_units(record: Make) -> None:
    assert times.timed_units([record(kind="quality", total_s=1.0)]) == []


def test_units_are_matched_with_the_baselines_unit_of_the_same_repeat(record: Make) -> None:
    base, arm = (
        times.timed_units([record(cell, repeat=n, total_s=seconds + n) for n in range(3)])
        for cell, seconds in (("ar", 10.0), ("spec", 20.0))
    )
    pairs = [(one.seconds, other.seconds) for one, other in times.matched(base, arm[1:])]
    assert pairs == [(11.0, 21.0), (12.0, 22.0)]


def test_turns_of_a_conversation_are_one_cluster_and_two_keys(record: Make) -> None:
    units = times.timed_units([record(turn=turn) for turn in (1, 2)])
    assert {unit.cluster for unit in units} == {"c0"}
    assert [unit.key for unit in units] == ["c0#1", "c0#2"]


def test_a_group_that_mixes_families_belongs_to_none(record: Make) -> None:
    group = {"batch_size": 2, "group_s": 3.0}
    (unit,) = times.timed_units([record(**group), record(family="rag", turn=1, **group)])
    assert unit.family is None
