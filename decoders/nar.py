"""Decode non-autoregressively: a block per call, each position by itself, unverified.

One call predicts a whole block. The first token is the target's own. Every later token comes from
its slot's distribution, independently of other tokens, so pieces of different answers mix and
tokens repeat (Gu et al. 2018, arXiv 1711.02281). The next block's call commits the last block. This
is refinement (`idlm`) with one pass, and the honest lower end of quality against speed: lossy.

Letters: B tokens of a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.mask_slots import block_call, mask_slots
from decoders.core.registry import register
from decoders.core.types import MASKED, Emit


@register("nar")
@dataclass(frozen=True, kw_only=True)
class NonAutoregressive(Decoder):
    """Predict a block at once and emit it unverified. Lossy.

    Args:
        block: B, tokens of a block.
        length: end of an answer: `eos`, the first stop token among the predictions; `predicted`,
            the position where a stop token most likely comes first, by the distributions of all
            positions together; `oracle`, the end of AR's answer, which is generated first (an
            upper bound of quality whose speed means nothing).
        picks: `law` draws with the run's sampling settings (the likeliest at temperature 0);
            `argmax` always takes the likeliest token.
        adapter: name of the adapter, see ``--adapter``.
    """

    block: int = 16
    length: Literal["eos", "predicted", "oracle"] = "eos"
    picks: Literal["law", "argmax"] = "law"
    adapter: str = "refine"

    needs = ("adapter",)
    variants = ("refine",)
    lossless = False

    def __post_init__(self) -> None:
        self.demand(self.block >= 1, "block", "1 or above")

    def steps(self, request: Request) -> Steps:
        """Predict one block per call."""
        target, sampling = request.target, request.sampling
        pending: tuple[int, ...] = request.prompt_ids
        left, stop = sampling.max_new_tokens, None
        if self.length == "oracle":  # AR's answer decides the length and has the stop token
            result = yield target.call(pending)
            yield Emit()  # the next calls count as decoding, not as prefill
            length = 1
            while length < left and result.picks[0] not in sampling.stop_ids:
                result = yield target.call(result.picks)
                length += 1
            target.truncate(len(pending) - 1)
            left, last, pending = length, result.picks[0], pending[-1:]
            stop = last if last in sampling.stop_ids else None
        by_argmax = sampling.greedy or self.picks == "argmax"
        while True:
            size = min(self.block, left)
            slots = mask_slots(
                self.adapter,
                [MASKED] * size,
                anchors=pending[-1:],
                output="argmax" if by_argmax else "draws",
                read=size - 1,
                barred=frozenset() if self.length == "eos" else sampling.stop_ids,
            )
            result = yield block_call(target, pending, slots)
            pending = (*result.picks, *result.slot_picks)
            if self.length == "predicted" and result.slot_barred:
                # logs of the chances that the first stop is here, and that there was none so far
                scores, survival = list[float](), 0.0
                for chance in result.slot_barred:
                    scores.append(survival + math.log(max(chance, 1e-30)))
                    survival += math.log(max(1 - chance, 1e-30))
                best = max(range(len(scores)), key=scores.__getitem__)
                if survival < scores[best]:
                    pending = (*pending[: best + 1], min(sampling.stop_ids))
            elif stop is not None and size == left:
                pending = (*pending[:-1], stop)
            decided = (0, *[1] * (len(pending) - 1))  # the first token is the target's
            yield Emit(tokens=pending, passes=1, decided=decided)
            left -= len(pending)
