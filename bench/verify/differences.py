"""Whether decoders that promise the baseline's very tokens gave them, and why where they did not.

In greedy float32 runs equality is demanded, and only a first difference that is no near-tie (see
`bench.verify.divergence`) makes a decoder wrong. Half precision and sampling above temperature 0
are reported and not judged here: `bench verify` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.plan.setup import Setup
from bench.records.plan import BASELINE
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.records.status import Difference
from bench.verify.divergence import examine


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
            (r.prompt, r.tokens or (), baseline[r.prompt, r.repeat])
            for r in timed
            if r.decoder == cell and (r.prompt, r.repeat) in baseline
        ]
        unequal = [pair for pair in pairs if pair[1] != pair[2]]
        if unequal:
            counted.append(
                Difference(
                    cell=cell,
                    num_answers=len(unequal),
                    num_compared=len(pairs),
                    num_wrong=_num_wrong(setup, unequal, prompts),
                    example=unequal[0][0],
                )
            )
    return counted


def _num_wrong(
    setup: Setup,
    unequal: Iterable[tuple[str, tuple[int, ...], tuple[int, ...]]],
    prompts: Mapping[str, Prompt],
) -> int | None:
    if setup.config.dtype != "float32" or not setup.sampling.greedy:
        return None
    verdicts: dict[tuple[str, tuple[int, ...], tuple[int, ...]], bool] = {}
    num = 0
    for pair in unequal:  # repeats of a greedy answer are equal: each pair is looked at once
        if pair not in verdicts:
            name, answer, expected = pair
            divergence = examine(
                setup.models.target, prompts[name].ids, answer, expected, setup.sampling, "float32"
            )
            verdicts[pair] = divergence is not None and not divergence.near_tie
        num += verdicts[pair]
    return num
