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

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.verification import settle
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import Emit

_LONGEST = 16
"""What n may be at most: the index holds n entries for every token of the text."""


@register("lookup")
@dataclass(frozen=True, kw_only=True)
class PromptLookup(Decoder):
    """Propose what followed the last tokens where they occurred before. Lossless, coupled.

    Args:
        n: tokens that are matched; where they never occurred, the last n - 1, and so on to one.
        k: tokens proposed per step (fewer where the text or the budget ends sooner).
    """

    n: int = 3
    k: int = 5

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range."""
        self.demand(1 <= self.n <= _LONGEST, "n", f"from 1 to {_LONGEST}")
        self.demand(self.k >= 1, "k", "1 or above")

    @property
    def coupled(self) -> bool:
        """Every token is the target's own pick for its uniform."""
        return True

    def steps(self, request: Request) -> Steps:
        """Prefill, then copy, verify, roll back."""
        target, left = request.target, request.sampling.max_new_tokens
        result = yield target.call(request.prompt_ids)
        emitted = result.picks
        yield Emit(tokens=emitted)
        index = _Index(self.n, request.prompt_ids)
        while True:
            left -= len(emitted)
            index.append(emitted)
            # the verifying call adds one token itself: propose at most what the budget still holds
            drafts = index.continuation(min(self.k, left - 1))
            result = yield target.call((emitted[-1], *drafts), read=range(len(drafts) + 1))
            acceptance = verify_picks(result.picks, drafts)
            emitted = settle(target, drafts, acceptance)
            yield Emit(
                tokens=emitted,
                drafted=len(drafts),
                accepted=acceptance.accepted,
                rejected=tuple(drafts[acceptance.accepted :]),
            )


class _Index:
    """A text, and where each sequence of up to n of its tokens occurred last.

    An entry is made when the token after the sequence arrives, so the end of the text is looked up
    among what came before it. A token costs n entries, a look-up at most n, however long the text.
    """

    def __init__(self, n: int, tokens: Sequence[int]) -> None:
        self._n = n
        self._text: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}
        self.append(tokens)

    def append(self, tokens: Sequence[int]) -> None:
        """Tokens that the text goes on with."""
        for token in tokens:
            end = len(self._text)
            for start in range(max(0, end - self._n), end):
                self._next[tuple(self._text[start:end])] = end
            self._text.append(token)

    def continuation(self, most: int) -> tuple[int, ...]:
        """What followed the longest end of the text that occurred before, cut to `most` tokens."""
        for start in range(-min(self._n, len(self._text)), 0):
            place = self._next.get(tuple(self._text[start:]))
            if place is not None:
                return tuple(self._text[place : place + most])
        return ()
