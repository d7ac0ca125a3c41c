"""Block diffusion: blocks of masks are filled in over several passes, block after block.

A pass predicts all masks of a block and fills those of highest confidence (low-confidence
remasking of LLaDA, arXiv 2502.09992; confidence thresholds of Fast-dLLM, arXiv 2505.22618). With
attention by block (BD3LM, arXiv 2503.09573; SDAR, arXiv 2510.06303; Fast-dLLM v2, arXiv 2509.26328)
a row sees its whole block and all blocks before it, so a finished block stays in the cache. It is
committed by the first pass of the next block. With full attention (LLaDA; Dream, arXiv 2508.15487)
every row sees all rows, masks up to the end of the budget included, and each pass reads all again.

In a shifted form the row before a token predicts it. The first token of a block then comes from a
row that sees only final tokens, so it is final at once.

Letters: S tokens of a block, N rows of a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.model import Model
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, Emit


@register("dllm")
@dataclass(frozen=True, kw_only=True)
class BlockDiffusion(Decoder):
    """Fill in blocks of masks of a diffusion language model. There is no AR to compare with.

    Args:
        block: S, tokens of a block (0: the checkpoint's, or 32 if it names none).
        threshold: confidence from which a pass fills a mask; the most confident is always filled.
        passes: passes of a block, each of which fills equally many masks (0: by `threshold`).
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

    def check_models(self, target: Model, draft: Model | None) -> None:
        """Raise `ValueError` if the mask id is missing or options do not fit the checkpoint."""
        mask_id, size, full, _ = self._form(target)
        if mask_id < 0:
            raise ValueError("the target names no mask token; add mask_token_id to its config.json")
        allowed = f"1 to {MAX_DRAFTS}, as the target's block has {size} tokens"
        self.demand(size <= MAX_DRAFTS, "block", allowed)
        by_block = self.cache == "approximate" and not full
        self.demand(not by_block, "cache", "exact or none, as attention is by block")

    def _form(self, target: Model) -> tuple[int, int, bool, int]:
        """Return the mask id (-1: unknown), S, True for full attention, and the shift of rows."""
        form = target.masked
        assert form is not None
        full = self.attention == "full" or (self.attention == "model" and not form.block)
        mask_id = -1 if form.mask_id is None else form.mask_id
        return mask_id, self.block or form.block or 32, full, int(form.shifted)

    def steps(self, request: Request) -> Steps:
        """Fill in block after block, and emit after each pass the tokens that are final."""
        target, text = request.target, list(request.prompt_ids)
        mask_id, size, full, shift = self._form(target.model)
        limit = len(text) + request.sampling.max_new_tokens
        while True:
            first = len(text)  # of the block [grid, stop), places before `first` are the prompt's
            grid = first if full else first // size * size
            stop = min(first + size, limit) if full else grid + size
            seen = limit if full else stop
            text += [mask_id] * (stop - first)
            kept = 0 if self.cache == "none" or (full and self.cache == "exact") else grid
            if full:
                target.truncate(0)
            masked, decided, emitted, num_passes = {*range(first, stop)}, {}, first, 0
            # in a shifted form, only the block's first pass reads the row before the block
            settled = {grid} if shift and (not full or kept) else set()
            num_open = len(masked - settled)
            while masked:
                start, places = target.length, sorted(masked)
                # each row sees its block (or all rows) and the blocks before it
                block = torch.arange(start, seen) // (seen if full else size)
                result = yield target.call(
                    text[start:] + [mask_id] * (seen - stop),
                    output="draws",
                    read=[place - shift - start for place in places],
                    mask=block <= block[:, None],
                )
                target.truncate(kept)
                guesses = zip(places, result.picks, result.confidences, strict=True)
                ranked = sorted(guesses, key=lambda guess: (guess[0] not in settled, -guess[2]))
                confidences = [each for place, _, each in ranked if place not in settled]
                count = sum(each >= self.threshold for each in confidences) or 1
                if self.passes:
                    count = num_open // self.passes + (num_passes < num_open % self.passes)
                num_passes += 1
                for place, pick, _ in ranked[: count + len(settled & masked)]:
                    text[place], decided[place] = pick, 0 if place in settled else num_passes
                    masked.remove(place)
                final = min(masked, default=stop)
                yield Emit(
                    tokens=tuple(text[emitted:final]),
                    passes=0 if masked else num_passes,
                    decided=tuple(decided[place] for place in range(emitted, final)),
                )
                emitted = final
