"""A tree of drafts in one call: its rows, mask, shape and verification.

Row 0 is the last token of the answer. Every other row continues its parent and sees only itself and
its ancestors. A row's position is that of row 0 plus the row's depth.

Sources: SpecInfer (arXiv 2305.09781), tree masks and multi-step speculative sampling; drawing
without replacement: Jeon et al. 2024 (arXiv 2402.14160). Letters: N rows, D depths, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from decoders.core import masks
from decoders.core.device import upload
from decoders.core.sampling import Uniforms, pick
from decoders.core.types import CallResult

_mask = functools.lru_cache(512)(masks.tree)
_depths = functools.lru_cache(512)(masks.depths)


class DraftTree:
    """The rows of a verifying call, parents before children.

    Attributes:
        tokens: token of each row.
        parents: parent of each row; `masks.ROOT` for row 0.
        probs: for each row, the distribution ``[V]`` that the drafts after the row were drawn from;
            empty: the drafts of a chain are certain. Only rules that draw use it.
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
    def chain(cls, last: int, drafts: Sequence[int], confidences: Sequence[float] = ()) -> Self:
        """Make a tree of one path after the last token, with confidences of drafts in order."""
        tree, numbers = cls(last), range(1, len(drafts) + 1)
        tree.tokens += drafts
        tree.parents += range(len(drafts))
        tree._children = [{token: row} for row, token in zip(numbers, drafts, strict=True)] + [{}]
        tree.confidences = dict(zip(numbers, confidences, strict=False))
        return tree

    @classmethod
    def drafted(cls, last: int, result: CallResult, limit: int | None = None) -> Self:
        """Make the tree of the first `limit` drafts of a draft call after the last token."""
        tree, rows, laws = cls(last), list[int](), dict[int, Tensor]()
        tokens, children = tree.tokens, tree._children
        paths, sure = result.confidences, dict[int, float]()
        drafts = [*zip(result.picks, result.parents, strict=True)][:limit]
        for number, (token, parent) in enumerate(drafts):
            before = rows[parent] if parent >= 0 else 0
            rows.append(children[before].setdefault(token, len(tokens)))
            if rows[-1] == len(tokens):  # `append`
                tokens.append(token)
                tree.parents.append(before)
                children.append({})
            sure[rows[-1]] = paths[number] / (paths[parent] if parent >= 0 else 1.0)
            if result.probs is not None:
                laws[before] = result.probs[number]
        tree.probs, tree.confidences = laws, sure
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
    def chain_probs(self) -> list[Tensor] | None:
        """Distributions of a chain's drafts in order, or None if the drafts are certain."""
        return [self.probs[row] for row in range(len(self) - 1)] if self.probs else None

    @property
    def num_drafts(self) -> int:
        """Number of rows that are drafts."""
        return sum(map(len, self._children))

    def append(self, token: int, parent: int) -> int:
        """Add and return a row after `parent` that is no draft and on no accepted path."""
        self.tokens.append(token)
        self.parents.append(parent)
        self._children.append({})
        return len(self.tokens) - 1

    def draft(self, token: int, parent: int) -> int:
        """Return the row of a draft after `parent`, adding the row if it is new."""
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
        return _mask((*self.parents,))

    def positions(self, start: int) -> list[int]:
        """Return the positions of the rows if row 0 is at position `start`."""
        return [start + depth for depth in self.depths]

    @property
    def depths(self) -> tuple[int, ...]:
        """Number of ancestors of each row."""
        return _depths((*self.parents,))

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

        They end behind an accepted draft without a confidence, whose depth is unknown to readers.
        """
        tested, sure = list[tuple[float, bool]](), self.confidences
        for row, after in itertools.zip_longest(path, path[1:]):
            rest = [child for child in self._children[row].values() if child != after]
            tested += [(sure[child], False) for child in rest if child in sure]
            if after is None or after not in sure:
                break
            tested.append((sure[after], True))
        return tuple(tested)

    def first_branch(self, row: int) -> tuple[int, ...]:
        """Return the tokens of the first branch after `row`."""
        tokens = []
        while self._children[row]:
            token, row = next(iter(self._children[row].items()))
            tokens.append(token)
        return tuple(tokens)


def verify_strict(
    tree: DraftTree,
    target_probs: Tensor,
    draft_probs: Mapping[int, Tensor],
    uniforms: Uniforms,
    output: int,
) -> tuple[list[int], int]:
    """Verify by recursive rejection: return the accepted path and the token after it.

    The children of a row are tested in order. Child x is accepted with probability min(1, p(x) /
    q(x)). If x is rejected, p becomes max(0, p - q), normalised, and q loses x, because the next
    child was drawn without x. If all are rejected, the token is drawn from the remaining p. The
    output follows the target's distribution p (``[N, V]``, after every row) exactly if the children
    of every row were drawn without replacement from that row's q ``[V]``, and if their number does
    not depend on anything drawn at their depth or deeper.

    Sources: SpecInfer (arXiv 2305.09781), Algorithm 3; without replacement: arXiv 2402.14160.
    """
    path = [0]
    while True:
        left, position = target_probs[path[-1]].double(), output + len(path) - 1
        children = tree.children(path[-1])
        proposal = draft_probs[path[-1]].double().clone() if children else left
        for candidate, (token, child) in enumerate(children.items()):
            proposal = proposal / proposal.sum()
            if uniforms.at("accept", position, candidate) * proposal[token] < left[token]:
                path.append(child)
                break
            residual = (left - proposal).clamp(min=0)
            if residual.sum() > 0:  # zero only by rounding, if both distributions agree
                left = residual / residual.sum()
            proposal = proposal.index_fill(0, upload(token, proposal.device), 0.0)
        else:
            u = [uniforms.at("recover", position)]
            return path, int(pick(left[None], upload(u, left.device, torch.float64)))
