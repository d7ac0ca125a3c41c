"""Whether decoders that promise the baseline's very tokens gave them, and why where they did not.

In greedy float32 runs equality is demanded, and only a first difference that is no near-tie (see
`bench.verify.divergence`) makes a decoder wrong. Half precision and sampling above temperature 0
are reported and not judged here: `bench verify` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.plan.setup import Setup
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.records.status import Difference
from bench.stats.unequal import Pair, compare_with_baseline
from bench.verify.divergence import examine


def differences(
    setup: Setup, records: Sequence[SampleRecord], prompts: Mapping[str, Prompt]
) -> list[Difference]:
    """The lossless cells whose timed answers are not the baseline's, with what was found."""
    cells = [arm.cell for arm in setup.arms.values()]
    return [
        Difference(
            cell=each.cell,
            num_answers=len(each.unequal),
            num_compared=each.num,
            num_wrong=_num_wrong(setup, each.unequal, prompts),
            example=each.unequal[0][0],
        )
        for each in compare_with_baseline(cells, records)
        if each.unequal
    ]


def _num_wrong(setup: Setup, unequal: Iterable[Pair], prompts: Mapping[str, Prompt]) -> int | None:
    if setup.config.dtype != "float32" or not setup.sampling.greedy:
        return None
    verdicts: dict[Pair, bool] = {}
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
