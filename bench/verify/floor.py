"""Measure a run's own rounding: how far the shape of a call moves the logits of AR's answers.

In half precision a right decoder leaves AR's tokens where rounding in calls of other shapes decides
a tie. The size of rounding depends on the model and the machine, so the run measures it: the target
reads AR's own answers again, in calls of one row (as AR), of `rows` new rows (as a verifying call),
and of many rows (as for a prompt). Up to the first difference, AR in calls of `rows` rows reads the
same text: this reading is the arm ``ar@rowsN``.

At each position the readings give different gaps between the two likeliest logits. The largest
change is the floor's `moved`, in units of the last place of the dtype at the row's largest logit,
so that logits of any scale are judged alike.

A first difference is beyond rounding if the target is farther from a tie there than `SLACK` times
the largest change, which counts as one unit at least: so much can rounding two logits move a gap.
A greedy decoder must also be as near to the likeliest token at every later position,
whatever its text: its whole answer is read in calls of many rows. If nothing is beyond rounding, a
decoder may still take the wrong side of ties too often. The rate of its tokens that are not the
likeliest (sampled: of its first differences) is compared with the rate of the floor's flips by an
exact conditional test of two rates, at the level `LEVEL`, against shapes that round `RATIO` times
as often as the floor's.

Letters: T tokens of an answer, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Self

import torch
from scipy import stats
from torch import Tensor

from bench.plan.setup import Setup
from bench.records.plan import BASELINE, Floor
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.stats.answers import compare_with_baseline
from decoders.core.engine.forms import apply_law
from decoders.core.engine.models import Models
from decoders.core.model import Model
from decoders.core.sampling import Uniforms, pick, warp
from decoders.core.types import Sampling

SLACK = 2.0
RATIO = 2.0
LEVEL = 1e-4
MAX_TOKENS = 4096
"""Number of tokens of AR's answers to read (or a few more), which bounds a floor's time."""
_MANY_ROWS = 64
_BITS = {"bfloat16": 7, "float16": 10, "float32": 23}
"""Bits of the mantissa after the binary point."""


def last_place(logits: Tensor, precision: str) -> Tensor:
    """Return the unit of the last place at the largest logit of each row: ``[R, V]`` -> ``[R]``."""
    magnitude = torch.where(logits.isfinite(), logits, 0.0).abs().amax(-1)
    exponent = magnitude.clamp_min(torch.finfo(torch.float32).tiny).log2().floor()
    return torch.exp2(exponent - _BITS.get(precision, _BITS["float32"]))


def measure_floor(
    setup: Setup, records: Sequence[SampleRecord], prompts: Mapping[str, Prompt]
) -> Floor | None:
    """Measure a run's rounding, if a cell that rounding may excuse deviates from AR's tokens."""
    compared = compare_with_baseline([arm.cell for arm in setup.arms.values()], records)
    parted = [
        each.cell
        for each in compared
        if each.unequal and setup.precision(each.cell) in ("bfloat16", "float16")
    ]
    if not parted:
        return None
    rows = _rows(setup, parted, records)
    results, left = list[tuple[int, tuple[int, int], float]](), MAX_TOKENS
    for record in records:
        timed = record.kind == "timing" and record.decoder == BASELINE and record.repeat == 0
        if timed and record.tokens and left > 0:
            left -= len(record.tokens)
            prompt = prompts[record.prompt]
            flips, moved = _reread(setup, parted[0], rows, prompt, record.tokens)
            results.append((len(record.tokens), flips, moved))
    return Floor(
        rows=rows,
        num_answers=len(results),
        num_same=sum(not flips for _, (flips, _), _ in results),
        num_tokens=sum(length for length, _, _ in results),
        num_flips=max(sum(flips[shape] for _, flips, _ in results) for shape in range(2)),
        moved=max((moved for _, _, moved in results), default=0.0),
    )


def bound(floor: Floor) -> float:
    """Return the largest distance from a tie, in last places, that rounding explains."""
    return SLACK * max(1.0, floor.moved)


def exceeds_rounding(floor: Floor, num: int, num_tokens: int) -> bool:
    """Return whether `num` differences in `num_tokens` tokens are more than rounding makes."""
    # given the sum of both, a cell's differences are binomial
    seen = RATIO * num_tokens
    share = seen / max(1.0, seen + floor.num_tokens)
    return num > 0 and float(stats.binom.sf(num - 1, num + floor.num_flips, share)) < LEVEL


@dataclass(frozen=True, slots=True)
class Likeliest:
    """Measure how near the tokens of a greedy answer are to the target's likeliest tokens.

    `num_other` of `num_tokens` tokens are not the likeliest; the farthest is `places` last places
    below.
    """

    num_tokens: int
    num_other: int
    places: float

    @classmethod
    def of(
        cls,
        target: Model,
        prompt: Sequence[int],
        answer: Sequence[int],
        precision: str,
        sampling: Sampling,
    ) -> Self:
        """Read an answer in calls of many rows.

        Args:
            target: the model that judges, whose cache grows if it must.
            prompt: ids before the answer.
            answer: ids of a greedy answer.
            precision: dtype whose last places are counted.
            sampling: the answer's, whose law applies to the logits.
        """
        num_other, places, at = 0, 0.0, 0
        models = Models(target=target)
        models.ensure(1, len(prompt) + len(answer))
        with models.uncompiled():
            for logits in read(target, prompt, answer, _MANY_ROWS, sampling):
                tokens = torch.tensor(answer[at : at + len(logits)], device=logits.device)
                gaps = logits.amax(-1) - logits.gather(-1, tokens[:, None])[:, 0]
                num_other += int((logits.argmax(-1) != tokens).sum())
                places = max(places, float((gaps / last_place(logits, precision)).max()))
                at += len(logits)
        return cls(len(answer), num_other, places)


def _rows(setup: Setup, parted: Sequence[str], records: Sequence[SampleRecord]) -> int:
    """Return the rows of an arm of AR, or of the median later call of the `parted` cells."""
    arms = [arm.cell for arm in setup.arms.values() if arm.cell.name == BASELINE]
    if (rows := max(int(cell.options.get("rows", 1)) for cell in arms)) > 1:
        return rows
    usual = []
    for cell in parted:
        steps = [r.steps for r in records if r.decoder == cell and r.kind == "timing" and r.steps]
        calls = sum(sum(each.target_calls[1:]) for each in steps)
        usual.append(sum(sum(each.target_rows[1:]) for each in steps) / max(1, calls))
    return min(_MANY_ROWS, max(2, round(median(usual))))


def _reread(
    setup: Setup, cell: str, rows: int, prompt: Prompt, answer: Sequence[int]
) -> tuple[tuple[int, int], float]:
    """Return the flips in calls of `rows` rows and of many, and the largest change of a gap.

    A flip is a position where such calls of a cell's target pick another token than AR did. The
    change is in last places.
    """
    target, precision = setup.arm(cell).models.target, setup.precision(cell)
    sampling = setup.repeated(0)
    models = Models(target=target)
    models.ensure(1, len(prompt.ids) + len(answer))
    pairs, units, gaps, flips = list[Tensor](), list[Tensor](), list[Tensor](), [0, 0, 0]
    for shape, num_rows in enumerate((1, rows, _MANY_ROWS)):
        at, parts = 0, []
        with models.uncompiled() if num_rows == _MANY_ROWS else nullcontext():
            for logits in read(target, prompt.ids, answer, num_rows, sampling):
                here = slice(at, at := at + len(logits))
                if shape == 0:
                    pairs += logits.topk(2).indices
                    units.append(last_place(logits, precision))
                picks = _picks(logits, sampling, prompt.ids, here.start)
                flips[shape] += sum(map(int.__ne__, picks, answer[here]))
                top = logits.gather(-1, torch.stack(pairs[here]))
                parts.append(top[:, 0] - top[:, 1])
        gaps.append(torch.cat(parts))
    of_all = torch.stack(gaps)
    moved = (of_all.amax(0) - of_all.amin(0)) / torch.cat(units)
    return (flips[1], flips[2]), float(moved.max())


def read(
    target: Model, prompt: Sequence[int], answer: Sequence[int], rows: int, sampling: Sampling
) -> Iterator[Tensor]:
    """Yield float32 logits ``[R, V]`` that precede an answer's tokens, call by call.

    Args:
        target: has room in its cache for prompt and answer.
        prompt: ids, read by the first call alone, which gives one row.
        answer: ids, all but the last of which are fed.
        rows: new rows of every later call (the last may have fewer).
        sampling: its law applies to the logits.
    """
    session = target.open()
    try:
        yield apply_law(target.forward([session.call(prompt, output="logits")]), [()], sampling)
        for start in range(0, len(answer) - 1, rows):
            fed = answer[start : min(start + rows, len(answer) - 1)]
            call = session.call(fed, output="logits", read=range(len(fed)))
            before = (answer[: start + row + 1] for row in range(len(fed)))
            yield apply_law(target.forward([call]), before, sampling)
    finally:
        target.close(session)


def _picks(logits: Tensor, sampling: Sampling, prompt: Sequence[int], first: int) -> Sequence[int]:
    """Return the tokens that AR picks from logits ``[R, V]`` of output positions from `first`."""
    if sampling.greedy:
        return [int(token) for token in logits.argmax(-1)]
    uniforms = Uniforms(sampling.seed, prompt)
    u = [uniforms.at("draw", first + row) for row in range(len(logits))]
    of_rows = torch.tensor(u, dtype=torch.float64, device=logits.device)
    return [int(token) for token in pick(warp(logits, sampling), of_rows)]
