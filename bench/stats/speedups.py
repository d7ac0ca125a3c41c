"""The estimators of a speed-up, each with a 95 % interval, on answers that both sides finished.

* *Geometric mean* of paired per-prompt ratios of time per token: the headline. It has Student's
  t-interval on the logs, clustered by conversation.
* *Ratio of totals*: the baseline's seconds per token over all answers / the decoder's. This is the
  gain of the whole workload. Long answers dominate it.
* *specbench_compat*: Spec-Bench's estimator (its evaluation/speed.py). Per repeat: the mean over
  questions of the decoder's tokens per second / the mean of the baseline's; then the mean over
  repeats. It is not paired. Questions with a short prefill dominate it.

The last two have a jackknife t-interval on the logs, over conversations.

Letters: C conversations, K sums per conversation, B rows of sums, R repeats.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.stats.intervals import (
    CONFIDENCE,
    Estimate,
    Floats,
    exponential,
    from_left_out,
    geometric_mean,
    pair_times,
    pair_up,
    t_ppf,
)
from bench.stats.times import Unit, matched

PRECISION = 0.05
"""Distance of an interval's ends from the estimate above which the interval is called wide."""
_UNKNOWN = Estimate()
_COLUMNS = 4
"""Sums per conversation before the repeats' rates: seconds and tokens of both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedups:
    """All estimators of one decoder's speed-up in one family.

    `more_prompts` is the number of additional prompts that would narrow the headline's interval to
    +-5 % if they scattered like the measured ones; 0 if it is narrow enough.
    """

    geometric: Estimate
    totals: Estimate = _UNKNOWN
    specbench: Estimate = _UNKNOWN
    more_prompts: int | None = None


def speedups(baseline: Iterable[Unit], arm: Iterable[Unit]) -> Speedups:
    """Compute all estimators, end to end, from the answers that both sides finished."""
    baseline, arm = list(baseline), list(arm)
    geometric = geometric_mean(pairs := pair_up(baseline, arm))
    clusters = sorted(set(pairs.clusters))
    if not clusters:
        return Speedups(geometric=geometric)
    answers = [pair for pair in matched(baseline, arm) if pair_times(pair) is not None]
    row_of = {name: row for row, name in enumerate(clusters)}
    sums = np.zeros((len(clusters), _COLUMNS))
    for other, unit in answers:
        times = (other.seconds or 0, other.tokens, unit.seconds or 0, unit.tokens)
        sums[row_of[unit.cluster]] += times
    sums = np.concatenate([sums, _question_rates(baseline, arm, answers, clusters)], axis=1)
    logs = np.log(_statistics(sums.sum(0, keepdims=True)))[:, 0]
    with np.errstate(invalid="ignore"):  # a sole conversation leaves none
        without = np.log(_statistics((1 - np.eye(len(sums))) @ sums))
    totals, specbench = map(_estimate, logs.tolist(), without.tolist())
    prompts = sum({unit.key: unit.prompts for _, unit in answers}.values())
    more = more_prompts(replace(geometric, num=prompts))
    return Speedups(geometric=geometric, totals=totals, specbench=specbench, more_prompts=more)


def _estimate(log: float, without: Sequence[float]) -> Estimate:
    """Return a ratio from its log over all conversations, and its logs without one of them."""
    if math.isnan(log):
        return _UNKNOWN
    return exponential(from_left_out(log, () if np.isnan(without).any() else without))


def more_prompts(estimate: Estimate) -> int | None:
    """Return the number of additional prompts for a half-width of at most log(1 + `PRECISION`).

    The t-interval of C conversations has the half-width t(C - 1) sd / sqrt(C).
    """
    if estimate.error is None or estimate.low is None or not estimate.clusters:
        return None
    spread = estimate.error * math.sqrt(estimate.clusters)

    def is_narrow(count: int) -> bool:
        quantile = t_ppf((1 + CONFIDENCE) / 2, count - 1)
        return quantile * spread / math.sqrt(count) <= math.log1p(PRECISION)

    more = bisect_left(range(estimate.clusters, sys.maxsize), True, key=is_narrow)
    return math.ceil(more * estimate.num / estimate.clusters)


def _question_rates(
    baseline: Sequence[Unit],
    arm: Sequence[Unit],
    answers: Sequence[tuple[Unit, Unit]],
    clusters: Sequence[str],
) -> Floats:
    """Return each question's tokens per second, decoder and baseline alternating: ``[C, 2 R]``.

    A question is a conversation; tokens and seconds are summed over its turns. If a turn failed on
    either side, both rates are 0, which excludes the question from that repeat.
    """
    turns: defaultdict[str, set[str]] = defaultdict(set)
    for unit in (*baseline, *arm):
        turns[unit.cluster].add(unit.key)
    questions: defaultdict[tuple[str, int], list[tuple[Unit, Unit]]] = defaultdict(list)
    for other, unit in answers:
        questions[unit.cluster, unit.repeat].append((other, unit))
    repeats = sorted({repeat for _, repeat in questions})
    rates = np.zeros((len(clusters), 2 * len(repeats)))
    for row, cluster in enumerate(clusters):
        for column, repeat in enumerate(repeats):
            pairs = questions[cluster, repeat]
            if len(pairs) < len(turns[cluster]):
                continue
            counted = sum(o.tokens if o.recounted is None else o.recounted for o, _ in pairs)
            rates[row, 2 * column] = sum(u.tokens for _, u in pairs) / _seconds(u for _, u in pairs)
            rates[row, 2 * column + 1] = counted / _seconds(o for o, _ in pairs)
    return rates


def _seconds(units: Iterable[Unit]) -> float:
    return sum(unit.seconds or 0.0 for unit in units)


def _statistics(sums: Floats) -> Floats:
    """Return ratio of totals and specbench_compat ``[2, B]`` from sums ``[B, K]``."""
    totals = sums[:, 0] / sums[:, 1] / (sums[:, 2] / sums[:, 3])
    arm, base = sums[:, _COLUMNS::2], sums[:, _COLUMNS + 1 :: 2]
    there = base > 0
    ratios = np.where(there, arm / np.where(there, base, 1), 0).sum(1)
    repeats = there.sum(1)
    compat = np.where(repeats > 0, ratios / np.maximum(repeats, 1), np.nan)
    return np.stack([totals, compat])
