"""Whether decoders that promise the baseline's very tokens gave them, and why where they did not.

In row-invariant numerics any difference makes a decoder wrong. In greedy float32 runs only a first
difference that is no near-tie does (see `bench.verify.divergence`). Half precision and sampling
above temperature 0 are reported, with how near a tie they part, and not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.plan.setup import Setup
from bench.records.plan import BASELINE
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.records.status import Difference
from bench.stats.counters import first_difference
from bench.verify.divergence import Divergence, examine


def differences(
    setup: Setup, records: Sequence[SampleRecord], prompts: Mapping[str, Prompt]
) -> list[Difference]:
    """The lossless cells whose timed answers are not the baseline's, with what was found."""
    timed = [r for r in records if r.kind == "timing" and r.error is None and r.tokens is not None]
    baseline = {(r.prompt, r.repeat): r.tokens or () for r in timed if r.decoder == BASELINE}
    counted = []
    for cell, arm in setup.arms.items():
        if cell == BASELINE or not (arm.cell.lossless and arm.cell.comparable_to_ar):
            continue
        pairs = [
            (r.prompt, r.tokens or (), baseline[r.prompt, r.repeat], r.repeat)
            for r in timed
            if r.decoder == cell and (r.prompt, r.repeat) in baseline
        ]
        if any(answer != expected for _, answer, expected, _ in pairs):
            counted.append(_difference(setup, cell, pairs, prompts))
    return counted


Pair = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""A prompt's name, an answer, the baseline's, and the repeat."""


def _difference(
    setup: Setup, cell: str, pairs: Sequence[Pair], prompts: Mapping[str, Prompt]
) -> Difference:
    unequal = [pair for pair in pairs if pair[1] != pair[2]]
    places = [first_difference(answer, expected) or 0 for _, answer, expected, _ in unequal]
    num_tokens = sum(len(expected) for _, _, expected, _ in pairs)
    lost = sum(len(pair[2]) - place for pair, place in zip(unequal, places, strict=True))
    precision, greedy = setup.precision(cell), setup.sampling.greedy
    parted = [] if precision == "invariant" else _examined(setup, precision, unequal, prompts)
    num_wrong = len(unequal) if precision == "invariant" else None
    if precision == "float32" and greedy:
        num_wrong = sum(not divergence.near_tie for divergence in parted)
    judged = {id(divergence): divergence for divergence in parted}.values()
    return Difference(
        cell=cell,
        num_answers=len(unequal),
        num_compared=len(pairs),
        num_wrong=num_wrong,
        example=unequal[0][0],
        num_tokens=num_tokens,
        num_equal=num_tokens - lost,
        places=tuple(places),
        gaps=tuple(d.distance for d in judged if d.by != "length"),
    )


def _examined(
    setup: Setup, precision: str, unequal: Sequence[Pair], prompts: Mapping[str, Prompt]
) -> list[Divergence]:
    """Where each answer parts; repeats of a greedy answer are equal, and looked at once."""
    found: dict[Pair, Divergence] = {}
    parted = []
    for name, answer, expected, repeat in unequal:
        key = (name, answer, expected, 0 if setup.sampling.greedy else repeat)
        if key not in found:
            divergence = examine(
                setup.models.target,
                prompts[name].ids,
                answer,
                expected,
                setup.repeated(repeat),
                precision,
            )
            assert divergence is not None, "these answers differ"
            found[key] = divergence
        parted.append(found[key])
    return parted
