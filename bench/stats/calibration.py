"""Measure calibration: compare the confidences of drafters with the acceptance of drafts.

A draft is *tested* if all drafts before it on its path were accepted. Its confidence is the
probability that the drafter gives it, a claim about this test. Sources: ECE, Guo et al. 2017 (arXiv
1706.04599, equation 3); Brier 1950. Letters: C levels of confidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bench.records.record import LEVELS, SampleRecord
from bench.stats.counters import by_cluster, timed, timed_steps
from bench.stats.intervals import Estimate, jackknife

Counts = npt.NDArray[np.float64]
"""Numbers of tested drafts ``[2, C]``: rejected, and accepted, by confidence."""
NUM_BINS = 15
CONFIDENCES = np.arange(LEVELS + 1) / LEVELS
BINS = np.maximum(np.ceil(CONFIDENCES * NUM_BINS).astype(int) - 1, 0)
"""Confidence and bin (of equal width, with its upper end) of each level."""


def count_drafts(records: Iterable[SampleRecord]) -> dict[int, Counts]:
    """Count the tested drafts of timed answers by position in their step, from 1."""
    counts: dict[int, Counts] = {}
    for steps in timed_steps(records):
        for codes in steps.confidence:
            position = 1
            for code in codes:
                counts.setdefault(position, np.zeros((2, LEVELS + 1)))[code % 2, code // 2] += 1
                position += code % 2
    return dict(sorted(counts.items()))


def calibrate(records: Iterable[SampleRecord]) -> tuple[Estimate, Estimate]:
    """Compute ECE and Brier score, with jackknife intervals over conversations."""
    groups = {n: [*count_drafts(group).values()] for n, group in by_cluster(timed(records)).items()}
    drafting = {name: counts for name, counts in groups.items() if counts}
    ece, brier = (jackknife(drafting, error).clipped(0, 1) for error in (_ece, _brier))
    return ece, brier


def _ece(counts: Sequence[Counts]) -> float:
    """Return the sum over bins of (drafts in the bin / drafts) |accepted share - confidence|."""
    rejected, accepted = np.sum(counts, 0)
    gaps = np.bincount(BINS, accepted - (rejected + accepted) * CONFIDENCES, NUM_BINS)
    return float(np.abs(gaps).sum() / (rejected + accepted).sum())


def _brier(counts: Sequence[Counts]) -> float:
    """Return the mean of (confidence - outcome)^2, where an accepted draft is 1."""
    rejected, accepted = np.sum(counts, 0)
    squares = rejected @ CONFIDENCES**2 + accepted @ (1 - CONFIDENCES) ** 2
    return float(squares / (rejected + accepted).sum())
