"""Prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding).

Answers often repeat their prompt or themselves. Where the last tokens occurred before, what
followed them there is proposed, and one target call verifies it. transformers has it as
`prompt_lookup_num_tokens`. Like Saxena's, a longer match goes before a shorter one; unlike his, the
latest of several occurrences counts, and no search goes through the text (see `_Index`).

A proposal is certain, not drawn: speculative sampling lets such a draft stand with the target's
probability of it, and so does the target's own pick. So verification goes by picks, loses nothing
by it, and the answer has AR's very tokens at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.registry import register

_LONGEST = 16
"""The largest n: the index holds n entries for every token of the text."""


@register("lookup")
@dataclass(frozen=True, kw_only=True)
class PromptLookup(DraftAndVerify):
    """Propose what followed the last tokens where they occurred before. Lossless, coupled.

    Args:
        n: tokens that are matched; where they never occurred, the last n - 1, and so on to one.
        k: tokens proposed per step (fewer where the text or the budget ends sooner).
        shortest: tokens that must match at least; more leave the step to others in a `hybrid`.
    """

    n: int = 3
    k: int = 5
    shortest: int = 1

    def __post_init__(self) -> None:
        self.demand(1 <= self.n <= _LONGEST, "n", f"from 1 to {_LONGEST}")
        self.demand(self.k >= 1, "k", "1 or above")
        self.demand(1 <= self.shortest <= self.n, "shortest", f"from 1 to n={self.n}")

    def drafter(self, request: Request) -> Drafter:
        """Look up in the text of prompt and answer."""
        return _Index(self.n, k=self.k, shortest=self.shortest)


class _Index(Drafter):
    """A text, and where each sequence of up to n of its tokens occurred last.

    An entry is made when the token after the sequence arrives, so the end of the text is looked up
    among what came before it. A token costs n entries, a look-up at most n, however long the text.
    """

    def __init__(self, n: int, tokens: Sequence[int] = (), k: int = 0, shortest: int = 1) -> None:
        self._n, self._k, self._shortest = n, k, shortest
        self._text: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}
        self.append(tokens)

    def propose(self, text: Text, most: int) -> tuple[int, ...]:
        """Index the new tokens of the text, and look its end up."""
        self.append(text.tokens[len(self._text) :])
        return self.continuation(min(self._k, most))

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self._text)
            for start in range(max(0, end - self._n), end):
                self._next[tuple(self._text[start:end])] = end
            self._text.append(token)

    def continuation(self, most: int) -> tuple[int, ...]:
        """Return what followed the longest end of the text that occurred before."""
        for start in range(-min(self._n, len(self._text)), 1 - self._shortest):
            after = self._next.get(tuple(self._text[start:]))
            if after is not None:
                return tuple(self._text[after : after + most])
        return ()
