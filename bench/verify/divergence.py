"""Find the first difference of two answers, and test whether rounding explains the difference.

Kernels of different shapes round differently, so a token may change where two tokens are about as
likely. At the first difference, the target runs once more, by itself, on the common beginning. The
distance from a tie is the gap between the two tokens' logits (greedy), or the shift of the CDF by
which u would pick the other token (sampled).

A difference within the dtype's margin is a *near-tie*; a larger one is *wrong*. One margin m in
logits serves both modes: logits that move by m/2 each way move a border of the CDF by at most
m / (4 T). Rounding may also move a top-p or top-k cut, so cuts moved by the margin are tried too.
Margins hold where the largest logit is 2 or more, and shrink with smaller logits.

For decoders that guarantee the baseline's exact tokens, any difference is wrong in row-invariant
numerics, and any difference but a near-tie in greedy float32 runs. In sampled float32 runs, a
difference beyond `BLUNDER` margins is wrong, and a smaller one beyond a margin is not verified. In
half precision, the run's own rounding decides (`bench.verify.floor`).

Letters: V vocabulary, T temperature, u the uniform of a position.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.plan.setup import Setup
from bench.records.plan import Difference, Floor
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.stats.answers import Compared, Pair, compare_with_baseline, first_difference
from bench.verify.floor import Likeliest, bound, exceeds_rounding, last_place
from decoders.core.engine.forms import apply_law
from decoders.core.engine.models import Models
from decoders.core.model import Model
from decoders.core.sampling import Uniforms, warp
from decoders.core.types import Sampling

MARGINS = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.25, "invariant": 0.0}
"""Maximum gap of two tied logits, by the model's dtype; none in row-invariant numerics."""
BLUNDER = 4
"""Number of margins beyond which rounding explains no difference of sampled float32 answers."""
_FULL_MARGIN = 2.0
"""Value of the largest logit from which on a margin holds in full."""
Answered = tuple[str, tuple[int, ...]]
"""(prompt name, answer's tokens)."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Describe two answers' first difference: after `num_equal` tokens, `distance` from a tie.

    `by` is the kind of distance: between logits (``logits``), from u to the other token's interval
    of the CDF (``edge``), or infinite because one answer is a prefix of the other (``length``).
    `places` is the distance of logits in units of the dtype's last place.
    """

    num_equal: int
    by: Literal["logits", "edge", "length"]
    distance: float
    margin: float
    places: float = math.inf

    @property
    def near_tie(self) -> bool:
        """Return whether rounding explains the difference."""
        return self.margin > 0 and self.distance <= self.margin


def differences(
    setup: Setup,
    records: Sequence[SampleRecord],
    prompts: Mapping[str, Prompt],
    floor: Floor | None = None,
) -> list[Difference]:
    """Return the lossless cells whose timed answers differ from the baseline's, with evidence.

    Args:
        setup: the run's models and cells.
        records: the run's answers.
        prompts: the run's prompts by name.
        floor: judges cells that rounding may excuse; without a floor, these are not verified.
    """
    result = []
    whole: dict[Answered, Likeliest] = {}
    for each in compare_with_baseline([arm.cell for arm in setup.arms.values()], records):
        if not each.unequal:
            continue
        precision = setup.precision(each.cell)
        invariant, greedy = precision == "invariant", setup.sampling.greedy
        parted = [] if invariant else _examined(setup, precision, each.unequal, prompts)
        distinct = {id(divergence): divergence for divergence in parted}.values()
        within = [d for d in distinct if d.by != "length"]
        places = [d.places for d in within]
        num_wrong: int | None = None
        if invariant:
            num_wrong = len(each.unequal)
        elif precision == "float32":
            num_wrong = sum(d.distance > (1 if greedy else BLUNDER) * d.margin for d in parted)
            if not num_wrong and not all(divergence.near_tie for divergence in parted):
                num_wrong = None
        elif floor is not None:
            for pair in each.pairs if greedy else ():
                if pair[:2] not in whole:
                    target, ids = setup.models.target, prompts[pair[0]].ids
                    whole[pair[:2]] = Likeliest.of(target, ids, pair[1], precision, setup.sampling)
            places += [whole[pair[:2]].places for pair in each.unequal if pair[:2] in whole]
            num_wrong = _beyond_rounding(each, parted, whole, floor)
        difference = each.difference(num_wrong, tuple(d.distance for d in within))
        result.append(dataclasses.replace(difference, places_off=max(places, default=None)))
    return result


def _beyond_rounding(
    each: Compared, parted: Sequence[Divergence], whole: Mapping[Answered, Likeliest], floor: Floor
) -> int | None:
    """Count the answers beyond the run's rounding, or return None if no count is verified."""
    limit = bound(floor)
    nowhere = Likeliest(0, 0, 0.0)
    num_wrong = sum(
        max(divergence.places, whole.get(pair[:2], nowhere).places) > limit
        for divergence, pair in zip(parted, each.unequal, strict=True)
    )
    if num_wrong:
        return num_wrong
    if read := [whole[answered] for answered in {pair[:2] for pair in each.pairs} & whole.keys()]:
        num, num_tokens = sum(r.num_other for r in read), sum(r.num_tokens for r in read)
    else:
        places = [(first_difference(pair[1], pair[2]), len(pair[2])) for pair in each.pairs]
        num = len(each.unequal)
        num_tokens = sum(length if place is None else place + 1 for place, length in places)
    return None if exceeds_rounding(floor, num, num_tokens) else 0


def _examined(
    setup: Setup, precision: str, unequal: Sequence[Pair], prompts: Mapping[str, Prompt]
) -> list[Divergence]:
    """Examine each answer at its first difference, and equal greedy repeats only once."""
    divergences: dict[Pair, Divergence] = {}
    parted = []
    for name, answer, expected, repeat in unequal:
        key = (name, answer, expected, 0 if setup.sampling.greedy else repeat)
        if key not in divergences:
            target, sampling = setup.models.target, setup.repeated(repeat)
            divergence = examine(target, prompts[name].ids, answer, expected, sampling, precision)
            assert divergence is not None, "these answers differ"
            divergences[key] = divergence
        parted.append(divergences[key])
    return parted


def edge_margin(margin: float, temperature: float) -> float:
    """Return the largest shift of a border of the CDF when logits round by `margin`."""
    return margin / (4 * temperature)


def examine(
    target: Model,
    prompt: Sequence[int],
    answer: Sequence[int],
    expected: Sequence[int],
    sampling: Sampling,
    precision: str,
) -> Divergence | None:
    """Return the first difference of an answer from the baseline's, or None if both are equal.

    The target runs one forward pass on the prompt and the common beginning.

    Args:
        target: starts with an empty KV cache, whose allocation grows if it must.
        prompt: ids that both answers continue.
        answer: ids of the decoder's answer.
        expected: ids of the baseline's answer.
        sampling: of both answers, with the seed of their repeat.
        precision: key of `MARGINS`.
    """
    index = first_difference(answer, expected)
    if index is None:
        return None
    margin = MARGINS[precision]
    if index == min(len(answer), len(expected)):  # both stopped by different rules
        return Divergence(index, "length", math.inf, margin)
    cold = _cold_logits(target, (*prompt, *expected[:index]))
    (logits,) = apply_law(cold, [expected[:index]], sampling)
    magnitude = float(torch.where(logits.isfinite(), logits, 0.0).abs().max())
    margin *= min(1.0, magnitude / _FULL_MARGIN)
    unit = float(last_place(logits[None], precision))
    if sampling.greedy:
        gap = float((logits[expected[index]] - logits[answer[index]]).abs())
        return Divergence(index, "logits", gap, margin, gap / unit)
    u = Uniforms(sampling.seed, prompt).at("draw", index)
    distance = math.inf  # from u to the interval of the CDF that picks the answer's token
    for distribution in _distributions(logits, sampling, margin):
        high = float(distribution[: answer[index] + 1].sum(dtype=torch.float64))
        low = high - float(distribution[answer[index]])
        distance = min(distance, max(0.0, low - u, u - high))
    edge, as_gap = edge_margin(margin, sampling.temperature), 4 * sampling.temperature * distance
    return Divergence(index, "edge", distance, edge, as_gap / unit)


def _cold_logits(target: Model, ids: Sequence[int]) -> Tensor:
    """Return float32 logits ``[1, V]`` after `ids`, by one pass with an empty KV cache."""
    Models(target=target).ensure(1, len(ids))
    session = target.open()
    try:
        return target.forward([session.call(ids, output="logits")])
    finally:
        target.close(session)


def _distributions(logits: Tensor, sampling: Sampling, margin: float) -> list[Tensor]:
    """Return the distribution ``[V]``, and variants with top-k or top-p cuts moved by a margin."""
    edge = edge_margin(margin, sampling.temperature)
    cuts = {(sampling.top_k, sampling.top_p)}
    if sampling.top_p < 1:
        cuts |= {(k, min(1.0, sampling.top_p + edge)) for k, _ in cuts}
        cuts |= {(k, max(1e-6, sampling.top_p - edge)) for k, _ in cuts}
    if 0 < sampling.top_k < len(logits):
        border = logits.topk(sampling.top_k).values[-1]
        for moved in (border - margin, border + margin):
            num_kept = max(1, int((logits >= moved).sum()))
            cuts |= {(num_kept, p) for _, p in cuts}
    return [
        warp(logits[None], dataclasses.replace(sampling, top_k=k, top_p=p))[0]
        for k, p in sorted(cuts)
    ]
