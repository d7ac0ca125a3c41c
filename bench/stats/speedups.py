"""Estimate a speed-up in three ways, with 95 % intervals, on answers that both sides finished.

* *Geometric mean* of paired per-prompt ratios of time per token: the headline. It has Student's
  t-interval on the logs, clustered by conversation.
* *Ratio of totals*: the baseline's seconds per token over all answers / the decoder's. This is the
  gain of the whole workload. Long answers dominate it.
* *specbench_compat*: Spec-Bench's estimator (its evaluation/speed.py). Per repeat: the mean over
  questions of the decoder's tokens per second / the mean of the baseline's; then the mean over
  repeats. It is not paired. Questions with a short prefill dominate it.

The last two have a jackknife t-interval on the logs, over conversations.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from bench.stats.counters import group_by
from bench.stats.intervals import (
    CONFIDENCE,
    Estimate,
    exponential,
    jackknife,
    pair_times,
    paired_speedup,
    t_ppf,
)
from bench.stats.times import Unit, matched

PRECISION = 0.05
"""Distance of an interval's ends from the estimate above which the interval is called wide."""
_UNKNOWN = Estimate()
_Pair = tuple[Unit, Unit]
_Sums = tuple[float, float, float, float]
"""Seconds and tokens of a conversation: the baseline's, then the decoder's."""
_Rates = tuple[int, float, float]
"""A question's repeat, and its tokens per second: the decoder's and the baseline's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedups:
    """Hold all estimates of one decoder's speed-up in one family.

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
    geometric = paired_speedup(baseline, arm)
    answers = [pair for pair in matched(baseline, arm) if pair_times(pair) is not None]
    questions = group_by(answers, lambda pair: pair[1].cluster)
    sums = {name: [_sums(pairs)] for name, pairs in questions.items()}
    prompts = sum({unit.key: unit.prompts for _, unit in answers}.values())
    return Speedups(
        geometric=geometric,
        totals=exponential(jackknife(sums, _log_of_totals)),
        specbench=exponential(jackknife(_rates(baseline, arm, questions), _log_of_rates)),
        more_prompts=more_prompts(replace(geometric, num=prompts)),
    )


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


def _sums(pairs: Iterable[_Pair]) -> _Sums:
    of_each = [(b.seconds or 0.0, b.tokens, u.seconds or 0.0, u.tokens) for b, u in pairs]
    base_s, base, arm_s, arm = map(sum, zip(*of_each, strict=True))
    return base_s, base, arm_s, arm


def _log_of_totals(conversations: Iterable[_Sums]) -> float:
    base_s, base, arm_s, arm = map(sum, zip(*conversations, strict=True))
    return math.log(base_s / base / (arm_s / arm))


def _rates(
    baseline: Iterable[Unit], arm: Iterable[Unit], questions: Mapping[str, Sequence[_Pair]]
) -> dict[str, list[_Rates]]:
    """Return the rates of questions. A question is a conversation: its rate sums over turns.

    A question has no rates in a repeat in which a turn failed on either side.
    """
    turns: defaultdict[str, set[str]] = defaultdict(set)
    for unit in (*baseline, *arm):
        turns[unit.cluster].add(unit.key)
    rates: defaultdict[str, list[_Rates]] = defaultdict(list)
    for name, answers in questions.items():
        for repeat in {unit.repeat for _, unit in answers}:
            pairs = [pair for pair in answers if pair[1].repeat == repeat]
            base_s, _, arm_s, tokens = _sums(pairs)
            counted = sum(b.tokens if b.recounted is None else b.recounted for b, _ in pairs)
            if len(pairs) == len(turns[name]) and counted > 0:
                rates[name].append((repeat, tokens / arm_s, counted / base_s))
    return rates


def _log_of_rates(questions: Sequence[_Rates]) -> float:
    repeats = {repeat for repeat, _, _ in questions}
    rates = ([each for each in questions if each[0] == repeat] for repeat in repeats)
    sums = [[sum(column) for column in zip(*of_repeat, strict=True)] for of_repeat in rates]
    return math.log(fmean(arm / base for _, arm, base in sums))
