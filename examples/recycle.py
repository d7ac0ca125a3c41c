"""A decoder in one file: a draft is the target's latest pick after the token before it.

    bench run --decoders lookup,examples/recycle.py:Recycle:k=6

A call gives the target's pick after each of its rows, even after rejected drafts. The decoder keeps
the latest such successor of every token and proposes the chain of successors from the last token:
one branch of the tree of Token Recycling (Luo et al. 2024, arXiv 2408.08696). One target call
verifies the chain against the target's own picks, so the output is AR's for the same seed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.registry import register


@register("recycle")
@dataclass(frozen=True, kw_only=True)
class Recycle(DraftAndVerify):
    """Propose the target's own successors of each token. Lossless, training-free."""

    k: int = 4

    def drafter(self, request: Request) -> Drafter:
        return Successors(self.k)


class Successors(Drafter):
    """Keeps the target's latest pick after each token."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.after: dict[int, int] = {}

    def propose(self, text: Text, most: int) -> list[int]:
        """Propose up to k tokens, each the successor of the token before it."""
        chain = [text.last]
        while len(chain) <= self.k and chain[-1] in self.after:
            chain.append(self.after[chain[-1]])
        return chain[1:]

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Learn from the prompt, then from every row that a call read."""
        if verdict.is_prompt:
            self.after = dict(itertools.pairwise(text.tokens))
        else:
            self.after.update(zip(verdict.tree.tokens, verdict.result.picks, strict=True))
