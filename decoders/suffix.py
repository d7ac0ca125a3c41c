"""SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975): drafts from counted continuations.

A suffix tree counts the runs of tokens of a text. If the text's last tokens occurred before, the
tokens that followed are proposed, likeliest first: the chance of a path is estimated as the
product of its tokens' shares. A longer match may propose more. Of all matches, the one whose drafts
have the largest sum of chances is verified. A second tree, of earlier answers, is this decoder's
declared memory. Unlike in the paper, a run that occurred once is not stored but read from the text,
so that a tree has few nodes. Drafts are certain, so verification by picks gives AR's tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from decoders.core.decoder import Memory, Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS

_MAX_TOKENS = 1 << 17  # tokens of earlier answers at which the memory is full
_END = -1  # follows each earlier answer


@register("suffix")
@dataclass(frozen=True, kw_only=True)
class SuffixDecoding(DraftAndVerify):
    """Propose usual continuations of the text, here or in earlier answers. Lossless, coupled.

    Args:
        answers: also propose continuations from earlier answers.
        depth: maximum number of tokens to match.
        factor: maximum number of drafts per matched token.
        chance: minimum estimated probability of a draft and all drafts before it.
        branches: verify a tree of drafts; else its likeliest path.
    """

    answers: bool = True
    depth: int = 24
    factor: float = 2.0
    chance: float = 0.1
    branches: bool = True

    by_default = False

    def __post_init__(self) -> None:
        self.demand(1 <= self.depth <= 64, "depth", "from 1 to 64")
        self.demand(self.factor > 0, "factor", "above 0")
        self.demand(0 < self.chance <= 1, "chance", "above 0, up to 1")

    @property
    def remembers(self) -> Literal["answers"] | None:
        """``"answers"``, unless an option leaves earlier answers out."""
        return "answers" if self.answers else None

    def memory(self) -> Memory | None:
        """Make an empty tree of earlier answers."""
        return _Suffixes(self.depth) if self.answers else None

    def drafter(self, request: Request) -> Drafter:
        """Draft from the text and from earlier answers."""
        return _SuffixDrafter(self, request.memory)


class _Node:
    """Count a run of tokens, and hold its continuations as nodes or places in the text."""

    __slots__ = ("count", "next", "total")

    def __init__(self) -> None:
        self.count, self.total = 1, 0
        self.next: dict[int, _Node | int] = {}


class _Suffixes:
    """Hold all runs of tokens of some texts, and the `matches` of the last text's end.

    Matches are the nodes of the text's last 1, 2, ... tokens, as far as these occurred before.
    """

    def __init__(self, depth: int) -> None:
        self._root, self._depth = _Node(), depth
        self.tokens: list[int] = []
        self.matches: list[_Node] = []

    def add(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Add an answer, unless the tree is full."""
        if len(self.tokens) < _MAX_TOKENS:
            self.extend([*tokens, _END])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the last text, or begin another text after each `_END`."""
        for token in tokens:
            self.tokens.append(token)
            nodes, self.matches = (self._root, *self.matches[: self._depth - 1]), []
            for node in nodes if token != _END else ():
                node.total += 1
                child = self._child(node, token)
                if child is None:  # a run that occurred once goes on in the text, from this place
                    node.next[token] = len(self.tokens)
                else:
                    child.count += 1
                    self.matches.append(child)

    def advance(self, matches: Sequence[_Node], token: int) -> list[_Node]:
        """Return the matches of a text that is not in the tree, after one more token."""
        nodes = (self._root, *matches[: self._depth - 1])
        return [child for node in nodes if (child := self._child(node, token)) is not None]

    def followers(self, place: _Node | int) -> Iterator[tuple[int, int, _Node | int]]:
        """Yield the count, the token and the place of each continuation of a place."""
        if not isinstance(place, int):
            for token, after in place.next.items():
                yield 1 if isinstance(after, int) else after.count, token, after
        elif place < len(self.tokens) and self.tokens[place] != _END:
            yield 1, self.tokens[place], place + 1

    def _child(self, node: _Node, token: int) -> _Node | None:
        child = node.next.get(token)
        if isinstance(child, int):
            place, child = child, _Node()
            child.next = {after: end for _, after, end in self.followers(place)}
            child.total, node.next[token] = len(child.next), child
        return child


class _SuffixDrafter(Drafter):
    """Draft from the tree of the text and, if there is one, the tree of earlier answers."""

    def __init__(self, options: SuffixDecoding, memory: Memory | None) -> None:
        self.branches, self._options = options.branches, options
        self._text = _Suffixes(options.depth)
        self._answers = memory if isinstance(memory, _Suffixes) else _Suffixes(0)
        self._matches: list[_Node] = []

    def propose(self, text: Text, most: int) -> DraftTree:
        """Follow the new tokens in both trees, then take the best drafts after any match."""
        here, before, new = self._text, self._answers, text.tokens[len(self._text.tokens) :]
        here.extend(new)
        for token in new:
            self._matches = before.advance(self._matches, token)
        trees = {"text": (here, here.matches), "answers": (before, self._matches)}
        best, score = DraftTree(text.last), 0.0
        for source, (tree, matches) in trees.items():
            for length in range(len(matches), 0, -1):
                size = min(MAX_DRAFTS, max(1, int(self._options.factor * length)))
                if size <= score:  # no chance is above 1
                    break
                drafts = DraftTree(text.last)
                total = self._grow(drafts, tree, matches[length - 1], size, most)
                if total > score:
                    best, score = drafts, total
                    best.sources = [source] * len(best)
        return best

    def _grow(self, drafts: DraftTree, tree: _Suffixes, place: Any, size: int, most: int) -> float:
        """Add up to `size` drafts on paths of up to `most`, and return the sum of their chances."""
        heap: list[tuple[float, int, int, int, _Node | int]] = []  # each parent and token once
        sum_chances, chance, depth, row, paths = 0.0, 1.0, 0, 0, {0: 1.0}
        while True:
            total = 1 if isinstance(place, int) else place.total
            options = [
                (-chance * count / total, row, token, depth + 1, after)
                for count, token, after in (tree.followers(place) if depth < most else ())
                if chance * count >= self._options.chance * total
            ]
            for option in options if self.branches else sorted(options)[:1]:
                heapq.heappush(heap, option)
            if not heap or len(drafts) > size:
                drafts.confidences = {
                    row: paths[row] / paths[drafts.parents[row]] for row in range(1, len(drafts))
                }
                return sum_chances
            negated, parent, token, depth, place = heapq.heappop(heap)
            chance, row = -negated, drafts.draft(token, parent)
            paths[row], sum_chances = chance, sum_chances + chance
