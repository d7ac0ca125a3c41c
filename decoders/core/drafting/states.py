"""Draft by an attached network that reads the target's hidden states of the text.

Letters: N rows, D hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.length import Length
from decoders.core.drafting.tree import DraftTree
from decoders.core.model import DraftCall
from decoders.core.types import CallResult, DraftShape

NewText = tuple[Tensor, Sequence[int]]
"""States ``[N, D]``, and the N tokens picked there."""


class StatesDrafter(Drafter):
    """A drafter that feeds the target's hidden states of the text, each once, to its own layers."""

    hidden = 256

    def __init__(self) -> None:
        """Begin without states."""
        self._unfed: list[Tensor] = []

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Keep the states that predicted the text's new tokens."""
        self._unfed.append(verdict.states)

    def unfed(self, text: Text) -> NewText:
        """Return and forget the new states ``[N, D]``, with the text's last N tokens after them."""
        states = torch.cat(self._unfed) if len(self._unfed) > 1 else self._unfed[0]
        self._unfed = []
        return states, text.tokens[-len(states) :]


class NetworkDrafter:
    """Calls a network for the trees of one answer.

    Attributes:
        length: number of drafts of a tree.
    """

    def __init__(self, request: Request, name: str, shape: DraftShape, length: Length) -> None:
        """Call the adapter `name`, whose drafts have a `shape` up to the limit of `length`."""
        self._request, self._name, self.length = request, name, length
        self._shape = dataclasses.replace(shape, nodes=length.limit, floor=length.floor)

    def tree(
        self, text: Text, new: NewText, most: int
    ) -> Generator[DraftCall, CallResult, DraftTree]:
        """Call the network on new text and return its tree, at most `most` drafts deep."""
        shape, target = self._shape, self._request.target
        uniforms = [
            text.uniforms.at("draw", text.output + level, candidate) if level < most else 0.5
            for level in range(shape.depth if shape.draws else 0)
            for candidate in range(shape.width)
        ]
        sampling, before = self._request.sampling, target.draft_calls
        result = yield target.draft(self._name, *new, shape, sampling, uniforms, max_depth=most)
        num = self.length.worthwhile(result.confidences, target.draft_calls - before)
        return DraftTree.drafted(text.last, result, num)
