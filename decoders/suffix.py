"""SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975): drafts from all that followed before.

A suffix tree holds every run of tokens of the text with its number of occurrences. Wherever the
text's last tokens occurred before, their continuations form a tree, whose likeliest tokens are
drafts: the estimated chance of a path is the product of its tokens' shares at each node. A longer
match may propose more drafts. Of all matches, the one with the largest sum of chances is verified.
A second tree holds earlier answers, which are the declared memory of this decoder.

Unlike the paper, a path that occurred once is not stored but read from the text, so a tree has few
nodes more than tokens; and the tree of answers forgets the oldest half when it is full.
Drafts are certain, not drawn: verification by picks gives AR's tokens at any temperature.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from decoders.core.decoder import Memory, Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS

_MAX_DEPTH = 64
_MAX_TOKENS = 1 << 17
"""Tokens of earlier answers that a memory holds; beyond, it forgets the oldest half."""
_END = -1
"""Stands between the texts of a tree."""


@register("suffix")
@dataclass(frozen=True, kw_only=True)
class SuffixDecoding(DraftAndVerify):
    """Propose what usually followed the last tokens, here or in earlier answers. Lossless, coupled.

    Args:
        answers: also propose what followed in earlier answers of the run.
        depth: most tokens to match.
        factor: drafts per matched token.
        chance: least estimated chance that a draft and all before it are right.
        branches: verify a tree of drafts; else the likeliest path of it.
    """

    answers: bool = True
    depth: int = 24
    factor: float = 1.0
    chance: float = 0.1
    branches: bool = True

    by_default = False

    def __post_init__(self) -> None:
        self.demand(1 <= self.depth <= _MAX_DEPTH, "depth", f"from 1 to {_MAX_DEPTH}")
        self.demand(self.factor > 0, "factor", "above 0")
        self.demand(0 < self.chance <= 1, "chance", "above 0, up to 1")

    @property
    def remembers(self) -> Literal["answers"] | None:
        """Earlier answers, unless an option leaves them out."""
        return "answers" if self.answers else None

    def memory(self) -> Memory | None:
        """Make an empty tree of earlier answers."""
        return _Answers(self.depth) if self.answers else None

    def drafter(self, request: Request) -> Drafter:
        """Draft from the text's tree, and from that of earlier answers."""
        return _SuffixDrafter(self, request.memory)


class _Node:
    """A run of tokens with its number of occurrences, and what follows: nodes, or places of text.

    A run that occurred once has no node: it goes on in the tree's text from its place.
    """

    __slots__ = ("count", "next")

    def __init__(self) -> None:
        self.count = 1
        self.next: dict[int, _Node | int] = {}


class _SuffixTree:
    """All runs of tokens of some texts, and the `matches` of the last text's end.

    Matches are the nodes of the text's last 1, 2, ... tokens, as far as these occurred before.
    """

    def __init__(self, depth: int, tokens: Sequence[int] = ()) -> None:
        self.root, self.depth = _Node(), depth
        self.tokens: list[int] = []
        self.matches: list[_Node] = []
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the last text, or begin another text after each `_END`."""
        for token in tokens:
            self.tokens.append(token)
            nodes, self.matches = (self.root, *self.matches[: self.depth - 1]), []
            for node in nodes if token != _END else ():
                child = self._child(node, token)
                if child is None:
                    node.next[token] = len(self.tokens)
                else:
                    child.count += 1
                    self.matches.append(child)

    def advance(self, matches: Sequence[_Node], token: int) -> list[_Node]:
        """Return the matches of a text that is not in the tree, after one more token."""
        nodes = (self.root, *matches[: self.depth - 1])
        return [child for node in nodes if (child := self._child(node, token)) is not None]

    def followers(self, place: _Node | int) -> Iterator[tuple[float, int, _Node | int]]:
        """Yield the share, the token and the place of everything that followed a place."""
        if isinstance(place, int):
            if place < len(self.tokens) and self.tokens[place] != _END:
                yield 1.0, self.tokens[place], place + 1
            return
        counts = [1 if isinstance(after, int) else after.count for after in place.next.values()]
        total = sum(counts)
        for count, (token, after) in zip(counts, place.next.items(), strict=True):
            yield count / total, token, after

    def _child(self, node: _Node, token: int) -> _Node | None:
        """Return the node after a node, making it if the run occurred once."""
        child = node.next.get(token)
        if isinstance(child, int):
            place, child = child, _Node()
            child.next = {after: end for _, after, end in self.followers(place)}
            node.next[token] = child
        return child


class _Answers:
    """The memory: a tree of earlier answers, which forgets the oldest half when it is full."""

    def __init__(self, depth: int) -> None:
        self.tree = _SuffixTree(depth)

    def add(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Add an answer to the tree, or to a new tree, as answers in progress use the old one."""
        if len(self.tree.tokens) > _MAX_TOKENS:
            kept = self.tree.tokens[self.tree.tokens.index(_END, _MAX_TOKENS // 2) + 1 :]
            self.tree = _SuffixTree(self.tree.depth, kept)
        self.tree.extend([*tokens, _END])


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Drafts after a match, each with the row before it, the sum of their chances, their tree."""

    score: float = 0.0
    rows: Sequence[tuple[int, int]] = ()
    source: str = ""


class _SuffixDrafter(Drafter):
    """Drafts from the tree of the text and, if there is one, that of earlier answers."""

    def __init__(self, options: SuffixDecoding, memory: Memory | None) -> None:
        assert memory is None or isinstance(memory, _Answers)
        self.branches, self._options = options.branches, options
        self._text = _SuffixTree(options.depth)
        self._answers = None if memory is None else memory.tree
        self._matches: list[_Node] = []

    def propose(self, text: Text, most: int) -> DraftTree:
        """Follow the new tokens in both trees, then take the best drafts after any match."""
        new = text.tokens[len(self._text.tokens) :]
        self._text.extend(new)
        best = self._better(_Candidate(source="text"), self._text, self._text.matches, most)
        if self._answers is not None:
            for token in new:
                self._matches = self._answers.advance(self._matches, token)
            best = self._better(best, self._answers, self._matches, most)
        tree = DraftTree(text.last)
        for token, parent in best.rows:
            tree.draft(token, parent)
        if self._answers is not None:
            tree.sources = [best.source] * len(tree)
        return tree

    def _better(
        self, best: _Candidate, tree: _SuffixTree, matches: Sequence[_Node], most: int
    ) -> _Candidate:
        """Return the best drafts so far, or better ones after one of a tree's matches."""
        source = "text" if tree is self._text else "answers"
        for length in range(len(matches), 0, -1):
            size = min(MAX_DRAFTS, max(1, int(self._options.factor * length)))
            if size <= best.score:  # no chance is above 1
                break
            score, rows = self._grow(tree, matches[length - 1], size, most)
            if score > best.score:
                best = _Candidate(score, rows, source)
        return best

    def _grow(
        self, tree: _SuffixTree, match: _Node, size: int, most: int
    ) -> tuple[float, list[tuple[int, int]]]:
        """Grow up to `size` drafts after a match, likeliest first, on paths of up to `most`."""
        # the count keeps equally likely drafts in the order of their first occurrence
        heap: list[tuple[float, int, int, int, int, _Node | int]] = []
        count, rows, score = itertools.count(), list[tuple[int, int]](), 0.0

        def offer(chance: float, depth: int, row: int, place: _Node | int) -> None:
            options = [
                (-chance * share, next(count), depth, row, token, after)
                for share, token, after in tree.followers(place)
                if chance * share >= self._options.chance
            ]
            for option in options if self.branches else sorted(options)[:1]:
                heapq.heappush(heap, option)

        offer(1.0, 1, 0, match)
        while heap and len(rows) < size and most > 0:
            chance, _, depth, row, token, place = heapq.heappop(heap)
            score -= chance
            rows.append((token, row))
            if depth < most:
                offer(-chance, depth + 1, len(rows), place)
        return score, rows
