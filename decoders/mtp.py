"""MTP: a model's own layer for multi-token prediction drafts (DeepSeek-V3, arXiv 2412.19437).

The layer was trained with the model and lies in its checkpoint. It reads the target's hidden states
of the text, each joined with the token picked there, and continues from its own states and drafts
(docs/decoders/mtp.md). All drafts of a step are one call; each run of the layer counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.length import Length
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.states import TreeDrafter
from decoders.core.drafting.verification import ExactChain
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, DraftShape


@register("mtp")
@dataclass(frozen=True, kw_only=True)
class MultiTokenPrediction(DraftAndVerify):
    """Draft by the multi-token prediction layer of the checkpoint and verify. Lossless.

    Args:
        k: maximum drafts per step; each is one run of the layer, which was trained for the first.
        verify: `coupled` (the target's own picks, exactly AR's tokens) or `rejection` (drafts are
            drawn, then accepted or rejected: AR's distribution; the same at temperature 0);
            `block` tests drawn drafts jointly.
    """

    k: int = 1
    verify: ExactChain = "coupled"

    needs = ("network",)
    variants = ("mtp",)
    by_default = False

    def __post_init__(self) -> None:
        self.demand(1 <= self.k <= MAX_DRAFTS, "k", f"1 to {MAX_DRAFTS}")

    def drafter(self, request: Request) -> Drafter:
        """Draft from the target's hidden states of the text."""
        draws = self.verification.draws(request.sampling)
        shape = DraftShape(depth=self.k, draws=draws)
        return TreeDrafter(request, "mtp", shape, Length(self.k), branches=False)
