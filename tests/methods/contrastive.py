"""Contrastive decoding: what the target says more than a weak model would, among likely tokens.

Source: Li et al. 2023 (arXiv 2210.15097, section 3), with the weak model as draft model. The
answers follow another distribution than the target's, so the decoder is lossy, and says so.
"""

import math
from dataclasses import dataclass

import torch

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit


@register("contrastive")
@dataclass(frozen=True, kw_only=True)
class Contrastive(Decoder):
    """Take the token with the largest contrast. Lossy, greedy at any temperature."""

    alpha: float = 0.1

    needs = ("draft",)
    lossless = drafts = False

    def steps(self, request: Request) -> Steps:
        assert request.draft is not None
        tokens = request.prompt_ids
        while True:
            expert = (yield request.target.call(tokens, output="logits")).logits
            amateur = (yield request.draft.call(tokens, output="logits")).logits
            assert expert is not None
            assert amateur is not None
            strong, weak = expert[-1].log_softmax(-1), amateur[-1].log_softmax(-1)
            plausible = strong >= strong.max() + math.log(self.alpha)
            tokens = (int(torch.where(plausible, strong - weak, -math.inf).argmax()),)
            yield Emit(tokens=tokens)
