"""Speed-ups pooled over several sessions, with a random effect of the session.

The model is: log ratio = mean + prompt + machine + session + rest. All sessions answer the same
prompts, so prompt effects do not average out over sessions. A meta-analysis of the sessions' own
intervals would treat their errors as independent and be too narrow (coverage: docs/metrics.md).

* The interval of the *mean*, for other prompts and sessions, adds the variance of the sessions'
  mean to the variance of the prompts' mean.
* The interval of the *next* session, for the same prompts, is a prediction interval from the
  sessions only (Higgins et al. 2009, JRSS A 172; with equal errors, a new value's t-interval).

Sessions are nested in machines. Variances come from analysis of variance (Henderson's method 1);
they weight the means. Degrees of freedom of both levels follow Satterthwaite (1946).

Letters: S sessions on M machines, P prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.stats.intervals import Estimate, Floats, cluster_mean, exponential, satterthwaite

FEWEST = 2
"""Fewest sessions from which their variance can be estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A decoder's speed-up over sessions: the `mean`, and the `next` session with these prompts.

    `spread` is the standard deviation of sessions, in logs. Each of `held_out` sessions is
    predicted from all other sessions; `inside` of them lie in the prediction interval.
    """

    mean: Estimate
    next: Estimate
    spread: float
    inside: int
    held_out: int


def pool(logs: Floats, machines: Sequence[str], conversations: Sequence[str]) -> Pooled:
    """Pool log ratios ``[S, P]`` of `FEWEST` sessions or more.

    `machines` has the machine of each session, `conversations` the conversation of each prompt.
    """
    sessions, prompts = logs.mean(1), cluster_mean(logs.mean(0).tolist(), conversations)
    found = _random_effects(sessions, machines)
    mean = Estimate(value=found.centre, num=logs.shape[1], clusters=prompts.clusters)
    if prompts.error is not None and prompts.df:
        mean = satterthwaite(mean, [*found.mean, (prompts.error**2, prompts.df)])
    following = found.next_session()
    others = [
        _random_effects(np.delete(sessions, i), [*machines[:i], *machines[i + 1 :]]).next_session()
        for i in range(len(sessions))
        if len(sessions) > FEWEST
    ]
    left_out = zip(sessions.tolist(), others, strict=False)
    known = [(value, each) for value, each in left_out if each.low is not None]
    return Pooled(
        mean=exponential(mean),
        next=exponential(following),
        spread=math.sqrt(max(0.0, sum(v for v, _ in found.new) - sum(v for v, _ in found.mean))),
        inside=sum((e.low or 0) <= value <= (e.high or 0) for value, e in known),
        held_out=len(known),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effects:
    """The sessions' centre; (variance, df) parts of the centre and of a new session's deviation."""

    centre: float
    mean: list[tuple[float, float]]
    new: list[tuple[float, float]]

    def next_session(self) -> Estimate:
        return satterthwaite(Estimate(value=self.centre), self.new)


def _random_effects(values: Floats, machines: Sequence[str]) -> _Effects:
    """Estimate effects of machine and session, or only of session if no machine effect shows."""
    total, names = len(values), list(dict.fromkeys(machines))
    count = len(names)
    groups = [values[[machine == name for machine in machines]] for name in names]
    sizes, means = np.array([len(g) for g in groups]), np.array([g.mean() for g in groups])
    if 1 < count < total:
        within = sum(float(((g - g.mean()) ** 2).sum()) for g in groups) / (total - count)
        outer = float((sizes * (means - values.mean()) ** 2).sum()) / (count - 1)
        size = float(total - (sizes**2).sum() / total) / (count - 1)
        if (between := (outer - within) / size) > 0:
            weights = 1 / (between + within / sizes)
            weights /= weights.sum()
            of_machines, of_sessions = (weights**2).sum(), (weights**2 / sizes).sum()

            def parts(a: float, b: float) -> list[tuple[float, float]]:
                """Split the variance a between + b within into parts of the two mean squares."""
                return [(a / size * outer, count - 1), ((b - a / size) * within, total - count)]

            return _Effects(
                centre=float(weights @ means),
                mean=parts(of_machines, of_sessions),
                new=parts(1 + of_machines, 1 + of_sessions),
            )
    variance = float(values.var(ddof=1))
    return _Effects(
        centre=float(values.mean()),
        mean=[(variance / total, total - 1)],
        new=[(variance * (1 + 1 / total), total - 1)],
    )
