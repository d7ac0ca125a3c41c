"""Whether decoders that promise the baseline's very tokens gave them, and why where they did not.

In greedy float32 runs equality is demanded, and only a first difference that is no near-tie (see
`bench.lossless.divergence`) makes a decoder wrong. Half precision and sampling above temperature 0
are reported and not judged here: `bench verify` does that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.lossless.divergence import examine
from bench.plan import BASELINE
from bench.prompts import Prompt
from bench.records import SampleRecord
from bench.workbench import Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A cell that claims to be lossless and left the baseline's tokens.

    It did so on `num_answers` of `num_compared` answers, `num_wrong` of which are no near-ties
    (None where that is not judged); `example` is a prompt.
    """

    cell: str
    num_answers: int
    num_compared: int
    num_wrong: int | None
    example: str


def differences(
    bench: Workbench, records: Sequence[SampleRecord], prompts: Mapping[str, Prompt]
) -> list[Difference]:
    """The lossless cells whose timed answers are not the baseline's, with what was found."""
    timed = [r for r in records if r.kind == "timing" and r.error is None and r.tokens is not None]
    baseline = {(r.prompt, r.repeat): r.tokens or () for r in timed if r.decoder == BASELINE}
    found = []
    for cell, arm in bench.arms.items():
        if cell == BASELINE or not (arm.cell.lossless and arm.cell.comparable_to_ar):
            continue
        pairs = [
            (r.prompt, r.tokens or (), baseline[r.prompt, r.repeat])
            for r in timed
            if r.decoder == cell and (r.prompt, r.repeat) in baseline
        ]
        unequal = [pair for pair in pairs if pair[1] != pair[2]]
        if unequal:
            found.append(
                Difference(
                    cell=cell,
                    num_answers=len(unequal),
                    num_compared=len(pairs),
                    num_wrong=_num_wrong(bench, unequal, prompts),
                    example=unequal[0][0],
                )
            )
    return found


def _num_wrong(
    bench: Workbench,
    unequal: Iterable[tuple[str, tuple[int, ...], tuple[int, ...]]],
    prompts: Mapping[str, Prompt],
) -> int | None:
    if bench.config.dtype != "float32" or not bench.sampling.greedy:
        return None
    verdicts: dict[tuple[str, tuple[int, ...], tuple[int, ...]], bool] = {}
    num = 0
    for pair in unequal:  # repeats of a greedy answer are equal: each pair is looked at once
        if pair not in verdicts:
            name, answer, expected = pair
            found = examine(
                bench.models.target, prompts[name].ids, answer, expected, bench.sampling, "float32"
            )
            verdicts[pair] = found is not None and not found.near_tie
        num += verdicts[pair]
    return num


def as_facts(found: Iterable[Difference]) -> list[dict[str, object]]:
    """The differences as JSON data for run.json."""
    return [dataclasses.asdict(difference) for difference in found]
