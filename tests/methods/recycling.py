"""Token Recycling: the target's former candidates of each token make a tree of drafts.

Source: Luo et al. 2024 (arXiv 2408.08696). The matrix of candidates is read from every verified
row, rejected drafts' too. The tree is static and uneven, as in the paper: going on with the
candidate of rank r costs r + 1, and a path costs at most `size`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.registry import register


@register("recycling")
@dataclass(frozen=True, kw_only=True)
class TokenRecycling(DraftAndVerify):
    """Verify the tree of each token's former candidates. Lossless, coupled, training-free."""

    candidates: int = 4
    size: int = 5

    def drafter(self, request: Request) -> Drafter:
        return Candidates(self.candidates, self.size)


class Candidates(Drafter):
    branches = True

    def __init__(self, num: int, size: int) -> None:
        self.outputs, self.size = (f"topk:{num}",), size
        self.matrix: dict[int, Sequence[int]] = {}

    def propose(self, text: Text, most: int) -> DraftTree:
        tree, level = DraftTree(text.last), {0: 0}  # rows by the costs of their paths
        for _ in range(most):
            level = {
                tree.draft(token, row): cost + rank
                for row, cost in level.items()
                for rank, token in enumerate(self.matrix.get(tree.tokens[row], ()), 1)
                if cost + rank <= self.size
            }
        return tree

    def observe(self, text: Text, verdict: Verdict) -> None:
        rows = zip(verdict.tree.tokens, verdict.result.top_ids, strict=True)
        self.matrix.update(rows)
