"""Block diffusion as BD3LM does it: finished blocks stay in the cache, a block sees those before.

Source: Arriola et al. 2025 (arXiv 2503.09573); the surest masks first, and all above a threshold:
Fast-dLLM (arXiv 2505.22618). For targets whose row i predicts token i.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit


@register("my-bd3lm")
@dataclass(frozen=True, kw_only=True)
class BD3LM(Decoder):
    """Fill in blocks of masks, whose grid begins with the prompt. Lossy."""

    block: int = 4
    threshold: float = 0.9

    target_kind = "masked"
    lossless = drafts = False

    def steps(self, request: Request) -> Steps:
        target, text = request.target, [*request.prompt_ids]
        form: Any = target.model.masked
        while True:
            first = len(text)
            start = first // self.block * self.block
            text += [form.mask_id] * (start + self.block - first)
            masks, num_passes = [*range(first, len(text))], 0
            while self.is_open(masks, num_passes):
                base = target.length  # the block before is fed once more: now it is final
                result = yield target.call(
                    text[base:],
                    output="draws",
                    read=[place - base for place in masks],
                    mask=self.mask(base, len(text)),
                )
                target.truncate(start)
                guesses = [*zip(result.confidences, masks, result.picks, strict=True)]
                sure = [each for each in guesses if each[0] >= self.threshold]
                for _, place, pick in sure or [max(guesses, key=lambda each: each[0])]:
                    text[place] = pick
                    masks.remove(place)
                num_passes += 1
            yield Emit(tokens=tuple(text[first:]), passes=num_passes)

    def is_open(self, masks: list[int], num_passes: int) -> bool:
        return bool(masks)

    def mask(self, base: int, stop: int) -> Tensor:
        """Let each row see its block and those before it."""
        block = torch.arange(base, stop) // self.block
        return block <= block[:, None]
