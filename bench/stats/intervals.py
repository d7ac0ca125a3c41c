"""Compute paired, clustered statistics: geometric-mean speed-ups, means, and 95 % intervals.

Repeated measurements are dependent: the repeats of a prompt are reduced to their median, and the
prompts of a conversation form one cluster (Miller, arXiv 2411.00640). Coverage is simulated in
tests/bench/stats/test_coverage.py.

Letters: C clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import fmean, median
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from bench.stats.times import Unit, matched

CONFIDENCE = 0.95
LEVEL = f"{CONFIDENCE:.0%}".replace("%", " %")
TEX_LEVEL = LEVEL.replace(" %", r"\,\%")
"""`CONFIDENCE` as printed in tables and figures, and in LaTeX."""
TIME, DECODE_TIME = attrgetter("time_per_token"), attrgetter("decode_time_per_token")
"""Seconds per token of a unit: end to end, and after the first token."""
Floats = npt.NDArray[np.float64]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Hold a number of `num` values in `clusters` clusters, with a 95 % interval (None: unknown).

    `dropped` counts pairs excluded for an error on either side. The standard `error` and its
    degrees of freedom `df` are on the scale of the mean (log for a speed-up).
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
        """Return whether the interval is known and does not cover 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def noise(self) -> float:
        """The largest factor by which two arms of the same decoder differ, if this is their A/A."""
        ends = [end for end in (self.value, self.low, self.high) if end]
        return max((max(end, 1 / end) for end in ends), default=1.0)

    def exceeds(self, floor: Estimate) -> bool:
        """Return whether the value differs from 1, by more than both ends of the A/A `floor`."""
        if self.value is None or not self.differs_from_one:
            return False
        return max(self.value, 1 / self.value) > floor.noise

    def clipped(self, low: float, high: float = math.inf) -> Estimate:
        """Return the estimate with its interval cut at its smallest and largest possible values."""
        ends = [None if end is None else min(max(end, low), high) for end in (self.low, self.high)]
        return replace(self, low=ends[0], high=ends[1])

    def columns(self, name: str) -> dict[str, float | None]:
        """Return the columns ``name``, ``name_low`` and ``name_high`` of a table."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def cluster_mean(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Return the mean of all values with Student's t-interval over their C clusters.

    Let m be the mean of all n values. A cluster c of n_c values with mean m_c enters the interval
    as z_c = m + (n_c / (n/C)) (m_c - m). This is m_c if all clusters have one size; otherwise a
    larger cluster weighs more, as in m. The standard error is sd(z) / sqrt(C), with C - 1 degrees
    of freedom. With fewer than two clusters or no spread, there is no interval.
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
    """Return a statistic of all items, with a jackknife t-interval over clusters.

    Pseudo-value of cluster c: C s - (C - 1) s_(-c), for the statistic s and s_(-c) without c.
    """
    everything = [item for group in items.values() for item in group]
    if not everything:
        return Estimate()
    value, pseudo = statistic(everything), list[float]()
    for left_out in items if len(items) > 1 else ():
        rest = [item for name, group in items.items() if name != left_out for item in group]
        pseudo.append(len(items) * value - (len(items) - 1) * statistic(rest))
    return replace(_t_interval(value, pseudo), num=len(everything), clusters=len(items))


def ratio_of_sums(sums: Mapping[str, tuple[float, float]]) -> Estimate:
    """Return the sum of all a / sum of all b over the clusters' (a, b), and its interval.

    The jackknife t-interval is on the logarithm, so it stays above 0. A cluster without b tells
    nothing and is left out. No value if none is left; no interval if fewer than two have an a.
    """
    parts = {name: [pair] for name, pair in sums.items() if pair[1]}
    pairs = [pair for (pair,) in parts.values()]
    if not pairs:
        return Estimate()
    value = sum(a for a, _ in pairs) / sum(b for _, b in pairs)
    if sum(a > 0 for a, _ in pairs) < 2:
        return Estimate(value=value, num=len(pairs), clusters=len(pairs))
    logs = jackknife(parts, lambda p: math.log(sum(a for a, _ in p) / sum(b for _, b in p)))
    return replace(exponential(logs), value=value)


def mean_of_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """Return the unweighted mean of independent estimates, with a Welch-Satterthwaite interval."""
    estimates = [e for e in estimates if e.value is not None]
    if not estimates:
        return Estimate()
    count = len(estimates)
    total = Estimate(
        value=fmean(e.value for e in estimates if e.value is not None),
        num=sum(e.num for e in estimates),
        clusters=sum(e.clusters for e in estimates),
    )
    parts = [((e.error / count) ** 2, e.df) for e in estimates if e.error is not None and e.df]
    return total if len(parts) < count else satterthwaite(total, parts)


def satterthwaite(estimate: Estimate, parts: Sequence[tuple[float, float]]) -> Estimate:
    """Return `estimate` with a t-interval whose variance is the sum of `parts`.

    `parts` are (variance, degrees of freedom); the sum's degrees of freedom follow Satterthwaite
    (1946). No interval if the variance is 0.
    """
    variance = sum(part for part, _ in parts)
    if variance <= 0:
        return estimate
    df = variance**2 / sum(part**2 / df for part, df in parts)
    return _with_interval(estimate, math.sqrt(variance), df)


def t_ppf(share: float, df: float) -> float:
    """Return a quantile of Student's t, as `scipy.stats.t.ppf` does, without its slow checks."""
    return float(special.stdtrit(df, share))


Repeats = Sequence[tuple[float, float]]
"""Pairs (baseline time, arm time) of one prompt, for the repeats that both arms finished."""


def log_ratio_of_medians(repeats: Repeats) -> float:
    """Return the log ratio of both sides' medians, on which disturbed repeats have no influence."""
    return math.log(median(base for base, _ in repeats) / median(arm for _, arm in repeats))


def mean_log_ratio(repeats: Repeats) -> float:
    """Return the mean of the repeats' log ratios, for sides that ran directly after each other.

    Common slow-downs cancel: the interval is three quarters as wide (docs/log.md).
    """
    return math.fsum(math.log(base / arm) for base, arm in repeats) / len(repeats)


def paired_speedup(
    baseline: Iterable[Unit],
    arm: Iterable[Unit],
    time: Callable[[Unit], float | None] = TIME,
    log_ratio: Callable[[Repeats], float] = log_ratio_of_medians,
) -> Estimate:
    """Return the geometric mean over prompts (or groups) of baseline time / arm time.

    Args:
        baseline: timed units of the baseline.
        arm: timed units of the decoder.
        time: seconds of a unit; a pair without them is left out.
        log_ratio: computes one log ratio from the repeats of a prompt.
    """
    pairs: dict[str, list[tuple[float, float]]] = {}
    clusters: dict[str, str] = {}
    dropped = 0
    for pair in matched(baseline, arm):
        if not all(unit.ok for unit in pair):
            dropped += 1
        elif (times := pair_times(pair, time)) is not None:
            pairs.setdefault(pair[1].key, []).append(times)
            clusters[pair[1].key] = pair[1].cluster
    logs = [log_ratio(repeats) for repeats in pairs.values()]
    return replace(geometric_mean(logs, list(clusters.values())), dropped=dropped)


def geometric_mean(logs: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Return exp(mean of the logs of ratios), with exp of the t-interval on their clusters."""
    return exponential(cluster_mean(logs, clusters))


def pair_times(
    pair: tuple[Unit, Unit], time: Callable[[Unit], float | None] = TIME
) -> tuple[float, float] | None:
    """Return the times of a pair that both sides finished, or None if a time is unknown or 0."""
    times = [time(unit) or 0.0 for unit in pair if unit.ok]
    return (times[0], times[1]) if len(times) == 2 and min(times) > 0 else None


def exponential(logs: Estimate) -> Estimate:
    """Exponentiate the value and interval of an estimate of logs."""
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
