"""Paired, clustered statistics: geometric-mean speed-ups, means, and their 95 % intervals.

What is repeated is not independent: the repeats of a prompt collapse to their median, and the
prompts of a conversation form one cluster. The t-interval on log-ratios holds its coverage for few
prompts, where the percentile bootstrap does not (simulated in tests/bench/test_stats.py; Miller,
arXiv 2411.00640, for clustering). scipy does the distributions. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeVar

import numpy as np
from scipy import stats

from bench.timings import Unit

CONFIDENCE = 0.95
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval (None where it is not known) and what it rests on.

    `num` counts the values, `clusters` the independent groups of them, `dropped` the pairs left
    out because of an error on either side. `error` is the standard error, `df` its degrees of
    freedom, both on the scale the mean was taken on (log for a speed-up).
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
        """Whether the interval is known and does not cover 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def cluster_mean(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Mean of all values with Student's t-interval over the C clusters they come from.

    The mean m is over the n values. Cluster c of n_c values with mean m_c enters the interval as
    z_c = m + (n_c / (n/C)) (m_c - m): with clusters of one size that is m_c, the plain t-interval
    on cluster means; otherwise the larger cluster weighs more, as it does in m. Standard error
    sd(z)/sqrt(C), C - 1 degrees of freedom. Fewer than two clusters or no spread: no interval.
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
    """A statistic of all items with a t-interval from leaving out one cluster at a time.

    Pseudo-value of cluster c: C s - (C - 1) s_(-c), for the statistic s and its value s_(-c)
    without c. It serves statistics that are no mean (corpus BLEU).
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


def mean_of_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """Unweighted mean of independent estimates, its error from theirs (Welch-Satterthwaite).

    No interval as soon as one of the errors is unknown or all are zero.
    """
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
    variance = sum(part for part, _ in parts)
    if len(parts) < count or variance == 0:
        return total
    df = variance**2 / sum(part**2 / df for part, df in parts)
    return _with_interval(total, math.sqrt(variance), df)


def paired_speedup(
    baseline: Iterable[Unit], arm: Iterable[Unit], time: Callable[[Unit], float | None]
) -> Estimate:
    """Geometric mean over prompts of baseline time / arm time, with its 95 % interval.

    Per prompt (or group, at batch size > 1): the median over repeats of `time` for either side,
    from the repeats that both sides finished; d = log of their ratio. The estimate is exp(mean d),
    the interval exp of `cluster_mean`'s over conversations.
    """
    theirs = {(u.key, u.repeat): u for u in baseline}
    pairs: dict[str, list[tuple[float, float]]] = {}
    clusters: dict[str, str] = {}
    dropped = 0
    for unit in arm:
        other = theirs.get((unit.key, unit.repeat))
        if other is None:
            continue
        if not (unit.ok and other.ok):
            dropped += 1
            continue
        base_s, arm_s = time(other), time(unit)
        if base_s and arm_s and base_s > 0 and arm_s > 0:
            pairs.setdefault(unit.key, []).append((base_s, arm_s))
            clusters[unit.key] = unit.cluster
    logs = [
        math.log(median(base for base, _ in group) / median(mine for _, mine in group))
        for group in pairs.values()
    ]
    estimate = replace(cluster_mean(logs, [clusters[key] for key in pairs]), dropped=dropped)
    return replace(
        estimate, value=_exp(estimate.value), low=_exp(estimate.low), high=_exp(estimate.high)
    )


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


def _t_interval(value: float, pseudo: Sequence[float]) -> Estimate:
    """`value` with the t-interval that the spread of its pseudo-values gives."""
    estimate = Estimate(value=value, num=len(pseudo), clusters=len(pseudo))
    if len(pseudo) < 2:
        return estimate
    error = float(stats.sem(np.asarray(pseudo)))
    if error <= 1e-12 * max(1.0, abs(value)):
        return replace(estimate, error=0.0, df=len(pseudo) - 1.0)
    return _with_interval(estimate, error, len(pseudo) - 1.0)


def _with_interval(estimate: Estimate, error: float, df: float) -> Estimate:
    assert estimate.value is not None
    low, high = stats.t.interval(CONFIDENCE, df, loc=estimate.value, scale=error)
    return replace(estimate, low=float(low), high=float(high), error=error, df=df)
