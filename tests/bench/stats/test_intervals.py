"""Intervals against scipy and hand computation, and their coverage by simulation."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import stdev

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.stats.intervals import (
    Estimate,
    cluster_mean,
    jackknife,
    log_ratio_of_medians,
    mean_log_ratio,
    mean_of_estimates,
    paired_speedup,
    ratio_of_sums,
)
from bench.stats.times import Unit


def unit(key: str, seconds: float, *, repeat: int = 0, tokens: int = 10, ok: bool = True) -> Unit:
    return Unit(
        key=key,
        cluster=key.split("#")[0],
        family="qa",
        repeat=repeat,
        ok=ok,
        tokens=tokens,
        seconds=seconds,
    )


def per_token(item: Unit) -> float | None:
    return item.time_per_token


def test_without_clusters_the_interval_is_scipys_t_interval() -> None:
    values = [0.1, 0.4, 0.2, 0.7, 0.3]
    made = cluster_mean(values, list("abcde"))
    expected = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert made.value == pytest.approx(0.34)
    assert (made.low, made.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert (made.num, made.clusters) == (5, 5)


def test_equal_clusters_give_the_t_interval_on_their_means() -> None:
    values, clusters = [1.0, 3.0, 2.0, 6.0, 5.0, 7.0], list("aabbcc")
    expected = scipy_stats.ttest_1samp([2.0, 4.0, 6.0], 0).confidence_interval(0.95)
    made = cluster_mean(values, clusters)
    assert (made.low, made.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert (made.num, made.clusters) == (6, 3)


def test_unequal_clusters_weigh_by_size_and_stay_centred_on_the_mean() -> None:
    made = cluster_mean([1.0, 1.0, 1.0, 5.0], list("aaab"))
    assert made.value == 2.0
    # z_a = 2 + 3/2 (1 - 2) = 0.5, z_b = 2 + 1/2 (5 - 2) = 3.5; error = sd / sqrt 2 = 1.5
    assert made.error == pytest.approx(1.5)
    assert made.low is not None
    assert made.high is not None
    assert (made.low + made.high) / 2 == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("values", "clusters"),
    [([], []), ([1.0], ["a"]), ([1.0, 2.0], ["a", "a"]), ([0.3, 0.3, 0.3], ["a", "b", "c"])],
)
def test_too_few_clusters_or_no_spread_give_no_interval(
    values: list[float], clusters: list[str]
) -> None:
    made = cluster_mean(values, clusters)
    assert made.low is None
    assert made.high is None
    assert not made.differs_from_one


def test_the_speedup_is_the_geometric_mean_of_paired_ratios() -> None:
    baseline = [unit("a#0", 4.0), unit("b#0", 1.0)]
    arm = [unit("a#0", 1.0), unit("b#0", 1.0)]
    made = paired_speedup(baseline, arm, per_token)
    assert made.value == pytest.approx(2.0)  # sqrt(4 x 1)
    interval = scipy_stats.ttest_1samp([math.log(4), 0.0], 0).confidence_interval(0.95)
    assert made.low == pytest.approx(math.exp(interval.low))
    assert made.high == pytest.approx(math.exp(interval.high))


def test_times_are_per_token_so_that_a_shorter_answer_is_no_faster() -> None:
    made = paired_speedup([unit("a#0", 2.0, tokens=20)], [unit("a#0", 1.0, tokens=10)], per_token)
    assert made.value == pytest.approx(1.0)


def test_the_median_over_repeats_shrugs_off_one_spike() -> None:
    baseline = [unit("a#0", 2.0, repeat=r) for r in range(3)]
    arm = [unit("a#0", s, repeat=r) for r, s in enumerate((1.0, 50.0, 1.0))]
    made = paired_speedup(baseline, arm, per_token)
    assert made.value == pytest.approx(2.0)
    assert made.num == 1


def test_repeats_measured_side_by_side_are_averaged_so_that_a_shared_disturbance_cancels() -> None:
    baseline = [unit("a#0", s, repeat=r) for r, s in enumerate((1.0, 8.0, 3.0))]
    arm = [unit("a#0", s, repeat=r) for r, s in enumerate((1.1, 8.8, 3.0))]
    made = paired_speedup(baseline, arm, per_token, mean_log_ratio)
    assert made.value == pytest.approx(1.1 ** (-2 / 3))
    assert paired_speedup(baseline, arm, per_token).value == pytest.approx(1.0)  # the medians, 3 s


def test_the_mean_of_repeats_scatters_less_than_the_ratio_of_medians() -> None:
    rng = random.Random(0)
    noisy = [
        [(rng.lognormvariate(0, 0.14), rng.lognormvariate(0, 0.14)) for _ in range(6)]
        for _ in range(4000)
    ]
    spreads = [stdev(map(f, noisy)) for f in (mean_log_ratio, log_ratio_of_medians)]
    assert spreads[0] / spreads[1] == pytest.approx(0.88, abs=0.03)


def test_an_error_on_either_side_drops_that_pair_and_is_counted() -> None:
    baseline = [unit("a#0", 2.0), unit("a#0", 8.0, repeat=1), unit("b#0", 9.0, ok=False)]
    arm = [unit("a#0", 1.0), unit("a#0", 1.0, repeat=1, ok=False), unit("b#0", 1.0)]
    made = paired_speedup(baseline, arm, per_token)
    assert made.value == pytest.approx(2.0)
    assert (made.num, made.dropped) == (1, 2)


def test_a_time_of_zero_or_none_has_no_ratio() -> None:
    whole = [unit("a#0", 2.0), unit("b#0", 1.0)]
    for seconds in (None, 0.0):
        odd = [whole[0], replace(whole[1], seconds=seconds)]
        for sides in ((odd, whole), (whole, odd)):
            made = paired_speedup(*sides, per_token)
            assert (made.value, made.num, made.dropped) == (1.0, 1, 0)


def test_a_block_that_one_side_lacks_is_no_pair() -> None:
    made = paired_speedup([unit("a#0", 2.0)], [unit("b#0", 1.0)], per_token)
    assert (made.value, made.num, made.dropped) == (None, 0, 0)


def test_swapping_the_arms_inverts_the_speedup_and_its_interval() -> None:
    rng = np.random.default_rng(0)
    left = [unit(f"{c}#0", float(s)) for c, s in enumerate(rng.lognormal(size=12))]
    right = [unit(f"{c}#0", float(s)) for c, s in enumerate(rng.lognormal(size=12))]
    one, other = paired_speedup(left, right, per_token), paired_speedup(right, left, per_token)
    assert one.value is not None
    assert one.low is not None
    assert one.value * (other.value or 0) == pytest.approx(1.0)
    assert one.low * (other.high or 0) == pytest.approx(1.0)


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(1)
    hits, trials = 0, 1500
    for _ in range(trials):
        values = rng.normal(0.5, 0.3, size=12)
        made = cluster_mean(values.tolist(), [str(i) for i in range(12)])
        hits += (made.low or 9) <= 0.5 <= (made.high or -9)
    assert 0.935 <= hits / trials <= 0.965


def test_clustering_keeps_coverage_where_turns_of_a_conversation_agree() -> None:
    rng = np.random.default_rng(2)
    sizes = [1, 2] * 8
    names = [str(c) for c, size in enumerate(sizes) for _ in range(size)]
    clustered = naive = 0
    trials = 1500
    for _ in range(trials):
        shared = rng.normal(0, 0.3, size=len(sizes))
        values = [
            float(s + e) for s, n in zip(shared, sizes, strict=True) for e in rng.normal(0, 0.05, n)
        ]
        made = cluster_mean(values, names)
        alone = cluster_mean(values, [str(i) for i in range(len(values))])
        clustered += (made.low or 9) <= 0 <= (made.high or -9)
        naive += (alone.low or 9) <= 0 <= (alone.high or -9)
    assert 0.925 <= clustered / trials <= 0.975
    assert naive / trials < clustered / trials - 0.03


def test_the_jackknife_of_a_mean_is_its_t_interval() -> None:
    items = {"a": [0.1], "b": [0.5], "c": [0.9], "d": [0.2]}
    made = jackknife(items, lambda values: sum(values) / len(values))
    plain = cluster_mean([0.1, 0.5, 0.9, 0.2], list("abcd"))
    assert made.value == pytest.approx(plain.value)
    assert made.low == pytest.approx(plain.low)
    assert made.high == pytest.approx(plain.high)


def test_the_jackknife_counts_values_and_clusters() -> None:
    made = jackknife({"a": [1.0, 2.0], "b": [4.0], "c": [3.0, 3.0]}, sum)
    assert (made.num, made.clusters) == (5, 3)


def test_spread_by_rounding_alone_gives_no_interval() -> None:
    made = ratio_of_sums({"a": (0.1, 0.3), "b": (0.2, 0.6), "c": (0.7, 2.1)})
    assert made.value == pytest.approx(1 / 3)
    assert (made.low, made.high) == (None, None)


def test_an_interval_that_ends_at_1_does_not_differ_from_1() -> None:
    assert not Estimate(value=1.1, low=1.0, high=1.2).differs_from_one
    assert not Estimate(value=0.9, low=0.8, high=1.0).differs_from_one
    assert Estimate(value=1.1, low=1.0001, high=1.2).differs_from_one
    assert not Estimate(value=1.1).differs_from_one


@pytest.mark.parametrize("ends", [(0.9, 1.02), (0.98, 1.1), (0.98, 1.02)])
def test_a_speed_up_or_slow_down_must_exceed_the_farther_end_of_the_noise_floor(
    ends: tuple[float, float],
) -> None:
    floor = Estimate(value=1.0, low=ends[0], high=ends[1])
    noise = max(ends[1], 1 / ends[0])
    for value, exceeds in ((noise * 1.01, True), (noise * 0.995, False)):
        faster = Estimate(value=value, low=value - 1e-3, high=value + 1e-3)
        slower = Estimate(value=1 / value, low=1 / value - 1e-3, high=1 / value + 1e-3)
        assert (faster.exceeds(floor), slower.exceeds(floor)) == (exceeds, exceeds)
    assert faster.exceeds(Estimate())  # an unknown floor hides nothing


def test_the_jackknife_of_one_cluster_or_none_has_no_interval() -> None:
    assert jackknife({"a": [1.0]}, lambda values: values[0]).low is None
    assert jackknife({}, lambda values: 0.0) == Estimate()


def test_the_mean_of_estimates_adds_their_errors_in_quadrature() -> None:
    parts = [Estimate(value=v, error=0.1, df=9.0, num=10, clusters=10) for v in (0.2, 0.6)]
    made = mean_of_estimates(parts)
    assert made.value == pytest.approx(0.4)
    assert made.error == pytest.approx(math.sqrt(2 * 0.1**2) / 2)
    assert made.df == pytest.approx(18.0)  # two equal parts: their degrees of freedom add up
    assert (made.num, made.clusters) == (20, 20)


def test_the_mean_of_estimates_has_no_interval_where_an_error_is_unknown() -> None:
    known = Estimate(value=0.5, error=0.1, df=9.0)
    assert mean_of_estimates([known, replace(known, error=None)]).low is None
    assert mean_of_estimates([known, Estimate()]).value == 0.5
    assert mean_of_estimates([]) == Estimate()
