"""Pool speed-ups over several sessions, with random effects of the occasion and the session.

The model is: log ratio = mean + prompt + occasion + session + rest. All sessions answer the same
prompts, so prompt effects do not average out over sessions. A meta-analysis of the sessions' own
intervals would treat their errors as independent and be too narrow (coverage: docs/metrics.md).

* The interval of the *mean*, for other prompts and sessions, adds the variance of the sessions'
  mean to the variance of the prompts' mean.
* The interval of the *next* session, for the same prompts, is a prediction interval from the
  sessions only (Higgins et al. 2009, JRSS A 172; with equal errors, a new value's t-interval).

An occasion is a series of sessions on one machine without a long pause, so they share its state.
Sessions are nested in occasions. Variances come from analysis of variance (Henderson's method 1);
they weight the means. Degrees of freedom of both levels follow Satterthwaite (1946).

Letters: S sessions on O occasions, P prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.stats.intervals import Estimate, Floats, cluster_mean, exponential, satterthwaite

MIN_SESSIONS = 2
"""Minimum number of sessions for an estimate of their variance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Hold a decoder's speed-up over sessions: the `mean`, and the `next` session's prediction.

    `spread` is the standard deviation of sessions, in logs. Each of `held_out` sessions is
    predicted from the sessions of all other occasions (if there is only one occasion, from all
    other sessions); `inside` of them lie in the prediction interval.
    """

    mean: Estimate
    next: Estimate
    spread: float
    inside: int
    held_out: int


def pool_logs(logs: Floats, occasions: Sequence[str], conversations: Sequence[str]) -> Pooled:
    """Pool the log ratios of `MIN_SESSIONS` sessions or more.

    Args:
        logs: log ratios ``[S, P]``.
        occasions: the occasion of each session.
        conversations: the conversation of each prompt.
    """
    sessions, prompts = logs.mean(1), cluster_mean(logs.mean(0).tolist(), conversations)
    fit = _random_effects(sessions, occasions)
    mean = Estimate(value=fit.centre, num=logs.shape[1], clusters=prompts.clusters)
    if prompts.error is not None and prompts.df:
        mean = satterthwaite(mean, [*fit.mean, (prompts.error**2, prompts.df)])
    following = fit.next_session()
    of, each = np.array(occasions), np.arange(len(sessions))
    kept = [of != name if len(set(occasions)) > 1 else each != i for i, name in enumerate(of)]
    left_out = [
        (value, _random_effects(sessions[rest], of[rest].tolist()).next_session())
        for value, rest in zip(sessions.tolist(), kept, strict=True)
        if rest.sum() >= MIN_SESSIONS
    ]
    predicted = [(value, each) for value, each in left_out if each.low is not None]
    return Pooled(
        mean=exponential(mean),
        next=exponential(following),
        spread=math.sqrt(max(0.0, sum(v for v, _ in fit.new) - sum(v for v, _ in fit.mean))),
        inside=sum((e.low or 0) <= value <= (e.high or 0) for value, e in predicted),
        held_out=len(predicted),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effects:
    """Hold the sessions' centre, and (variance, df) parts of the centre and of a new session."""

    centre: float
    mean: list[tuple[float, float]]
    new: list[tuple[float, float]]

    def next_session(self) -> Estimate:
        return satterthwaite(Estimate(value=self.centre), self.new)


def _random_effects(values: Floats, occasions: Sequence[str]) -> _Effects:
    """Estimate effects of occasion and session, or of session alone if no other effect shows."""
    total, names = len(values), list(dict.fromkeys(occasions))
    count = len(names)
    groups = [values[[occasion == name for occasion in occasions]] for name in names]
    sizes, means = np.array([len(g) for g in groups]), np.array([g.mean() for g in groups])
    if 1 < count < total:
        within = sum(float(((g - g.mean()) ** 2).sum()) for g in groups) / (total - count)
        outer = float((sizes * (means - values.mean()) ** 2).sum()) / (count - 1)
        size = float(total - (sizes**2).sum() / total) / (count - 1)
        if (between := (outer - within) / size) > 0:
            weights = 1 / (between + within / sizes)
            weights /= weights.sum()
            of_occasions, of_sessions = (weights**2).sum(), (weights**2 / sizes).sum()

            def parts(a: float, b: float) -> list[tuple[float, float]]:
                """Split the variance a between + b within into parts of the two mean squares."""
                return [(a / size * outer, count - 1), ((b - a / size) * within, total - count)]

            return _Effects(
                centre=float(weights @ means),
                mean=parts(of_occasions, of_sessions),
                new=parts(1 + of_occasions, 1 + of_sessions),
            )
    variance = float(values.var(ddof=1))
    return _Effects(
        centre=float(values.mean()),
        mean=[(variance / total, total - 1)],
        new=[(variance * (1 + 1 / total), total - 1)],
    )
