"""Choose the number of drafts of each step: that with the most expected tokens per time."""

from __future__ import annotations

from collections.abc import Generator

from decoders.core.drafting.drafter import Drafter, Drafts, Text, Verdict
from decoders.core.model import Call, DraftCall
from decoders.core.types import CallResult


class Paced(Drafter):
    """Limits a drafter's chains by the acceptance in this answer and the cost of a draft.

    Of n drafts, each accepted with chance a if all before it are, a step emits 1 + a + … + a^n
    tokens on average and takes 1 + c n verifying calls, c the cost of a draft (Leviathan et al.
    2023, arXiv 2211.17192, section 3.3); n in 1 … `k` has the largest ratio. Chance a is estimated
    by Laplace's rule, (accepted + 1) / (tested + 2). It depends on tested drafts alone, which
    precede all that the length decides about, so the distribution of answers stays. SpecDec++
    (arXiv 2405.19715) adapts the length by a trained head instead.
    """

    def __init__(self, drafter: Drafter, k: int, cost: float) -> None:
        """Limit a drafter of chains to `k` drafts, each at `cost` verifying calls."""
        self._drafter, self._k, self._cost = drafter, k, cost
        self._accepted = self._rejected = 0

    @property
    def num_drafts(self) -> int:
        """The number of drafts of the next step."""
        chance = (self._accepted + 1) / (self._accepted + self._rejected + 2)
        tokens, best = 1.0, (0.0, 0)
        for num in range(1, self._k + 1):
            tokens += chance**num
            best = max(best, (tokens / (1 + self._cost * num), num))
        return best[1]

    def draft(self, text: Text, most: int) -> Generator[Call | DraftCall, CallResult, Drafts]:
        """Draft as many tokens as pay."""
        return (yield from self._drafter.draft(text, min(most, self.num_drafts)))

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Count accepted drafts, and steps that rejected one."""
        self._accepted += verdict.accepted
        self._rejected += verdict.accepted < verdict.tree.num_drafts
        self._drafter.observe(text, verdict)
