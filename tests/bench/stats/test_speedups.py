"""Estimators of a speed-up against hand computation, and what is said of their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.stats.intervals import Estimate, paired_speedup, ratio_of_sums
from bench.stats.speedups import more_prompts, speedups
from bench.stats.times import Unit


def unit(key: str, seconds: float, tokens: int = 10, **more: object) -> Unit:
    values: dict[str, object] = {"family": "qa", "repeat": 0, "ok": True, "tokens": tokens}
    values |= {"key": key, "cluster": key.split("#")[0], "seconds": seconds}
    return Unit(**(values | more))  # type: ignore[arg-type]


def units(seconds: Sequence[float], tokens: Sequence[int] | None = None) -> list[Unit]:
    lengths = tokens or [10] * len(seconds)
    return [unit(f"{i}#1", s, n) for i, (s, n) in enumerate(zip(seconds, lengths, strict=True))]


def test_the_three_estimators_match_their_definitions() -> None:
    base, mine = units([4.0, 6.0], [10, 30]), units([1.0, 6.0], [10, 30])
    found = speedups(base, mine)
    assert found.geometric.value == pytest.approx(2.0)  # sqrt(4 x 1)
    assert found.totals.value == pytest.approx(10 / 7)
    assert found.specbench.value == pytest.approx((10 + 5) / (2.5 + 5))  # mean rates


def test_totals_are_per_token_where_the_answers_differ_in_length() -> None:
    found = speedups(units([4.0], [20]), units([1.0], [10]))
    assert found.totals.value == pytest.approx(2.0)


def test_a_question_of_spec_bench_is_a_conversation_with_all_of_its_turns() -> None:
    base = [unit("a#1", 1.0), unit("a#2", 3.0), unit("b#1", 2.0)]
    mine = [unit("a#1", 1.0), unit("a#2", 1.0), unit("b#1", 1.0)]
    rates = ((20 / 2 + 10 / 1) / 2) / ((20 / 4 + 10 / 2) / 2)
    assert speedups(base, mine).specbench.value == pytest.approx(rates)


def test_totals_add_up_all_turns_and_repeats_of_a_conversation() -> None:
    base = [unit("a#1", 1.0), unit("a#2", 3.0), unit("a#1", 5.0, repeat=1), unit("b#1", 2.0)]
    mine = [unit("a#1", 2.0), unit("a#2", 1.0), unit("a#1", 1.0, repeat=1), unit("b#1", 1.0)]
    assert speedups(base, mine).totals.value == pytest.approx(11 / 5)


def test_spec_benchs_ratio_is_taken_per_repeat_and_then_averaged() -> None:
    base = [unit("a#1", 2.0), unit("a#1", 6.0, repeat=1)]
    mine = [unit("a#1", 1.0), unit("a#1", 1.0, repeat=1)]
    assert speedups(base, mine).specbench.value == pytest.approx((2 + 6) / 2)


def test_a_question_with_a_failed_turn_is_left_out_of_that_repeat_on_both_sides() -> None:
    base = [unit("a#1", 1.0), unit("a#2", 1.0), unit("b#1", 4.0)]
    mine = [unit("a#1", 1.0), unit("a#2", 1.0, ok=False), unit("b#1", 1.0)]
    found = speedups(base, mine)
    assert found.specbench.value == pytest.approx(4.0)
    assert found.totals.value == pytest.approx(5 / 2)


def test_recounted_tokens_of_the_baseline_affect_only_the_spec_bench_ratio() -> None:
    base = [unit("a#1", 2.0, recounted=8)]
    found = speedups(base, [unit("a#1", 1.0)])
    assert found.specbench.value == pytest.approx(10 / (8 / 2))
    assert found.totals.value == pytest.approx(2.0)
    mine = [unit("a#1", 1.0, recounted=3)]  # a method's tokens count as they were emitted
    assert speedups(base, mine).specbench == found.specbench


def test_a_baseline_of_empty_texts_has_no_spec_bench_ratio() -> None:
    found = speedups([unit("a#1", 2.0, recounted=0)], [unit("a#1", 1.0)])
    assert found.specbench == Estimate()
    assert found.totals.value == pytest.approx(2.0)


def test_without_common_answers_every_speed_up_is_unknown() -> None:
    found = speedups(units([1.0]), [])
    assert found.geometric == found.totals == found.specbench == Estimate()
    assert found.more_prompts is None


def spread(num: int, sd: float = 0.2, seed: int = 0) -> tuple[list[Unit], list[Unit]]:
    rng = np.random.default_rng(seed)
    return units(list(np.exp(rng.normal(0.5, sd, num)))), units([1.0] * num)


def test_the_interval_of_totals_is_near_the_t_interval_of_normal_logs() -> None:
    found = speedups(*spread(30))
    assert found.totals.low == pytest.approx(found.geometric.low, rel=0.05)
    assert found.totals.high == pytest.approx(found.geometric.high, rel=0.05)
    assert found.specbench.high is not None


def test_a_repeat_in_which_every_question_failed_is_left_out_of_the_spec_bench_ratio() -> None:
    base = [unit(f"a#{turn}", 2.0, repeat=repeat) for repeat in (0, 1) for turn in (1, 2)]
    mine = [replace(u, seconds=1.0, ok=(u.key, u.repeat) != ("a#2", 1)) for u in base]
    assert speedups(base, mine).specbench.value == pytest.approx(2.0)


def test_totals_and_the_spec_bench_ratio_have_jackknife_intervals() -> None:
    base, mine = units([4.0, 6.0, 3.0], [10, 30, 20]), units([1.0, 6.0, 2.0], [10, 30, 20])
    found = speedups(base, mine)
    ratios = {
        "totals": lambda base, mine: sum(u.seconds for u in base) / sum(u.seconds for u in mine),
        "specbench": lambda base, mine: (
            sum(u.tokens / u.seconds for u in mine) / sum(u.tokens / u.seconds for u in base)
        ),
    }
    for name, ratio in ratios.items():
        whole = math.log(ratio(base, mine))
        rests = [[side[:i] + side[i + 1 :] for side in (base, mine)] for i in range(3)]
        pseudo = [3 * whole - 2 * math.log(ratio(*rest)) for rest in rests]
        ends = scipy_stats.t.interval(0.95, 2, whole, scipy_stats.sem(pseudo))
        estimate = getattr(found, name)
        assert (estimate.low, estimate.high) == pytest.approx(tuple(map(math.exp, ends)))


def test_one_conversation_gives_totals_without_an_interval() -> None:
    found = speedups(*spread(1))
    assert found.totals.value == pytest.approx(found.specbench.value)
    assert found.totals.low is found.specbench.low is None


def test_a_ratio_that_one_conversation_alone_decides_has_no_interval() -> None:
    base = [unit("a#1", 2.0), unit("b#1", 2.0), unit("b#2", 2.0)]
    mine = [replace(u, seconds=1.0, ok=u.key != "b#2") for u in base]
    assert speedups(base, mine).specbench.value == pytest.approx(2.0)
    assert speedups(base, mine).specbench.low is None


def test_the_jackknife_leaves_out_all_turns_of_a_conversation_together() -> None:
    base, mine = spread(40)
    doubled = [[replace(u, key=u.key + "b") for u in side] for side in (base, mine)]
    alone, twice = speedups(base, mine), speedups(base + doubled[0], mine + doubled[1])
    assert twice.totals.low == pytest.approx(alone.totals.low)
    assert twice.geometric.low == pytest.approx(alone.geometric.low)


def test_the_number_of_further_prompts_is_the_smallest_that_reaches_the_target_interval() -> None:
    base, mine = spread(20)
    found = speedups(base, mine)
    assert found.more_prompts
    num, error = 20 + found.more_prompts, found.geometric.error or 0
    sd = error * math.sqrt(20)
    half = [scipy_stats.t.ppf(0.975, n - 1) * sd / math.sqrt(n) for n in (num, num - 1)]
    assert half[0] <= math.log(1.05) < half[1]
    assert paired_speedup(base, mine, lambda u: u.time_per_token).error == error


def test_further_prompts_are_0_for_a_narrow_interval_and_unknown_without_an_interval() -> None:
    assert speedups(*spread(20, sd=0.001)).more_prompts == 0
    assert more_prompts(Estimate(value=1.0)) is None


def test_further_prompts_are_counted_in_prompts_and_not_in_conversations() -> None:
    one = Estimate(value=1.0, low=0.8, high=1.25, error=0.1, df=9.0, num=10, clusters=10)
    two = replace(one, num=20)
    assert more_prompts(two) == 2 * (more_prompts(one) or 0)


def test_further_prompts_of_a_batched_run_are_counted_in_prompts_and_not_in_groups() -> None:
    base, mine = spread(6)
    alone = speedups(base, mine).more_prompts
    groups = [[replace(u, prompts=12) for u in side] for side in (base, mine)]
    assert alone
    assert speedups(*groups).more_prompts == 12 * alone


def test_the_number_of_further_prompts_does_not_depend_on_the_number_of_repeats() -> None:
    base, mine = spread(6)
    again = [[*side, *(replace(u, repeat=1) for u in side)] for side in (base, mine)]
    assert speedups(*again).more_prompts == speedups(base, mine).more_prompts


def test_a_ratio_of_sums_pools_clusters_and_has_a_jackknife_interval() -> None:
    found = ratio_of_sums({"a": (6.0, 3.0), "b": (2.0, 2.0), "c": (9.0, 3.0)})
    assert found.value == pytest.approx(17 / 8)
    pseudo = [3 * math.log(17 / 8) - 2 * math.log(left) for left in (11 / 5, 15 / 6, 8 / 5)]
    ends = scipy_stats.t.interval(0.95, 2, math.log(17 / 8), scipy_stats.sem(pseudo))
    expected = [math.exp(end) for end in ends]
    assert (found.low, found.high) == (pytest.approx(expected[0]), pytest.approx(expected[1]))


def test_a_ratio_of_sums_without_steps_is_unknown_and_of_one_cluster_has_no_interval() -> None:
    assert ratio_of_sums({}) == ratio_of_sums({"a": (1.0, 0.0)}) == Estimate()
    assert ratio_of_sums({"a": (4.0, 2.0), "b": (0.0, 0.0)}).low is None
    assert ratio_of_sums({"a": (4.0, 2.0), "b": (0.0, 0.0)}).value == 2.0
    one = ratio_of_sums({"a": (4.0, 2.0), "b": (0.0, 3.0)})  # without a, the logarithm of 0
    assert (one.value, one.low, one.high) == (0.8, None, None)


def test_conversations_without_later_steps_do_not_narrow_the_interval() -> None:
    stepped = {"a": (6.0, 3.0), "b": (2.0, 2.0), "c": (9.0, 3.0)}
    ended = {f"ended {number}": (0.0, 0.0) for number in range(20)}
    assert ratio_of_sums(stepped | ended) == ratio_of_sums(stepped)
