"""A tree of drafts in one call: its rows, its mask, its shape, and how it is verified.

Row 0 is the last token of the answer; every other row continues its parent, sees its ancestors
alone and stands as far behind the committed text as it is deep.

Sources: SpecInfer (arXiv 2305.09781), tree masks and multi-step speculative sampling; drawing
without replacement: Jeon et al. 2024 (arXiv 2402.14160). Shape: the likeliest paths first, as in
EAGLE-2 (arXiv 2406.16858). Letters: N rows, D depths, V vocabulary.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from decoders.core import masks
from decoders.core.sampling import Uniforms, pick, warp
from decoders.core.types import Sampling
from decoders.core.upload import upload


class DraftTree:
    """The rows of a verifying call, parents before children.

    Attributes:
        tokens: of the rows.
        parents: row of each row's parent, `masks.ROOT` for row 0.
        probs: distributions ``[V]`` that a row's drafts were drawn from, by row; drafts of other
            rows are certain. Read where drafts are verified by rejection.
        read: rows that the call reads; None: all. Drafts are always among them, and come first.
        first: tokens that drafting committed: they are final, and part of the text.
        sources: the drafter of every row, where several drafted; or nothing.
    """

    probs: Mapping[int, Tensor] = {}
    read: Sequence[int] | None = None
    first: tuple[int, ...] = ()
    sources: Sequence[str] = ()

    def __init__(self, last: int) -> None:
        """Begin without a draft, behind the `last` token of the answer."""
        self.tokens, self.parents = [last], [masks.ROOT]
        self._children: list[dict[int, int]] = [{}]

    @classmethod
    def chain(cls, last: int, drafts: Sequence[int]) -> Self:
        """Make a tree of one path behind the last token."""
        tree = cls(last)
        tree.add(drafts)
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def chain_probs(self) -> list[Tensor] | None:
        """The distributions of a chain's drafts in order; None where they are certain."""
        return [self.probs[row] for row in range(len(self) - 1)] if self.probs else None

    @property
    def num_drafts(self) -> int:
        """Number of rows that are drafts."""
        return sum(map(len, self._children))

    def append(self, token: int, parent: int) -> int:
        """Add a row that continues `parent` and is no draft: nothing follows a path into it."""
        self.tokens.append(token)
        self.parents.append(parent)
        self._children.append({})
        return len(self.tokens) - 1

    def draft(self, token: int, parent: int) -> int:
        """Return the row of a draft after `parent`, added where it is new."""
        row = self._children[parent].get(token)
        if row is None:
            row = self._children[parent][token] = self.append(token, parent)
        return row

    def add(self, continuation: Sequence[int]) -> None:
        """Add drafts one after another from row 0 on; those that begin alike share rows."""
        row = 0
        for token in continuation:
            row = self.draft(token, row)

    def children(self, row: int) -> dict[int, int]:
        """Return rows of the drafts after a row by their tokens, in the order they were made in."""
        return self._children[row]

    @property
    def mask(self) -> Tensor:
        """The mask of the call, bool ``[N, N]``: row i sees row j."""
        return masks.tree(self.parents)

    def positions(self, start: int) -> list[int]:
        """Return the positions of the rows where row 0 stands at `start`."""
        return [start + depth for depth in self.depths]

    @property
    def depths(self) -> tuple[int, ...]:
        """Number of rows above each row."""
        return masks.depths(self.parents)

    @property
    def depth(self) -> int:
        """Drafts on the longest path; rows that are no drafts come after them."""
        return max(self.depths[: self.num_drafts + 1])

    def path(self, picks: Sequence[int]) -> list[int]:
        """Return the rows from the first on that the target's picks follow."""
        rows = [0]
        while (child := self._children[rows[-1]].get(picks[rows[-1]])) is not None:
            rows.append(child)
        return rows

    def below(self, row: int) -> tuple[int, ...]:
        """Return the tokens of the first drafts that go on after `row`."""
        tokens = []
        while self._children[row]:
            token, row = next(iter(self._children[row].items()))
            tokens.append(token)
        return tuple(tokens)


def likeliest_paths(chances: Sequence[Sequence[float]], most: int) -> list[tuple[int, int, int]]:
    """Shape a tree by its likeliest rows, where candidates depend on the depth alone.

    Args:
        chances: for each depth the chances of its candidates, descending; a row's chance is the
            product of those on its path. A candidate without any is left out.
        most: drafts at most.

    Returns:
        ``(parent row, depth, candidate)`` of rows 1, 2, …, parents first, the depth counted from 0.
    """
    shape: list[tuple[int, int, int]] = []
    # chance (negated), order of entry, chance of the parent, parent row, depth, candidate
    heap: list[tuple[float, int, float, int, int, int]] = []
    entered = 0

    def offer(chance: float, parent: int, depth: int, candidate: int) -> None:
        nonlocal entered
        if depth < len(chances) and candidate < len(chances[depth]):
            own = chance * chances[depth][candidate]
            if own > 0:
                heapq.heappush(heap, (-own, entered, chance, parent, depth, candidate))
                entered += 1

    offer(1.0, 0, 0, 0)
    while heap and len(shape) < most:
        own, _, before, parent, depth, candidate = heapq.heappop(heap)
        shape.append((parent, depth, candidate))
        offer(-own, len(shape), depth + 1, 0)
        offer(before, parent, depth, candidate + 1)
    return shape


def likeliest_candidates(
    logits: Tensor, sampling: Sampling, most: int
) -> tuple[Tensor, list[list[float]], list[list[int]]]:
    """Return a drafter's distributions ``[R, V]``, and each one's likeliest tokens.

    At temperature 0 they are not warped: how sure a drafter is of its candidates shapes the tree.

    Returns:
        The distributions, and of the `most` likeliest tokens the chances and the ids.
    """
    for ask in (logits.device.type == "cpu", True):  # again, if top-p left rows open
        probs = torch.softmax(logits, -1) if sampling.greedy else warp(logits, sampling, ask=ask)
        best = probs.topk(min(most, probs.shape[-1]), -1)
        chances, ids = torch.stack((best.values.double(), best.indices.double())).tolist()
        if ask or all(row[0] == row[0] for row in chances):
            break
    return probs, chances, [list(map(int, row)) for row in ids]


def draw_candidates(probs: Tensor, most: int, uniforms: Uniforms, output: int) -> list[int]:
    """Draw up to `most` tokens without replacement from q ``[V]``, each by a uniform of its own."""
    left, drawn = probs.double().clone(), []
    for candidate in range(most):
        if not left.sum() > 0:
            break
        u = torch.tensor(
            [uniforms.at("draw", output, candidate)], dtype=torch.float64, device=left.device
        )
        token = int(pick(left[None], u))
        drawn.append(token)
        left[token] = 0.0
    return drawn


def verify_strict(
    tree: DraftTree,
    target_probs: Tensor,
    draft_probs: Mapping[int, Tensor],
    uniforms: Uniforms,
    output: int,
) -> tuple[list[int], int]:
    """Verify by recursive rejection: the path that stands, and the token after it.

    The children of a row are tested in their order. Child x stands with probability min(1, p(x) /
    q(x)); where it falls p becomes max(0, p - q), normalised, and q loses x, as whoever drew the
    next child had to do without it. Where all fell the token is drawn from what is left of p. The
    output follows the target's distribution p (``[N, V]``, after every row) exactly if the children
    of every row were drawn by `draw_candidates` from the q ``[V]`` of that row, and how many a row
    has was decided by nothing that was drawn at their depth or deeper.

    Sources: SpecInfer (arXiv 2305.09781), Algorithm 3; without replacement: arXiv 2402.14160.
    """
    path = [0]
    while True:
        left, position = target_probs[path[-1]].double(), output + len(path) - 1
        children = tree.children(path[-1])
        offered = draft_probs[path[-1]].double().clone() if children else left
        for candidate, (token, child) in enumerate(children.items()):
            offered = offered / offered.sum()
            if uniforms.at("accept", position, candidate) * offered[token] < left[token]:
                path.append(child)
                break
            residual = (left - offered).clamp(min=0)
            if residual.sum() > 0:  # else by rounding alone: both distributions agree
                left = residual / residual.sum()
            offered = offered.index_fill(0, upload(token, offered.device), 0.0)
        else:
            u = [uniforms.at("recover", position)]
            return path, int(pick(left[None], upload(u, left.device, torch.float64)))
