"""Medusa-1 (Cai et al. 2024, arXiv 2401.10774): heads on the target's last hidden state draft.

The hidden state that predicts the target's next token also feeds trained heads for the tokens after
it: head h predicts the token h + 2 positions on. The heads' likeliest candidates form a tree of
drafts after the next token. One call verifies the tree, and the state at the end of the accepted
path drafts the next tree. No draft model, no second cache, one call per step. Every step builds a
new tree from the likeliest rows (the paper fixes one tree beforehand).

Letters: H heads, N rows of a tree, V vocabulary.
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


@register("medusa")
@dataclass(frozen=True, kw_only=True)
class Medusa(DraftAndVerify):
    """Draft a tree by trained heads on the target's hidden state and verify it. Lossless.

    Args:
        nodes: maximum number of drafts; `auto`: as many as pay by their paths' probabilities and
            `row_cost` (with ``verify=coupled``).
        width: maximum number of candidates for the token after a row.
        heads: number of heads used, hence the longest path; 0: all heads.
        row_cost: with ``nodes=auto``, cost of a draft's row, in target calls of one row.
        verify: `coupled` (the target's own picks, exactly AR's tokens) or `rejection` (drafts are
            drawn, then accepted or rejected: AR's distribution; the same at temperature 0);
            `block` tests drawn drafts jointly, which needs a chain (width 1).
        adapter: name of the adapter that holds the heads, see ``--adapter``.
    """

    nodes: NumDrafts = 8
    width: int = 4
    heads: int = 0
    row_cost: float = 0.02
    verify: ExactChain = "coupled"
    adapter: str = "medusa"

    needs = ("adapter",)
    variants = ("medusa",)
    by_default = False

    def __post_init__(self) -> None:
        fits = self.nodes == AUTO or 1 <= self.nodes <= MAX_DRAFTS
        self.demand(fits, "nodes", f"1 to {MAX_DRAFTS}, or auto")
        fits = self.nodes != AUTO or self.verify == "coupled"
        self.demand(fits, "verify", "coupled with nodes=auto")
        self.demand_read("nodes", {AUTO: ("row_cost",)})
        self.demand(self.row_cost >= 0, "row_cost", "0 or above")
        self.demand(self.width >= 1, "width", "1 or above")
        self.demand(self.width == 1 or self.verify != "block", "width", "1 with verify=block")
        self.demand(self.heads >= 0, "heads", "0 (all heads) or above")

    def drafter(self, request: Request) -> Drafter:
        """Draft from the state that predicted the last token."""
        assert request.adapter is not None
        num_heads, draws = request.adapter.num_slots, self.verification.draws(request.sampling)
        depth = min(self.heads, num_heads) if self.heads else num_heads
        shape = DraftShape(depth=depth, width=self.width, draws=draws)
        length = Length(self.nodes, self.row_cost)
        return TreeDrafter(request, self.adapter, shape, length, hidden=1)
