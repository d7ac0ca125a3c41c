"""The scatter of a machine's times when nothing differs, and the differences it can show.

An A/A measurement runs the same decoder twice, right after each other, prompt by prompt. Its log
ratios are pure noise: resampled, they give the reach of an interval over P prompts of R repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bench.records.plan import BASELINE, SECOND_BASELINE
from bench.records.record import SampleRecord
from bench.stats import times
from bench.stats.intervals import CONFIDENCE, Estimate
from bench.stats.summary import noise_floor

POWER = 0.8
PROMPTS = (12, 24, 48, 96)
REPEATS = (1, 3, 5)
DRAWS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Support:
    """The margin that an unchanged decoder passes with P prompts of R repeats (power 80 %).

    A slow-down of twice the margin is then found with the same power.
    """

    prompts: int
    repeats: int
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """An A/A measurement: floor, sd of one pair's log ratio, and the margins it supports."""

    floor: Estimate
    pair_sd: float
    num_pairs: int
    supports: tuple[_Support, ...]

    def wanted(self, margin: float) -> _Support | None:
        """Return the fewest answers that support a margin; None where even the most do not."""
        enough = [support for support in self.supports if support.margin <= margin]
        return min(enough, key=lambda s: (s.prompts * s.repeats, s.prompts), default=None)


def noise_of(records: Sequence[SampleRecord]) -> Noise | None:
    """Return the noise of a run's two baseline arms; None with fewer than two shared answers."""
    ratios = _log_ratios(records)
    if len(ratios) < 2:
        return None
    return Noise(
        floor=noise_floor(records),
        pair_sd=float(np.std(ratios, ddof=1)),
        num_pairs=len(ratios),
        supports=tuple(
            _Support(prompts=p, repeats=r, margin=supported_margin(ratios, p, r))
            for p in PROMPTS
            for r in REPEATS
        ),
    )


def _log_ratios(records: Sequence[SampleRecord]) -> list[float]:
    first, second = (
        times.timed_units([r for r in records if r.decoder == arm])
        for arm in (BASELINE, SECOND_BASELINE)
    )
    pairs = [
        (one.time_per_token, other.time_per_token)
        for one, other in times.matched(first, second)
        if one.ok and other.ok
    ]
    return [float(np.log(other / one)) for one, other in pairs if one and other]


def supported_margin(
    ratios: Sequence[float], num_prompts: int, num_repeats: int, seed: int = 0
) -> float:
    """Return the margin at which no difference at all passes with probability `POWER`.

    (t + z) sd / sqrt(P), for the sd of the median of R resampled ratios, Student's t of the
    interval and the normal quantile z of the power; exponentiated, less 1.
    """
    rng = np.random.default_rng([seed, num_prompts, num_repeats])
    drawn = rng.choice(np.asarray(ratios), size=(DRAWS, num_repeats))
    spread = float(np.median(drawn, axis=1).std(ddof=1))
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, num_prompts - 1) + stats.norm.ppf(POWER)
    return float(np.expm1(reach * spread / np.sqrt(num_prompts)))
