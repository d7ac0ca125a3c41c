"""`DraftPass`: a pass of a network on hidden states, which drafts for several sequences at once.

Letters: B sequences, N rows, R rows read, D hidden width, H heads, E width of a head, C entries, W
words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from decoders.core.adapter.module import HiddenAdapter
from decoders.core.device import graph_size, upload
from decoders.core.model import DraftCall
from decoders.core.products import product
from decoders.core.types import MAX_DRAFTS, CallResult

Inputs = Mapping[str, Tensor]
Function = Callable[[Tensor], Tensor]
"""A model's embedding or head."""
Run = Callable[[Any, Inputs, Sequence[Tensor]], Sequence[Tensor]]
"""Runs a `DraftPass`, or a graph of it, on a name, inputs and planes."""


class ShortHead(nn.Module):
    """A model's head for frequent words only.

    A draft layer proposes no other words. Source: FR-Spec (arXiv 2502.14856).
    """

    words: Tensor
    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: Any, words: Tensor) -> None:
        """Copy the rows of a linear head for `words` (int64 ``[W]``)."""
        super().__init__()
        bias = getattr(head, "bias", None)
        self.register_buffer("words", words)
        self.register_buffer("weight", head.weight.detach()[words])
        self.register_buffer("bias", None if bias is None else bias.detach()[words])

    def forward(self, states: Tensor) -> Tensor:
        """Return logits ``[..., W]`` of states ``[..., D]``."""
        return product(states, self.weight, self.bias)


class DraftPass:
    """A pass of an adapter on hidden states that takes only tensors, so that a graph holds it."""

    layers: Any

    def __init__(self, layers: HiddenAdapter, embed: Function, head: Function) -> None:
        """Take an adapter, and the model's embedding and head."""
        self.layers, self.embed, self.head = layers, embed, head

    @property
    def words(self) -> Tensor | None:
        """Ids of the words that logits cover, or None for the vocabulary."""
        return self.head.words if isinstance(self.head, ShortHead) else None

    @property
    def num_bytes(self) -> int:
        """Bytes besides the adapter's weights."""
        return self.head.weight.nbytes if isinstance(self.head, ShortHead) else 0

    def planes(self, num_rows: int, capacity: int) -> list[Tensor]:
        """Allocate keys and values ``[num_rows, H, C, E]`` of each layer for text and drafts."""
        like = next(self.layers.parameters())
        room = max(self.layers.config.num_slots, MAX_DRAFTS) + 1
        room = capacity + 2 * room  # the last part is for rows of padding and of no call
        shapes = self.layers.plane_shapes
        return [like.new_zeros(num_rows, heads, room, width) for heads, width in shapes]

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the pass, which reads and writes the planes."""
        raise NotImplementedError

    def draft(self, texts: Texts, run: Run, size: int) -> Sequence[CallResult]:
        """Draft after texts, count the work and return a result per call, for `size` ids."""
        raise NotImplementedError


@dataclass(frozen=True)
class Texts:
    """New text of B sequences, laid out as N rows of each, padded with zeros.

    Attributes:
        calls: a draft call for each row of the planes, or None.
        inputs: `states` ``[B, N, D]``, `ids`, `positions` and `entries` ``[B, N]``; `last`, flat
            indices ``[B]`` of the last rows; `ends` ``[B, 1]`` of the texts, and `depths`
            ``[B, 1]`` of their drafts, if they may differ.
        planes: keys and values ``[B, H, C, E]``.
        seen: the end of the longest text; None: passes read all entries, as graphs need it.
    """

    calls: Sequence[DraftCall | None]
    inputs: dict[str, Tensor]
    planes: Sequence[Tensor]
    seen: int | None

    @classmethod
    def of(cls, calls: Sequence[DraftCall | None], planes: Sequence[Tensor], bucketed: int) -> Self:
        """Lay calls out, padding up to `bucketed` rows to a power of two from 8 on."""
        if not planes:
            return cls(calls, {}, planes, None)
        present = [call for call in calls if call is not None]
        max_rows = max(call.num_rows for call in present)
        fixed = max_rows <= bucketed
        width = graph_size(max(max_rows, 8 * fixed), fixed)
        scrap = planes[0].shape[2] - 1
        nowhere = scrap - max(MAX_DRAFTS, present[0].shape.depth)
        packed, last_end = list[list[int]](), 0
        for number, call in enumerate(calls):
            tokens = () if call is None else call.tokens
            start = 0 if call is None else call.session.fed.get(call.name, 0)
            end, rest = start + len(tokens), width - len(tokens)
            places, last_end = range(start, end), max(last_end, end)
            last = number * width + max(0, len(tokens) - 1)
            rows = [*tokens, *[0] * rest, *places, *[0] * rest, *places, *[scrap] * rest]
            depth = 0 if call is None else call.max_depth
            packed.append([*rows, last, end if tokens else nowhere, depth])
        like = present[0].states
        numbers = upload(packed, like.device)
        ids, positions, entries = (numbers[:, n * width : (n + 1) * width] for n in range(3))
        missing = like.new_zeros(1, like.shape[1])
        states = pad_sequence([missing if call is None else call.states for call in calls], True)
        states = F.pad(states, (0, 0, 0, width - states.shape[1]))
        inputs = {"states": states, "ids": ids, "positions": positions, "entries": entries}
        inputs |= {"last": numbers[:, -3], "ends": numbers[:, -2:-1]}
        if fixed or len({call.max_depth for call in present}) > 1:
            inputs["depths"] = numbers[:, -1:]
        return cls(calls, inputs, planes, None if fixed else last_end)

    @property
    def first(self) -> DraftCall:
        """The first call, whose name, shape and sampling all calls share."""
        return next(call for call in self.calls if call is not None)

    @property
    def depths(self) -> list[int]:
        """The depth that each call asks for."""
        return [0 if call is None else call.max_depth for call in self.calls]

    def last_states(self) -> Tensor:
        """Return the last state of each text ``[1, B, D]``, and count a call of one row for it."""
        calls = [call for call in self.calls if call is not None]
        for call in calls:
            call.session.drafted(call, num_calls=1, num_rows=1)
        return torch.stack([call.states[-1] for call in calls])[None]

    def uniforms(self, *shape: int) -> Tensor:
        """Upload the calls' uniforms as float64 ``[B, …]`` (0.5 where there is no call)."""
        none = (0.5,) * math.prod(shape)
        numbers = [none if call is None else call.uniforms for call in self.calls]
        device = self.first.states.device
        return upload(numbers, device, torch.float64).view(len(self.calls), *shape)


def write(planes: Sequence[Tensor], entries: Tensor, new: Sequence[Tensor]) -> None:
    """Write keys and values ``[B, H, N, E]`` to entries ``[B, N]`` of their planes."""
    num_rows, num_heads, capacity, _ = planes[0].shape
    first = torch.arange(num_rows * num_heads, device=entries.device).view(num_rows, -1, 1)
    index = (first * capacity + entries.unsqueeze(1)).flatten()
    for plane, each in zip(planes, new, strict=True):
        plane.view(-1, plane.shape[-1]).index_copy_(0, index, each.flatten(0, 2))


def normed(rows: Tensor) -> Tensor:
    """Scale each row to a root mean square of 1."""
    return F.rms_norm(rows, rows.shape[-1:], eps=1e-6)
