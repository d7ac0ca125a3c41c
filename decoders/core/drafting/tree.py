"""Represent a tree of drafts in one call: its rows, mask, shape and verification.

Row 0 is the last token of the answer. Every other row continues its parent and sees only itself and
its ancestors. A row's position is that of row 0 plus the row's depth.

Source of tree masks: SpecInfer (arXiv 2305.09781). Letters: N rows, D depths, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from decoders.core import masks


class DraftTree:
    """Hold the rows of a verifying call, parents before children.

    Attributes:
        tokens: token of each row.
        parents: parent of each row; `masks.ROOT` for row 0.
        probs: for each row, the distribution ``[V]`` that the drafts after the row were drawn from;
            empty: the drafts are not drawn but certain. Only rules that draw read it.
        read: rows that the call reads, all drafts first; None: all rows.
        first: tokens that drafting committed; they are final and part of the text.
        sources: name of each row's drafter if there are several; or empty.
        confidences: the drafter's probability of a row's draft if its parents are all accepted, by
            row; rows without one are missing.
    """

    probs: Mapping[int, Tensor] = {}
    read: Sequence[int] | None = None
    first: tuple[int, ...] = ()
    sources: Sequence[str] = ()
    confidences: Mapping[int, float] = {}

    def __init__(self, last: int) -> None:
        """Begin with the answer's `last` token and without drafts."""
        self.tokens, self.parents = [last], [masks.ROOT]
        self._children: list[dict[int, int]] = [{}]

    @classmethod
    def of(cls, tokens: Sequence[int], parents: Sequence[int]) -> Self:
        """Make a tree of rows in which all but row 0 are drafts, all different after one parent."""
        tree = cls(tokens[0])
        tree.tokens, tree.parents = [*tokens], [*parents]
        tree._children = [{} for _ in tokens]
        for row, parent in enumerate(parents[1:], 1):
            tree._children[parent][tokens[row]] = row
        return tree

    @classmethod
    def chain(cls, last: int, drafts: Sequence[int], confidences: Sequence[float] = ()) -> Self:
        """Make a tree of one path.

        Args:
            last: the answer's last token, row 0.
            drafts: the tokens after it.
            confidences: the drafter's probabilities of some first drafts, or of more tokens.
        """
        tree = cls.of([last, *drafts], [masks.ROOT, *range(len(drafts))])
        tree.confidences = dict(zip(range(1, len(drafts) + 1), confidences, strict=False))
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def chain_drafts(self) -> list[int]:
        """Drafts of a chain in order (else `ValueError`)."""
        if self.parents != [masks.ROOT, *range(len(self) - 1)]:
            raise ValueError("these drafts branch, but they are to be verified as one chain")
        return self.tokens[1:]

    @property
    def draft_probs(self) -> list[Any] | None:
        """Distributions of all drafts in order, or None if they are certain."""
        rows = self.parents[1 : self.num_drafts + 1]
        return [self.probs.get(row) for row in rows] if self.probs else None

    @property
    def num_drafts(self) -> int:
        """Number of rows that are drafts."""
        return sum(map(len, self._children))

    def append(self, token: int, parent: int) -> int:
        """Add a row after `parent` that is no draft and is never accepted, and return its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self._children.append({})
        return len(self.tokens) - 1

    def draft(self, token: int, parent: int) -> int:
        """Return the row of a draft after `parent`, which is added if it is new."""
        row = self._children[parent].setdefault(token, len(self.tokens))
        return row if row < len(self.tokens) else self.append(token, parent)

    def add(self, continuation: Sequence[int]) -> None:
        """Add a chain of drafts after row 0, sharing rows with chains of the same prefix."""
        row = 0
        for token in continuation:
            row = self.draft(token, row)

    def children(self, row: int) -> dict[int, int]:
        """Return the rows of the drafts after a row by token, in the order they were added."""
        return self._children[row]

    @property
    def mask(self) -> Tensor:
        """The mask of the call, bool ``[N, N]``: row i sees row j. Trees of one shape share it."""
        return masks.shared_tree((*self.parents,))

    def positions(self, start: int) -> list[int]:
        """Return the positions of the rows if row 0 is at position `start`."""
        return [start + depth for depth in self.depths]

    @property
    def depths(self) -> tuple[int, ...]:
        """Number of ancestors of each row."""
        return masks.depths(self.parents)

    @property
    def depth(self) -> int:
        """Number of drafts on the longest path, assuming that rows that are no drafts come last."""
        return max(self.depths[: self.num_drafts + 1])

    def path(self, picks: Sequence[int]) -> list[int]:
        """Return the path from row 0 that the target's picks follow."""
        rows = [0]
        while (child := self._children[rows[-1]].get(picks[rows[-1]])) is not None:
            rows.append(child)
        return rows

    def tested(self, path: Sequence[int]) -> tuple[tuple[float, bool], ...]:
        """Return the confidences of drafts whose parents are on an accepted path (`Emit`).

        The list ends before an accepted draft without a confidence: readers count depths by it.
        """
        tested, confidences = list[tuple[float, bool]](), self.confidences
        for row, after in itertools.zip_longest(path, path[1:]):
            rest = [child for child in self._children[row].values() if child != after]
            tested += [(confidences[child], False) for child in rest if child in confidences]
            if after is None or after not in confidences:
                break
            tested.append((confidences[after], True))
        return tuple(tested)

    def first_branch(self, row: int) -> tuple[int, ...]:
        """Return the tokens of the first branch after `row`."""
        tokens = []
        while self._children[row]:
            token, row = next(iter(self._children[row].items()))
            tokens.append(token)
        return tuple(tokens)
