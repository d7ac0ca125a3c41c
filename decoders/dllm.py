"""Block diffusion: blocks of masks are filled in over several passes, block after block.

A pass predicts all masks of a block and decides the surest; the others stay masks (low-confidence
remasking of LLaDA, arXiv 2502.09992; confidence thresholds of Fast-dLLM, arXiv 2505.22618). With
attention by block (BD3LM, arXiv 2503.09573; SDAR, arXiv 2510.06303; Fast-dLLM v2, arXiv 2509.26328)
a row sees its whole block and all blocks before it, so a finished block stays in the cache. It is
committed by the first pass of the next block. With full attention (LLaDA; Dream, arXiv 2508.15487)
every row sees all rows, masks up to the end of the budget included, and each pass reads them again.

In a shifted form the row before a token predicts it. The first token of a block then comes from a
row that sees only final tokens, so it is final at once.

Letters: S tokens of a block, N rows of a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.model import Model
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, Emit

_USUAL_BLOCK = 32


@register("dllm")
@dataclass(frozen=True, kw_only=True)
class BlockDiffusion(Decoder):
    """Fill in blocks of masks of a diffusion language model, whose answers have no AR to follow.

    Args:
        block: S, tokens of a block (0: the checkpoint's, or 32 if it names none).
        threshold: confidence from which a pass decides masks, and in any case the surest one.
        passes: passes of a block, which decide equally many masks each (0: by `threshold`).
        attention: the rows that a row sees: `block`, its block and those before it; `full`, all
            rows up to the budget's end; `model`, by block if the checkpoint names a block.
        cache: `exact`: keep finished blocks if attention is by block; `none`: read the whole text
            in every pass; `approximate`: with full attention, keep what precedes a block as the
            block's first pass computed it (the prefix cache of Fast-dLLM).
    """

    block: int = 0
    threshold: float = 0.9
    passes: int = 0
    attention: Literal["model", "block", "full"] = "model"
    cache: Literal["exact", "none", "approximate"] = "exact"

    target_kind = "masked"
    lossless = False
    drafts = False
    by_default = False

    def __post_init__(self) -> None:
        self.demand(0 <= self.block <= MAX_DRAFTS, "block", f"from 0 to {MAX_DRAFTS}")
        self.demand(0 <= self.threshold <= 1, "threshold", "from 0 to 1")
        self.demand(self.passes >= 0, "passes", "1 or above, or 0 (by threshold)")
        if self.passes and self.threshold != type(self).threshold:
            raise ValueError("decoder 'dllm' got passes and threshold; give one of them")
        by_block = self.attention == "block" and self.cache == "approximate"
        self.demand(not by_block, "cache", "exact or none with attention=block")

    def check_models(self, target: Model, draft: Model | None) -> None:
        """Raise `ValueError` without a mask id, or if the checkpoint's block is too long."""
        form = target.masked
        if form is None or form.mask_id is None:
            raise ValueError("the target names no mask token; add mask_token_id to its config.json")
        if form.block > MAX_DRAFTS and not self.block:
            raise ValueError(
                f"the target's block has {form.block} tokens; give dllm:block=N up to {MAX_DRAFTS}"
            )

    def steps(self, request: Request) -> Steps:
        """Fill in block after block, and emit after each pass the tokens that are final."""
        target, form, prompt = request.target, request.target.model.masked, request.prompt_ids
        assert form is not None
        assert form.mask_id is not None
        full = self.attention == "full" or (self.attention == "model" and not form.block)
        size = self.block or form.block or _USUAL_BLOCK
        limit = len(prompt) + request.sampling.max_new_tokens
        text = list(prompt)
        while True:
            first = len(
                text
            )  # the block: [first, stop), of which [grid, first) is the prompt's end
            grid = first if full else first // size * size
            stop = min(first + size, limit) if full else grid + size
            seen = limit if full else stop
            text += [form.mask_id] * (stop - first)
            kept = 0 if self.cache == "none" or (full and self.cache == "exact") else grid
            if full:
                target.truncate(0)
            masked, decided, emitted, num_passes = {*range(first, stop)}, {}, first, 0
            # in a shifted form, only the block's first pass reads the row before the block
            settled = {grid} if form.shifted and (not full or kept) else set()
            num_open = len(masked - settled)
            while masked:
                start, places = target.length, sorted(masked)
                result = yield target.call(
                    text[start:] + [form.mask_id] * (seen - stop),
                    output="draws",
                    read=[place - form.shifted - start for place in places],
                    mask=_visible(range(start, seen), seen if full else size),
                )
                target.truncate(kept)
                guesses = zip(result.confidences, places, result.picks, strict=True)
                free = sorted((-sure, place) for sure, place, _ in guesses if place not in settled)
                count = sum(-sure >= self.threshold for sure, _ in free) or 1
                if self.passes:
                    count = num_open // self.passes + (num_passes < num_open % self.passes)
                num_passes += 1
                picks = dict(zip(places, result.picks, strict=True))
                for place in (*(settled & masked), *(place for _, place in free[:count])):
                    text[place] = picks[place]
                    decided[place] = 0 if place in settled else num_passes
                    masked.remove(place)
                final = min(masked, default=stop)
                yield Emit(
                    tokens=tuple(text[emitted:final]),
                    passes=0 if masked else num_passes,
                    decided=tuple(decided[place] for place in range(emitted, final)),
                )
                emitted = final


def _visible(rows: range, size: int) -> Tensor:
    """Let each of N rows see its block of `size` positions and those before it: ``[N, N]``."""
    block = torch.arange(rows.start, rows.stop) // size
    return block <= block[:, None]
