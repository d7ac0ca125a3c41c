"""Jacobi decoding (Santilli et al. 2023, arXiv 2305.10427): guesses that converge by themselves.

A window of guesses follows the last token. One call gives the target's pick after each of them.
Leading guesses that equal these picks are accepted, the picks replace all other guesses, and the
window slides on. No draft model and no adapter; AR's tokens for the same seed at any temperature.

Letters: B rows of a call (the last token and B - 1 guesses).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.registry import register


@register("jacobi")
@dataclass(frozen=True, kw_only=True)
class Jacobi(DraftAndVerify):
    """Guess a window of tokens and replace it by the target's picks until both agree. Lossless.

    Args:
        block: B, rows of a call: the last token and B - 1 guesses.
    """

    block: int = 16

    by_default = False

    def __post_init__(self) -> None:
        self.demand(self.block >= 1, "block", "1 or above")

    def drafter(self, request: Request) -> Drafter:
        """Guess the target's last pick for each position."""
        return _Window(self.block)


class _Window(Drafter):
    """Hold the guesses, each the target's pick for its position in the last call."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._later: Sequence[int] = ()

    def propose(self, text: Text, most: int) -> Sequence[int]:
        """Slide the window, repeating the last guess where there is no pick."""
        size = min(self._block - 1, most)
        return (*self._later, *[(text.last, *self._later)[-1]] * size)[:size]

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Guess the target's picks for the positions after the new text."""
        self._later = () if verdict.is_prompt else verdict.result.picks[len(verdict.path) :]
