"""Differences of decoders that guarantee the baseline's very tokens, and their causes.

In row-invariant numerics any difference makes a decoder wrong; in greedy float32 runs a first
difference that is no near-tie (`bench.verify.divergence`). Half precision and sampling are
reported, with how near a tie they part, and not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.plan.setup import Setup
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.records.status import Difference
from bench.stats.unequal import Pair, compare_with_baseline
from bench.verify.divergence import Divergence, examine


def differences(
    setup: Setup, records: Sequence[SampleRecord], prompts: Mapping[str, Prompt]
) -> list[Difference]:
    """Return the lossless cells whose timed answers are not the baseline's, with the evidence."""
    found = []
    for each in compare_with_baseline([arm.cell for arm in setup.arms.values()], records):
        if not each.unequal:
            continue
        precision = setup.precision(each.cell)
        invariant, greedy = precision == "invariant", setup.sampling.greedy
        parted = [] if invariant else _examined(setup, precision, each.unequal, prompts)
        num_wrong = len(each.unequal) if invariant else None
        if precision == "float32" and greedy:
            num_wrong = sum(not divergence.near_tie for divergence in parted)
        judged = {id(divergence): divergence for divergence in parted}.values()
        gaps = tuple(d.distance for d in judged if d.by != "length")
        found.append(each.difference(num_wrong, gaps))
    return found


def _examined(
    setup: Setup, precision: str, unequal: Sequence[Pair], prompts: Mapping[str, Prompt]
) -> list[Divergence]:
    """Examine each answer where it parts; equal repeats of a greedy answer are examined once."""
    found: dict[Pair, Divergence] = {}
    parted = []
    for name, answer, expected, repeat in unequal:
        key = (name, answer, expected, 0 if setup.sampling.greedy else repeat)
        if key not in found:
            target, sampling = setup.models.target, setup.repeated(repeat)
            ids = prompts[name].ids
            divergence = examine(target, ids, answer, expected, sampling, precision)
            assert divergence is not None, "these answers differ"
            found[key] = divergence
        parted.append(found[key])
    return parted
