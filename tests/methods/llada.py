"""A masked diffusion model as LLaDA decodes it: the whole answer is masks from the start.

Source: Nie et al. 2025 (arXiv 2502.09992, section 2.4 and appendix B.4): attention is full, blocks
are filled in from left to right, each in `passes` passes that keep the surest predictions
(low-confidence remasking). Nothing can be cached, since each row sees all others.
"""

from dataclasses import dataclass

import torch

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit


@register("my-llada")
@dataclass(frozen=True, kw_only=True)
class LLaDA(Decoder):
    """Fill in blocks of an answer of masks. Lossy."""

    block: int = 4
    passes: int = 2

    target_kind = "masked"
    lossless = drafts = False

    def steps(self, request: Request) -> Steps:
        target, form = request.target, request.target.model.masked
        assert form is not None
        assert form.mask_id is not None
        num_prompt, size = len(request.prompt_ids), request.sampling.max_new_tokens
        text = [*request.prompt_ids, *[form.mask_id] * size]
        everything = torch.ones(len(text), len(text), dtype=torch.bool)
        for first in range(num_prompt, len(text), self.block):
            stop = min(first + self.block, len(text))
            masks, total, num_passes = [*range(first, stop)], stop - first, 0
            while masks:
                result = yield target.call(text, output="draws", read=masks, mask=everything)
                target.truncate(0)
                guesses = zip(result.confidences, masks, result.picks, strict=True)
                count = total // self.passes + (num_passes < total % self.passes)
                for _, place, pick in sorted(guesses, key=lambda each: -each[0])[:count]:
                    text[place] = pick
                    masks.remove(place)
                num_passes += 1
            yield Emit(tokens=tuple(text[first:stop]), passes=num_passes)
