"""A decoder to start from: run it, then put a rule of your own into `propose`.

    bench run --decoders starter.py:Starter:k=6
    pytest test_starter.py

A step proposes tokens, one call of the target looks at all of them at once, and those stand that it
would have said itself. So whatever is proposed, the answer is AR's for the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify


@dataclass(frozen=True, kw_only=True)
class Starter(DraftAndVerify):
    """Propose what followed the last token where it stood before. Lossless, training-free.

    Args:
        k: tokens proposed a step.
    """

    # Options are the fields, each with a default: `starter.py:Starter:k=6` sets this one.
    k: int = 4

    # The interface this file is written against; `bench` says so where it knows it no longer.
    interface = 1

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range."""
        self.demand(self.k >= 1, "k", "1 or above")

    def drafter(self, request: Request) -> Drafter:
        """Begin an answer: what a drafter remembers of it is kept in the drafter, never here."""
        return Copies(self.k)


class Copies(Drafter):
    """The drafts of one answer; the loop does the prefill, verifies, keeps the cache and counts."""

    def __init__(self, k: int) -> None:
        """Nothing is known yet."""
        self.k = k

    def propose(self, text: Text, most: int) -> Sequence[int]:
        """Up to k tokens that may come next: yours to change. An empty list is allowed.

        `text.tokens` are the prompt and all that is final; `most` says how many can be of use. To
        learn from what the target made of them, define `observe(text, verdict)` as well.
        """
        for position in range(len(text.tokens) - 2, -1, -1):
            if text.tokens[position] == text.last:
                return text.tokens[position + 1 : position + 1 + self.k]
        return []
