"""Draft-model speculative decoding (Leviathan et al. 2023, arXiv 2211.17192, and Chen et al. 2023).

A step: the draft model proposes up to K tokens one by one; one target call over the last committed
token and the drafts verifies all of them; the accepted drafts are emitted, then one token of the
target's own (recovered or bonus). Lossless: `rejection` and `block` keep the target's distribution;
`coupled` accepts drafts that are the target's own picks for the same uniforms, and emits exactly
AR's tokens. `block` tests the drafts jointly and accepts at least as many (arXiv 2403.10444).
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Need, Request
from decoders.core.drafting.chain import CascadeDrafter, ModelDrafter
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.length import AUTO, Length, NumDrafts
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.verification import ExactChain
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS


@register("spec")
@dataclass(frozen=True, kw_only=True)
class Speculative(DraftAndVerify):
    """Draft K tokens with a small model, verify them in one target call. Lossless.

    Args:
        k: maximum number of drafts per step (fewer if the budget ends sooner); `auto`: as many as
            pay by their probabilities in the draft model and the two costs.
        row_cost: with ``k=auto``, cost of a draft's row, in target calls of one row.
        draft_cost: with ``k=auto``, cost of a call of the draft model, likewise.
        stop: a draft below this probability in the draft model is the last of its step; 0: draft
            k tokens. That draft is verified like the others: dropping a draft because of its
            value would change the distribution of answers.
        verify: acceptance rule above temperature 0 (greedy: all accept the target's argmax).
        cascade: name of a model (--models) that drafts for the draft model; empty: none.
        cascade_k: maximum number of tokens that this model drafts for a call of the draft model.
    """

    k: NumDrafts = 4
    row_cost: float = 0.02
    draft_cost: float = 0.2
    stop: float = 0.0
    verify: ExactChain = "rejection"
    cascade: str = ""
    cascade_k: int = 2

    @property
    def needs(self) -> tuple[Need, ...]:
        """A draft model, and the model of a cascade."""
        return ("draft", f"model:{self.cascade}") if self.cascade else ("draft",)

    def __post_init__(self) -> None:
        fits = self.k == AUTO or 1 <= self.k <= MAX_DRAFTS
        self.demand(fits, "k", f"1 to {MAX_DRAFTS}, or auto")
        self.demand_read("k", {AUTO: ("row_cost", "draft_cost")})
        self.demand(self.row_cost >= 0, "row_cost", "0 or above")
        self.demand(self.draft_cost >= 0, "draft_cost", "0 or above")
        self.demand(0 <= self.stop < 1, "stop", "0 (off) or above, and below 1")
        self.demand(not (self.cascade and self.stop), "stop", "0 (off) with a cascade")
        self.demand(not (self.cascade and self.k == AUTO), "k", "a number with a cascade")
        self.demand(self.cascade_k >= 1, "cascade_k", "1 or above")
        fits = bool(self.cascade) or self.cascade_k == type(self).cascade_k
        self.demand(fits, "cascade_k", "left out without a cascade")

    def drafter(self, request: Request) -> Drafter:
        """Draft with the draft model, or with a cascade."""
        length = Length(self.k, self.row_cost, self.draft_cost)
        if self.cascade:
            smaller = request.models[self.cascade]
            return CascadeDrafter(request, self.verification, length.limit, smaller, self.cascade_k)
        return ModelDrafter(request, self.verification, length, self.stop)
