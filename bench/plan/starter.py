"""Start from this decoder: run the file, then put your own rule into `propose`.

    bench run --decoders starter.py:Starter:k=6
    pytest test_starter.py

A step proposes tokens. One call of the target verifies them all and accepts the tokens that the
target itself would choose. So the answer is always AR's for the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify


@dataclass(frozen=True, kw_only=True)
class Starter(DraftAndVerify):
    """Propose the tokens after an earlier occurrence of the last token. Lossless, training-free.

    Args:
        k: tokens proposed per step.
    """

    # Options are the fields, each with a default: `starter.py:Starter:k=6` sets this one.
    k: int = 4

    def __post_init__(self) -> None:
        """Raise `ValueError` if an option is out of range."""
        self.demand(self.k >= 1, "k", "1 or above")

    def drafter(self, request: Request) -> Drafter:
        """Return the drafter of one answer. It keeps the answer's state, the decoder never does."""
        return Copies(self.k)


class Copies(Drafter):
    """Draft for one answer. The shared loop prefills, verifies, keeps the cache and counts."""

    def __init__(self, k: int) -> None:
        """Set the maximum number of drafts."""
        self.k = k

    def propose(self, text: Text, most: int) -> Sequence[int]:
        """Return up to k possible next tokens, or an empty list. Change this rule.

        `text.tokens` are the prompt and all final tokens; at most `most` drafts are useful. To
        learn from the target's verdict, define `observe(text, verdict)` as well.
        """
        for position in range(len(text.tokens) - 2, -1, -1):
            if text.tokens[position] == text.last:
                return text.tokens[position + 1 : position + 1 + self.k]
        return []
