"""Medusa-1 (Cai et al. 2024, arXiv 2401.10774): heads on the target's last hidden state draft.

The hidden state that predicts the target's next token also feeds trained heads for the tokens after
it: head h predicts the token h + 2 positions on. The heads' likeliest candidates form a tree of
drafts after the next token. One call verifies the tree, and the state at the end of the accepted
path drafts the next tree. No draft model, no second cache, one call per step.

Every step builds a new tree from the likeliest rows (the paper fixes one tree beforehand).

Letters: H heads, N rows of a tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.length import AUTO, Length, NumDrafts
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.states import NetworkDrafter
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import ExactChain
from decoders.core.model import DraftCall
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, CallResult, DraftShape


@register("medusa")
@dataclass(frozen=True, kw_only=True)
class Medusa(DraftAndVerify):
    """Draft a tree by trained heads on the target's hidden state and verify it. Lossless.

    Args:
        nodes: most drafts of a tree; `auto`: as many as pay by the probabilities of their paths and
            `row_cost` (needs ``verify=coupled``, as in `eagle`).
        width: most candidates for the token after a row.
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
        return _Heads(self, request)


class _Heads(Drafter):
    """The trees of one answer, each made from the last accepted state."""

    hidden, branches = 1, True

    def __init__(self, options: Medusa, request: Request) -> None:
        assert request.adapter is not None
        num_heads = request.adapter.num_slots
        depth = min(options.heads, num_heads) if options.heads else num_heads
        draws = options.verification.draws(request.sampling)
        shape = DraftShape(depth=depth, width=options.width, draws=draws)
        length = Length(options.nodes, options.row_cost)
        self._network = NetworkDrafter(request, options.adapter, shape, length)
        self._state: Tensor | None = None

    def draft(self, text: Text, most: int) -> Generator[DraftCall, CallResult, DraftTree]:
        """Make a tree after the last token, with drawn drafts if they are verified by rejection."""
        if most < 1:  # the answer's last call
            return DraftTree(text.last)
        assert self._state is not None
        return (yield from self._network.tree(text, (self._state, [text.last]), most))

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Keep the state that predicted the text's last token, and learn acceptance."""
        self._state = verdict.states[-1:]
        self._network.length.observe(verdict.tree.tested(verdict.path))
