"""Prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding).

Answers often repeat their prompt or themselves. If the last tokens occurred before, the tokens that
followed them there are proposed, and one target call verifies them. In transformers this is
`prompt_lookup_num_tokens`. As in Saxena's code, longer matches come first. Unlike there, the last
of several occurrences counts, and no search runs through the text (see `_Index`).

A proposal is certain, not drawn. Speculative sampling accepts such a draft with the probability
that the target gives it, as does a comparison with the target's own pick. Verification by picks
therefore loses nothing, and the answer has exactly AR's tokens at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.registry import register

_MAX_N = 16
"""The largest n: the index holds n entries for every token of the text."""


@register("lookup")
@dataclass(frozen=True, kw_only=True)
class PromptLookup(DraftAndVerify):
    """Propose what followed an earlier occurrence of the last tokens. Lossless, coupled.

    Args:
        n: maximum number of tokens to match; without a match, try n - 1, and so on to `shortest`.
        k: tokens proposed per step (fewer if the text or the budget ends sooner).
        shortest: minimum number to match; above 1, a `hybrid` leaves more steps to its other part.
    """

    n: int = 3
    k: int = 5
    shortest: int = 1

    def __post_init__(self) -> None:
        self.demand(1 <= self.n <= _MAX_N, "n", f"from 1 to {_MAX_N}")
        self.demand(self.k >= 1, "k", "1 or above")
        self.demand(1 <= self.shortest <= self.n, "shortest", f"from 1 to n={self.n}")

    def drafter(self, request: Request) -> Drafter:
        """Look up drafts in prompt and answer."""
        return _Index(self.n, k=self.k, min_match=self.shortest)


class _Index(Drafter):
    """Index a text: the last occurrence of each sequence of up to n tokens.

    A sequence is entered when the token after it arrives, so that looking up the end of the text
    finds earlier occurrences only. A token costs n entries and a look-up at most n, at any length.
    """

    def __init__(self, n: int, tokens: Sequence[int] = (), k: int = 0, min_match: int = 1) -> None:
        self._n, self._k, self._min_match = n, k, min_match
        self._text: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}
        self.append(tokens)

    def propose(self, text: Text, most: int) -> tuple[int, ...]:
        """Index the new tokens of the text, then look up its end."""
        self.append(text.tokens[len(self._text) :])
        return self.continuation(min(self._k, most))

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self._text)
            for start in range(max(0, end - self._n), end):
                self._next[tuple(self._text[start:end])] = end
            self._text.append(token)

    def continuation(self, most: int) -> tuple[int, ...]:
        """Return the tokens that followed the longest end of the text that occurred before."""
        for start in range(-min(self._n, len(self._text)), 1 - self._min_match):
            after = self._next.get(tuple(self._text[start:]))
            if after is not None:
                return tuple(self._text[after : after + most])
        return ()
