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
from decoders.core.drafting.chain import ModelDrafter
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.verification import ExactChain
from decoders.core.registry import register


@register("spec")
@dataclass(frozen=True, kw_only=True)
class Speculative(DraftAndVerify):
    """Draft K tokens with a small model, verify them in one target call. Lossless.

    Args:
        k: most tokens drafted per step (fewer if the budget ends sooner).
        stop: a draft below this probability in the draft model is the last of its step; 0: draft
            k tokens. That draft is verified like the others: dropping a draft because of its
            value would change the distribution of answers.
        verify: acceptance rule above temperature 0 (greedy: all accept the target's argmax).
        cascade: name of a model (--models) that drafts for the draft model; empty: none.
        cascade_k: most tokens that this model drafts for a call of the draft model.
        cost: cost of a draft in verifying calls: each step has the number of drafts, up to k, with
            the most expected tokens per time (`drafting.pace`); 0: always k.
    """

    k: int = 4
    stop: float = 0.0
    verify: ExactChain = "rejection"
    cascade: str = ""
    cascade_k: int = 2
    cost: float = 0.0

    @property
    def needs(self) -> tuple[Need, ...]:
        """A draft model, and the model of a cascade."""
        return ("draft", f"model:{self.cascade}") if self.cascade else ("draft",)

    def __post_init__(self) -> None:
        self.demand(self.k >= 1, "k", "1 or above")
        self.demand(0 <= self.stop < 1, "stop", "0 (off) or above, and below 1")
        self.demand(not (self.cascade and self.stop), "stop", "0 (off) with a cascade")
        self.demand(self.cascade_k >= 1, "cascade_k", "1 or above")
        self.demand(self.cost >= 0, "cost", "0 (off) or above")

    def drafter(self, request: Request) -> Drafter:
        """Draft with the draft model, or with a cascade."""
        drafter: Drafter = ModelDrafter(request, self.verification, self.k, self.stop)
        if self.cascade:
            from decoders.core.drafting.cascade import CascadeDrafter

            smaller = request.models[self.cascade]
            drafter = CascadeDrafter(request, self.verification, self.k, smaller, self.cascade_k)
        if self.cost:
            from decoders.core.drafting.pace import Paced

            drafter = Paced(drafter, self.k, self.cost)
        return drafter
