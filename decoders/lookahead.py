"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): n-grams gathered from Jacobi iterations.

Every call does two things. First, it extends a window of W columns of the target's own guesses:
level l of a column is one position after level l - 1, and the target's pick after the last level
completes an n-gram of N tokens. Second, it verifies gathered n-grams that begin with the last token
of the answer. Both are branches of one tree of rows; only tokens that the target itself picks are
accepted. No draft model and no adapter; AR's tokens for the same seed.

Letters: W columns of the window, N tokens of an n-gram, G n-grams kept for a first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS


@register("lookahead")
@dataclass(frozen=True, kw_only=True)
class Lookahead(DraftAndVerify):
    """Gather n-grams from the target's own guesses ahead and verify them. Lossless, coupled.

    Args:
        window: W, columns of guesses ahead.
        n: N, tokens of an n-gram; N - 1 of them are verified.
        candidates: G, number of newest n-grams kept per first token; all are verified at once.
        from_prompt: gather the prompt's n-grams, too.
    """

    window: int = 5
    n: int = 4
    candidates: int = 5
    from_prompt: bool = True

    by_default = False
    combines = False

    def __post_init__(self) -> None:
        self.demand(self.window >= 1, "window", "1 or above")
        self.demand(self.n >= 2, "n", "2 or above")
        self.demand(self.candidates >= 1, "candidates", "1 or above")
        max_guesses = MAX_DRAFTS // (self.n - 1) - self.candidates
        allowed = f"at most {max_guesses} with n={self.n} and candidates={self.candidates}"
        self.demand(self.window <= max_guesses, "window", allowed)

    def drafter(self, request: Request) -> Drafter:
        """Begin with the prompt's own tokens as guesses, and without n-grams."""
        return _Gatherer(self)


class _Gatherer(Drafter):
    """Hold the window, and the n-grams gathered from the window."""

    branches = True

    def __init__(self, options: Lookahead) -> None:
        self._options, self._levels = options, list[list[int]]()
        self._ngrams, self._rows = _Ngrams(options.n, options.candidates), _WindowTree(0)

    def propose(self, text: Text, most: int) -> DraftTree:
        """Verify the n-grams that begin with the last token, and extend the window."""
        rows = self._rows = _WindowTree(text.last)
        for ngram in self._ngrams.after(text.last):
            rows.add(ngram[:most])
        verified = len(rows)
        last = rows.look_ahead(self._levels)
        rows.read = (*range(verified), *last)
        return rows

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Gather the prompt's n-grams, then advance the window after every call that fed it."""
        if verdict.is_prompt:
            prompt, window = text.tokens[: text.num_prompt], self._options.window
            self._levels = [(prompt * window)[-window:]]
            if self._options.from_prompt:
                self._ngrams.gather(text.tokens)
        elif verdict.tree is self._rows:
            # the target's picks are the last level of all columns; N levels are complete n-grams
            self._levels.append([*verdict.result.picks[1 + self._rows.num_drafts :]])
            if len(self._levels) == self._options.n:
                for column in zip(*self._levels, strict=True):
                    self._ngrams.add(column)
                self._levels.pop(0)


@dataclass(slots=True)
class _Ngrams:
    """Keep the newest G continuations of N - 1 tokens for each first token, newest last."""

    n: int
    candidates: int
    _after: dict[int, dict[tuple[int, ...], None]] = field(default_factory=dict)

    def add(self, ngram: Sequence[int]) -> None:
        continuations = self._after.setdefault(ngram[0], {})
        continuation = tuple(ngram[1:])
        continuations.pop(continuation, None)
        continuations[continuation] = None
        if len(continuations) > self.candidates:
            del continuations[next(iter(continuations))]

    def gather(self, text: Sequence[int]) -> None:
        for start in range(len(text) - self.n + 1):
            self.add(text[start : start + self.n])

    def after(self, token: int) -> tuple[tuple[int, ...], ...]:
        return tuple(self._after.get(token, ()))


class _WindowTree(DraftTree):
    """Hold the rows of a call: a tree whose first row is the last token of the answer."""

    def look_ahead(self, levels: Sequence[Sequence[int]]) -> Sequence[int]:
        """Add the window's columns, level 0 as a chain, and return the rows of the last level."""
        rows = [0]
        for token in levels[0]:
            rows.append(self.append(token, rows[-1]))
        rows.pop(0)
        for level in levels[1:]:
            rows = [self.append(token, row) for token, row in zip(level, rows, strict=True)]
        return rows
