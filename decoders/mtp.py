"""MTP: a model's own layer for multi-token prediction drafts (DeepSeek-V3, arXiv 2412.19437).

The layer was trained with the model and lies in its checkpoint. It reads the target's hidden states
of the text, each joined with the token picked there, and continues from its own states and drafts
(docs/decoders/mtp.md). All drafts of a step are one call; each run of the layer counts.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, StatesDrafter, Text, draft_tree
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import ExactChain
from decoders.core.model import DraftCall
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, CallResult, DraftShape


@register("mtp")
@dataclass(frozen=True, kw_only=True)
class MultiTokenPrediction(DraftAndVerify):
    """Draft by the multi-token prediction layer of the checkpoint and verify. Lossless.

    Args:
        k: most drafts of a step; each costs one run of the layer, which was trained for the first.
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
        return _LayerDrafter(self, request)


class _LayerDrafter(StatesDrafter):
    """Drafts the chains of one answer."""

    def __init__(self, options: MultiTokenPrediction, request: Request) -> None:
        super().__init__()
        self._request = request
        draws = options.verification.draws(request.sampling)
        self._shape = DraftShape(depth=options.k, nodes=options.k, draws=draws)

    def draft(self, text: Text, most: int) -> Generator[DraftCall, CallResult, DraftTree]:
        """Make a chain after the last token, and draw its drafts if rejection sampling is used."""
        if most < 1:  # the answer's last call
            return DraftTree(text.last)
        new = self.unfed(text)
        return (yield from draft_tree(self._request, "mtp", self._shape, text, new, most))
