"""EAGLE (Li et al. 2024, arXiv 2401.15077): a layer on the target's hidden states drafts a tree.

The draft layer reads the target's hidden state at each position of the text, joined with the token
picked there. Then it continues from its own states: like a draft model, it drafts one token after
another and has its own cache, but the target's head computes its logits. The likeliest paths are
extended, and the likeliest of all drafts form the tree (EAGLE-2, arXiv 2406.16858). One call
verifies the tree, and the hidden states of the accepted path are the layer's next input.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.length import AUTO, Length, NumDrafts
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.states import TreeDrafter
from decoders.core.drafting.verification import ExactChain
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, DraftShape


@register("eagle")
@dataclass(frozen=True, kw_only=True)
class Eagle(DraftAndVerify):
    """Draft a tree by a trained layer on the target's hidden states and verify it. Lossless.

    Args:
        nodes: maximum number of drafts; `auto`: as many as pay by their paths' probabilities and
            the two costs (with ``verify=coupled``: drawn drafts must not be pruned).
        width: maximum number of candidates after a row, and of rows extended at each level.
        depth: maximum number of drafts on a path; each level of the tree is one draft call.
        row_cost: with ``nodes=auto``, cost of a draft's row, in target calls of one row.
        draft_cost: with ``nodes=auto``, cost of a draft call, likewise.
        verify: `coupled` (the target's own picks, exactly AR's tokens) or `rejection` (drafts are
            drawn, then accepted or rejected: AR's distribution; the same at temperature 0);
            `block` tests drawn drafts jointly, which needs a chain (width 1).
        adapter: name of the adapter that holds the layer, see ``--adapter``.
    """

    nodes: NumDrafts = 8
    width: int = 3
    depth: int = 6
    row_cost: float = 0.02
    draft_cost: float = 0.1
    verify: ExactChain = "coupled"
    adapter: str = "eagle"

    needs = ("adapter",)
    variants = ("eagle",)
    by_default = False

    def __post_init__(self) -> None:
        fits = self.nodes == AUTO or 1 <= self.nodes <= MAX_DRAFTS
        self.demand(fits, "nodes", f"1 to {MAX_DRAFTS}, or auto")
        fits = self.nodes != AUTO or self.verify == "coupled"
        self.demand(fits, "verify", "coupled with nodes=auto")
        self.demand_read("nodes", {AUTO: ("row_cost", "draft_cost")})
        self.demand(self.row_cost >= 0, "row_cost", "0 or above")
        self.demand(self.draft_cost >= 0, "draft_cost", "0 or above")
        self.demand(1 <= self.depth <= MAX_DRAFTS, "depth", f"1 to {MAX_DRAFTS}")
        limit = MAX_DRAFTS // self.depth
        self.demand(1 <= self.width <= limit, "width", f"1 to {limit} at depth {self.depth}")
        self.demand(self.width == 1 or self.verify != "block", "width", "1 with verify=block")

    def drafter(self, request: Request) -> Drafter:
        """Draft from the target's hidden states of the text."""
        draws = self.verification.draws(request.sampling)
        shape = DraftShape(depth=self.depth, width=self.width, draws=draws)
        length = Length(self.nodes, self.row_cost, self.draft_cost)
        return TreeDrafter(request, self.adapter, shape, length)
