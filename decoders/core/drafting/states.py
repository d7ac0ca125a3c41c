"""Define drafters whose networks read the target's hidden states of the text.

Letters: N rows, D hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.device import upload
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.length import Length
from decoders.core.drafting.tree import DraftTree
from decoders.core.masks import ROOT
from decoders.core.model import DraftCall
from decoders.core.types import CallResult, DraftShape


class StatesDrafter(Drafter):
    """Collect hidden states of the text for layers, or the last one for heads (`hidden` is 1)."""

    hidden = 256

    def __init__(self, length: Length) -> None:
        """Begin without states."""
        self._unfed: list[tuple[Tensor, Sequence[int]]] = []
        self._length = length

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Keep the states that predicted the text's new tokens, and learn acceptance."""
        hidden = verdict.result.hidden
        assert hidden is not None
        rows = range(len(hidden)) if verdict.is_prompt else verdict.path
        before, rows = ([], rows[-1:]) if self.hidden == 1 else (self._unfed, rows)
        self._unfed = [*before, (hidden, rows)]
        self._length.observe(verdict.tree, verdict.path)

    def unfed(self, text: Text) -> dict[str, Any]:
        """Return and forget the unfed states ``[R, D]``, their N `rows`, and the next tokens.

        States of several layers are ``[R, L D]``.
        """
        pairs, self._unfed = self._unfed, []
        states, rows = pairs[0]
        if len(pairs) > 1:  # another drafter drafted in the meantime
            parts = [each.index_select(0, upload(new, each.device)) for each, new in pairs]
            states, rows = torch.cat(parts), range(sum(map(len, parts)))
        return {"states": states.flatten(1), "rows": rows, "tokens": text.tokens[-len(rows) :]}


class TreeDrafter(StatesDrafter):
    """Draft a tree, or a chain, by a call of an attached network."""

    def __init__(
        self,
        request: Request,
        name: str,
        shape: DraftShape,
        length: Length,
        *,
        hidden: int = 256,
        branches: bool = True,
    ) -> None:
        """Draft with the network `name` in a `shape`, with as many nodes as `length` allows."""
        super().__init__(length)
        self.branches = branches
        self.hidden, self._request, self._name = hidden, request, name
        self._shape = dataclasses.replace(shape, nodes=length.limit, floor=length.floor)

    def draft(self, text: Text, most: int) -> Generator[DraftCall, CallResult, DraftTree]:
        """Make a tree after the last token, whose drafts are drawn if verified by rejection."""
        if most < 1:  # the answer's last call
            return DraftTree(text.last)
        shape, target = self._shape, self._request.target
        uniforms = [
            text.uniforms.at("draw", text.output + level, candidate) if level < most else 0.5
            for level in range(shape.depth if shape.draws else 0)
            for candidate in range(shape.width)
        ]
        about = {**self.unfed(text), "shape": shape, "sampling": self._request.sampling}
        before = target.draft_calls
        result = yield target.draft(self._name, **about, uniforms=uniforms, max_depth=most)
        num = self._length.worthwhile(result.confidences, target.draft_calls - before)
        return _drafted_tree(text.last, result, num)


def _drafted_tree(last: int, result: CallResult, limit: int | None = None) -> DraftTree:
    """Make the tree of the first `limit` drafts of a draft call after the last token."""
    tokens, parents, rows, seen = [last], [ROOT], list[int](), dict[tuple[int, int], int]()
    paths, confidences, laws = result.confidences, dict[int, float](), dict[int, Tensor]()
    drafts = [*zip(result.picks, result.parents, strict=True)][:limit]
    for number, (token, parent) in enumerate(drafts):
        before = rows[parent] if parent >= 0 else 0
        rows.append(seen.setdefault((before, token), len(tokens)))
        if rows[-1] == len(tokens):
            tokens.append(token)
            parents.append(before)
        confidences[rows[-1]] = paths[number] / (paths[parent] if parent >= 0 else 1.0)
        if result.probs is not None:
            laws[before] = result.probs[number]
    tree = DraftTree.of(tokens, parents)
    tree.probs, tree.confidences = laws, confidences
    return tree
