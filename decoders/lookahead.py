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
from dataclasses import dataclass

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
    """Hold the window, and the newest G n-grams of each first token, the newest last."""

    branches = True

    def __init__(self, options: Lookahead) -> None:
        self._options, self._tree = options, DraftTree(0)
        self._levels: list[list[int]] = []
        self._after: dict[int, dict[tuple[int, ...], None]] = {}

    def propose(self, text: Text, most: int) -> DraftTree:
        """Verify the n-grams that begin with the last token, and extend the window."""
        tree = self._tree = DraftTree(text.last)
        for continuation in self._after.get(text.last, ()):
            tree.add(continuation[:most])
        verified, rows = len(tree), [0]
        for token in self._levels[0]:  # a chain
            rows.append(tree.append(token, rows[-1]))
        rows.pop(0)
        for level in self._levels[1:]:
            rows = [tree.append(token, row) for token, row in zip(level, rows, strict=True)]
        tree.read = (*range(verified), *rows)
        return tree

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Gather the prompt's n-grams, then advance the window after every call that fed it."""
        n = self._options.n
        if verdict.is_prompt:
            prompt, window = text.tokens[: text.num_prompt], self._options.window
            self._levels = [(prompt * window)[-window:]]
            num_ngrams = len(text.tokens) - n + 1 if self._options.from_prompt else 0
            for start in range(num_ngrams):
                self._gather(text.tokens[start : start + n])
        elif verdict.tree is self._tree:
            # the target's picks are the last level of all columns; N levels are complete n-grams
            self._levels.append([*verdict.result.picks[1 + self._tree.num_drafts :]])
            if len(self._levels) == n:
                for column in zip(*self._levels, strict=True):
                    self._gather(column)
                self._levels.pop(0)

    def _gather(self, ngram: Sequence[int]) -> None:
        continuations = self._after.setdefault(ngram[0], {})
        continuation = tuple(ngram[1:])
        continuations.pop(continuation, None)
        continuations[continuation] = None
        if len(continuations) > self._options.candidates:
            del continuations[next(iter(continuations))]
