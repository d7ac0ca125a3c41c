"""Pooled sessions: both intervals, their coverage by simulation, and what statsmodels finds."""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import pytest
from scipy import stats

from bench.extras.sessions.pool import Pooled, pool_logs
from bench.stats.intervals import Floats

PROMPTS = 28
NAMES = [str(i) for i in range(PROMPTS)]


def drawn(
    rng: np.random.Generator, per_occasion: int, occasions: int = 1, of_occasion: float = 0.0
) -> tuple[Floats, list[str], float]:
    """Logs of sessions, their occasions, and the next session's mean: prompts are common to all."""
    names = np.repeat(np.arange(occasions), per_occasion)
    prompts, effects = rng.normal(0, 0.3, PROMPTS), rng.normal(0, of_occasion, occasions)
    levels = effects[names] + rng.normal(0, 0.05, len(names))
    logs = prompts + levels[:, None] + rng.normal(0, 0.08, (len(names), PROMPTS))
    following = rng.normal(0, of_occasion) + rng.normal(0, 0.05) + rng.normal(0, 0.08, PROMPTS)
    return logs, [str(name) for name in names], float((prompts + following).mean())


def pooled(logs: Floats, occasions: list[str] | None = None) -> Pooled:
    return pool_logs(logs, occasions or ["one"] * len(logs), NAMES)


def test_the_next_session_is_predicted_as_a_new_value_of_the_sessions_means() -> None:
    logs, *_ = drawn(np.random.default_rng(1), 5)
    means = logs.mean(1)
    half = stats.t.ppf(0.975, 4) * means.std(ddof=1) * math.sqrt(1 + 1 / 5)
    found = pooled(logs)
    assert found.mean.value == pytest.approx(math.exp(means.mean()))
    assert found.next.low == pytest.approx(math.exp(means.mean() - half))
    assert found.next.high == pytest.approx(math.exp(means.mean() + half))
    assert found.spread == pytest.approx(means.std(ddof=1))


def test_more_sessions_of_the_same_prompts_do_not_reduce_the_uncertainty_due_to_prompts() -> None:
    logs, *_ = drawn(np.random.default_rng(2), 200)
    prompts = logs.mean(0)
    half = stats.t.ppf(0.975, PROMPTS - 1) * prompts.std(ddof=1) / math.sqrt(PROMPTS)
    found = pooled(logs)
    assert found.mean.high is not None
    assert math.log(found.mean.high / (found.mean.value or 0)) == pytest.approx(half, rel=0.02)


def test_a_session_outside_of_its_prediction_from_the_remaining_sessions_is_counted() -> None:
    logs = np.linspace(0, 1, PROMPTS) + np.array([0.1, 0.2, 0.12, 0.18, 0.15, 0.16])[:, None]
    usual = pooled(logs)
    assert (usual.inside, usual.held_out) == (6, 6)
    logs[2] += 1.0
    assert (pooled(logs).inside, pooled(logs).held_out) == (5, 6)
    two = pooled(logs[:2])
    assert (two.inside, two.held_out) == (0, 0)


def test_sessions_without_spread_give_no_interval_for_the_next_session() -> None:
    found = pooled(np.tile(np.linspace(0, 1, PROMPTS), (3, 1)))
    assert found.next.low is None
    assert found.mean.low is not None  # of the prompts
    assert (found.spread, found.held_out) == (0, 0)


def test_a_held_out_session_is_predicted_only_from_other_occasions() -> None:
    """Two tight occasions far apart: each session resembles its own and none of the other's."""
    logs = np.zeros((8, PROMPTS)) + np.linspace(-0.2, 0.2, PROMPTS)
    logs += np.array([0.1, 0.11, 0.12, 0.115, 0.5, 0.51, 0.52, 0.515])[:, None]
    found = pooled(logs, ["a"] * 4 + ["b"] * 4)
    assert (found.inside, found.held_out) == (0, 8)
    assert (pooled(logs).inside, pooled(logs).held_out) == (8, 8)


def test_occasions_that_differ_have_equal_weights_and_widen_the_prediction() -> None:
    logs = np.zeros((6, PROMPTS)) + np.linspace(-0.2, 0.2, PROMPTS)
    logs += np.array([0.50, 0.51, 0.49, 0.505, 0.90, 0.91])[:, None]
    found = pooled(logs, ["a"] * 4 + ["b"] * 2)
    assert math.log(found.mean.value or 0) == pytest.approx((0.50125 + 0.905) / 2, abs=1e-3)
    alone = pooled(logs[:4])
    assert (found.next.high or 0) / (found.next.low or 1) > 10
    assert (alone.next.high or 0) / (alone.next.low or 1) < 1.1
    as_sessions = pooled(logs, list("abcdef"))  # no occasion twice: nothing to nest
    assert math.log(as_sessions.mean.value or 0) == pytest.approx(logs.mean())


def test_if_prompts_do_not_differ_the_interval_is_the_t_interval_of_the_session_means() -> None:
    """Prompts that do not differ leave only the sessions: mean ± t sd / sqrt(S)."""
    levels = np.array([0.1, 0.3, 0.2, 0.26, 0.17])
    found = pooled(np.tile(levels[:, None], PROMPTS))
    half = stats.t.ppf(0.975, 4) * levels.std(ddof=1) / math.sqrt(5)
    ends = [math.exp(levels.mean() + sign * half) for sign in (-1, 1)]
    assert [found.mean.low, found.mean.high] == pytest.approx(ends)


def test_variances_of_unequal_occasions_match_the_textbook_formula() -> None:
    """Searle, Casella and McCulloch 1992, section 3.6: n0 = (N - sum n^2 / N) / (a - 1)."""
    groups = [[0.50, 0.53, 0.47, 0.52], [0.90, 0.94], [0.70]]
    values = [value for group in groups for value in group]
    means, total = [sum(group) / len(group) for group in groups], len(values)
    centre = sum(values) / total
    squares = sum((v - m) ** 2 for group, m in zip(groups, means, strict=True) for v in group)
    within = squares / (total - 3)
    outer = sum(len(g) * (m - centre) ** 2 for g, m in zip(groups, means, strict=True)) / 2
    between = (outer - within) / ((total - (16 + 4 + 1) / total) / 2)
    logs = np.array(values)[:, None] + np.linspace(-0.2, 0.2, PROMPTS)
    found = pooled(logs, list("aaaabbc"))
    assert found.spread**2 == pytest.approx(between + within)
    weights = [1 / (between + within / len(group)) for group in groups]
    expected = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
    assert math.log(found.mean.value or 0) == pytest.approx(expected)


def test_occasions_without_differences_pool_as_sessions_of_a_single_occasion() -> None:
    logs = np.zeros((4, PROMPTS)) + np.linspace(-0.2, 0.2, PROMPTS)
    logs += np.array([0.1, 0.2, 0.11, 0.19])[:, None]
    assert pooled(logs, ["a", "a", "b", "b"]) == pooled(logs)


def test_statsmodels_gives_the_same_effects() -> None:
    """Its REML of balanced occasions, its meta-analysis (Paule-Mandel, HKSJ) of one."""
    from statsmodels.regression.mixed_linear_model import MixedLM
    from statsmodels.stats.meta_analysis import combine_effects

    logs, occasions, _ = drawn(np.random.default_rng(5), 4, occasions=5, of_occasion=0.2)
    found, means = pooled(logs, occasions), logs.mean(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = MixedLM(means, np.ones((20, 1)), groups=occasions).fit(reml=True)
        meta = combine_effects(means[:4], np.full(4, 1e-9), method_re="iterated")
    assert math.log(found.mean.value or 0) == pytest.approx(fitted.fe_params[0], abs=1e-6)
    variance = float(fitted.cov_re[0, 0] if isinstance(fitted.cov_re, np.ndarray) else 0)
    variance = variance or float(fitted.cov_re.iloc[0, 0])
    assert found.spread**2 == pytest.approx(variance + fitted.scale, rel=1e-3)
    one = pooled(logs[:4])
    assert math.log(one.mean.value or 0) == pytest.approx(meta.mean_effect_re)
    assert one.spread / math.sqrt(4) == pytest.approx(meta.sd_eff_w_re_hksj, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sessions", "occasions", "of_occasion", "least"),
    [
        *((num, 1, 0, 0.93) for num in (2, 3, 5, 10)),
        *((3, 2, 0, 0.93), (3, 2, 0.1, 0.88), (3, 3, 0.1, 0.91)),
    ],
)
def test_both_intervals_have_about_their_nominal_coverage(
    sessions: int, occasions: int, of_occasion: float, least: float
) -> None:
    rng, trials = np.random.default_rng(0), 1000
    hits = [0, 0]
    for _ in range(trials):
        logs, names, following = drawn(rng, sessions, occasions, of_occasion)
        found = pooled(logs, names)
        for i, (interval, truth) in enumerate(
            ((found.mean, 1.0), (found.next, math.exp(following)))
        ):
            hits[i] += (interval.low or 0) <= truth <= (interval.high or 0)
    shares = [hit / trials for hit in hits]
    what = f"{occasions} occasion(s) x {sessions} sessions, occasions' SD {of_occasion}"
    sys.stdout.write(f"{what}: mean {shares[0]:.1%}, next session {shares[1]:.1%}\n")
    assert all(least <= share <= 0.975 for share in shares)
