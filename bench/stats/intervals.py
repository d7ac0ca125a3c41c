"""Paired, clustered statistics: geometric-mean speed-ups, means, and their 95 % intervals.

What is repeated is not independent: the repeats of a prompt collapse to their median, and the
prompts of a conversation form one cluster (Miller, arXiv 2411.00640). The bootstrap takes wider
percentiles the fewer clusters there are (Hesterberg, arXiv 1411.5279); coverage is simulated in
tests/bench/stats/test_coverage.py.

Letters: C clusters, K sums kept of each, S statistics of them, B resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from statistics import fmean, median
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from bench.records.cost import Measured
from bench.stats.times import Unit, matched

CONFIDENCE = 0.95
LEVEL = f"{CONFIDENCE:.0%}".replace("%", " %")
"""`CONFIDENCE` as tables and figures print it."""
_RESAMPLES = 4999
MIN_BOOTSTRAP = 8
"""Clusters below which there is no bootstrap: resamples of fewer cannot reach the tails."""
t_ppf = lru_cache(maxsize=4096)(stats.t.ppf)  # a report asks for few, thousands of times
TIME, DECODE_TIME = attrgetter("time_per_token"), attrgetter("decode_time_per_token")
"""End-to-end seconds per token of a unit, and those after its first token."""
Floats = npt.NDArray[np.float64]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval (None where it is not known) and what it rests on.

    `dropped` counts pairs left out because of an error on either side. The standard `error` and its
    degrees of freedom are on the scale the mean was taken on (log for a speed-up).
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    num: int = 0
    clusters: int = 0
    dropped: int = 0
    error: float | None = None
    df: float | None = None

    @property
    def differs_from_one(self) -> bool:
        """Tell whether the interval is known and does not cover 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    def exceeds(self, floor: Estimate) -> bool:
        """Tell whether it differs from 1 by more than the farther end of the A/A noise `floor`."""
        ends = [end for end in (floor.value, floor.low, floor.high) if end]
        noise = max((max(end, 1 / end) for end in ends), default=1.0)
        if self.value is None or not self.differs_from_one:
            return False
        return max(self.value, 1 / self.value) > noise

    def columns(self, name: str) -> dict[str, float | None]:
        """Return the columns ``name``, ``name_low`` and ``name_high`` of a table."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def cluster_mean(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Return the mean of all values with Student's t-interval over their C clusters.

    Cluster c of n_c values with mean m_c enters the interval as z_c = m + (n_c / (n/C)) (m_c - m)
    for the mean m of all n values: with clusters of one size that is m_c, otherwise the larger
    cluster weighs more, as it does in m. Standard error sd(z)/sqrt(C), C - 1 degrees of freedom.
    Fewer than two clusters or no spread: no interval.
    """
    groups: dict[str, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        groups.setdefault(cluster, []).append(value)
    if not groups:
        return Estimate()
    mean, size = fmean(values), len(values) / len(groups)
    pseudo = [mean + len(g) / size * (fmean(g) - mean) for g in groups.values()]
    return replace(_t_interval(mean, pseudo), num=len(values))


def jackknife(
    items: Mapping[str, Sequence[Item]], statistic: Callable[[list[Item]], float]
) -> Estimate:
    """Return a statistic of all items with a t-interval from leaving out a cluster at a time.

    Pseudo-value of cluster c: C s - (C - 1) s_(-c), for the statistic s and s_(-c) without c.
    """
    everything = [item for group in items.values() for item in group]
    if not everything:
        return Estimate()
    value, count = statistic(everything), len(items)
    pseudo: list[float] = []
    if count > 1:
        for left_out in items:
            rest = [item for name, group in items.items() if name != left_out for item in group]
            pseudo.append(count * value - (count - 1) * statistic(rest))
    return replace(_t_interval(value, pseudo), num=len(everything), clusters=count)


def ratio_of_sums(parts: Mapping[str, Sequence[tuple[float, float]]]) -> Estimate:
    """Return the sum of all a / sum of all b of the clusters' pairs (a, b), and its interval.

    A jackknife t-interval on the logarithm, so that it stays above 0; a cluster's pairs count as
    one. No value where the b sum to 0; no interval where leaving out a cluster leaves a sum of 0.
    """
    sums = {name: [(sum(a for a, _ in p), sum(b for _, b in p))] for name, p in parts.items()}
    pairs = [pair for (pair,) in sums.values()]
    whole = sum(b for _, b in pairs)
    if not whole:
        return Estimate()
    value = sum(a for a, _ in pairs) / whole
    if min(sum(a > 0 for a, _ in pairs), sum(b > 0 for _, b in pairs)) < 2:
        return Estimate(value=value, num=len(pairs), clusters=len(pairs))
    logs = jackknife(sums, lambda some: math.log(sum(a for a, _ in some) / sum(b for _, b in some)))
    return replace(exponential(logs), value=value)


def mean_of_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """Return the unweighted mean of independent estimates (errors: Welch-Satterthwaite)."""
    known = [e for e in estimates if e.value is not None]
    if not known:
        return Estimate()
    count = len(known)
    total = Estimate(
        value=fmean(e.value for e in known if e.value is not None),
        num=sum(e.num for e in known),
        clusters=sum(e.clusters for e in known),
    )
    parts = [((e.error / count) ** 2, e.df) for e in known if e.error is not None and e.df]
    return total if len(parts) < count else satterthwaite(total, parts)


def satterthwaite(estimate: Estimate, parts: Sequence[tuple[float, float]]) -> Estimate:
    """Return it with the t-interval of a variance that is a sum of `parts` with their df.

    Degrees of freedom after Satterthwaite (1946). No interval where the variance is 0.
    """
    variance = sum(part for part, _ in parts)
    if variance <= 0:
        return estimate
    df = variance**2 / sum(part**2 / df for part, df in parts)
    return _with_interval(estimate, math.sqrt(variance), df)


def bootstrap(sums: Floats, statistic: Callable[[Floats], Floats]) -> list[tuple[float, float]]:
    """Return bootstrap intervals (low, high) of S statistics of clusters, resampled as a whole.

    Percentiles of B = `_RESAMPLES` seeded resamples: not the 2.5th and 97.5th but those that give
    the mean of C normal values its t-interval, Phi(-t sqrt(C / (C - 1))) from either end for the
    97.5 % quantile t of Student's distribution with C - 1 degrees of freedom. None where C is below
    `MIN_BOOTSTRAP`.

    Args:
        sums: of each cluster, ``[C, K]``.
        statistic: sums over clusters ``[B, K]`` -> statistics ``[S, B]``.
    """
    count = len(sums)
    if count < MIN_BOOTSTRAP:
        return []

    def resampled(indices: Floats, axis: int = -1) -> Floats:
        drawn = indices.astype(np.intp).reshape(-1, count)
        rows = np.arange(len(drawn))[:, None]
        times = np.bincount((drawn + count * rows).ravel(), minlength=count * len(drawn))
        values = statistic(times.reshape(len(drawn), count) @ sums)
        return values.reshape(-1, *indices.shape[:-1])

    quantile = t_ppf((1 + CONFIDENCE) / 2, count - 1)
    tail = stats.norm.sf(quantile * math.sqrt(count / (count - 1)))
    ends = stats.bootstrap(
        (np.arange(count),),
        resampled,
        vectorized=True,
        method="percentile",
        confidence_level=float(1 - 2 * tail),
        n_resamples=_RESAMPLES,
        batch=500,
        rng=np.random.default_rng(0),
    ).confidence_interval
    lows, highs = np.atleast_1d(ends.low), np.atleast_1d(ends.high)
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def median_interval(values: Sequence[float]) -> Measured | None:
    """Return the median with the interval between two order statistics; None of no values.

    The k-th smallest and the k-th largest of n values enclose the median unless fewer than k of
    them fall on one side of it, which is binomial(n, 1/2). Below six values: no interval.
    """
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    rank = int(stats.binom.ppf((1 - CONFIDENCE) / 2, count, 0.5))  # P(X < rank) <= 2.5 %
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (None, None)
    return Measured(value=median(values), low=low, high=high, num=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Log ratios of baseline time / arm time, one per prompt, with the conversation of each."""

    logs: tuple[float, ...]
    clusters: tuple[str, ...]
    dropped: int = 0


Repeats = Sequence[tuple[float, float]]
"""Times of one prompt, baseline's and arm's, in the repeats that both finished."""


def log_ratio_of_medians(repeats: Repeats) -> float:
    """Take each side's median first: a disturbed repeat of either side does not count."""
    return math.log(median(base for base, _ in repeats) / median(arm for _, arm in repeats))


def mean_log_ratio(repeats: Repeats) -> float:
    """Take each repeat's ratio first, for sides that answered right after each other.

    Common slow-downs cancel: the interval is three quarters as wide (docs/log.md).
    """
    return math.fsum(math.log(base / arm) for base, arm in repeats) / len(repeats)


def paired_speedup(
    baseline: Iterable[Unit],
    arm: Iterable[Unit],
    time: Callable[[Unit], float | None] = TIME,
    of_prompt: Callable[[Repeats], float] = log_ratio_of_medians,
) -> Estimate:
    """Return the geometric mean over prompts of baseline time / arm time, with its interval."""
    return geometric_mean(pair_up(baseline, arm, time, of_prompt))


def geometric_mean(pairs: Pairs) -> Estimate:
    """Return exp(mean of the log ratios), with exp of the t-interval on their clusters."""
    return exponential(replace(cluster_mean(pairs.logs, pairs.clusters), dropped=pairs.dropped))


def pair_up(
    baseline: Iterable[Unit],
    arm: Iterable[Unit],
    time: Callable[[Unit], float | None] = TIME,
    of_prompt: Callable[[Repeats], float] = log_ratio_of_medians,
) -> Pairs:
    """Return the log ratio of both sides' times for every prompt (or group) that both finished."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    clusters: dict[str, str] = {}
    dropped = 0
    for other, unit in matched(baseline, arm):
        if not (unit.ok and other.ok):
            dropped += 1
            continue
        base_s, arm_s = time(other), time(unit)
        if base_s and arm_s and base_s > 0 and arm_s > 0:
            pairs.setdefault(unit.key, []).append((base_s, arm_s))
            clusters[unit.key] = unit.cluster
    logs = tuple(map(of_prompt, pairs.values()))
    return Pairs(logs=logs, clusters=tuple(clusters[key] for key in pairs), dropped=dropped)


def exponential(logs: Estimate) -> Estimate:
    """Return an estimate of logs as one of factors."""
    value, low, high = (
        None if end is None else math.exp(end) for end in (logs.value, logs.low, logs.high)
    )
    return replace(logs, value=value, low=low, high=high)


def _t_interval(value: float, pseudo: Sequence[float]) -> Estimate:
    estimate = Estimate(value=value, num=len(pseudo), clusters=len(pseudo))
    if len(pseudo) < 2:
        return estimate
    error = float(np.std(pseudo, ddof=1)) / len(pseudo) ** 0.5
    if error <= 1e-12 * max(1.0, abs(value)):
        return replace(estimate, error=0.0, df=len(pseudo) - 1.0)
    return _with_interval(estimate, error, len(pseudo) - 1.0)


def _with_interval(estimate: Estimate, error: float, df: float) -> Estimate:
    assert estimate.value is not None
    low, high = (t_ppf((1 + s * CONFIDENCE) / 2, df) * error + estimate.value for s in (-1, 1))
    return replace(estimate, low=float(low), high=float(high), error=error, df=df)
