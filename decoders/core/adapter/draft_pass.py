"""`DraftPass`: a pass of a network on hidden states, which drafts for several sequences at once.

Letters: B sequences, N rows, R rows read, D hidden width, H heads, E width of a head, C entries, W
words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.module import HiddenAdapter
from decoders.core.device import graph_size, staged
from decoders.core.model import DraftCall
from decoders.core.types import MAX_DRAFTS, CallResult

Inputs = Mapping[str, Tensor]
Run = Callable[[Any, Inputs, Sequence[Tensor]], Sequence[Tensor]]
"""Runs a `DraftPass`, or a graph of it, on a name, inputs and planes."""


def short_head(head: Any, words: Tensor) -> nn.Linear:
    """Copy the rows of a linear head for frequent `words` (int64 ``[W]``).

    A draft layer proposes no other words. Source: FR-Spec (arXiv 2502.14856).
    """
    has_bias = getattr(head, "bias", None) is not None
    short = nn.Linear(head.weight.shape[1], len(words), has_bias, device="meta")
    rows = {name: getattr(head, name).detach()[words] for name, _ in short.named_parameters()}
    if hasattr(head, "unpacked"):  # a packed weight
        rows["weight"] = head.unpacked(words).detach().contiguous()
    short.load_state_dict(rows, assign=True)
    return short.requires_grad_(False)


class DraftPass:
    """A pass of an adapter on hidden states that takes only tensors, so that a graph holds it."""

    layers: Any
    num_brief = 0
    """Number of first outputs that `draft` reads before the next run, which may overwrite them."""

    def __init__(self, layers: HiddenAdapter, embed: Callable[[Tensor], Tensor], head: Any) -> None:
        """Take an adapter, and the model's embedding and head, a short one for its words."""
        self.layers, self.embed, self.head = layers, embed, head

    @property
    def words(self) -> Tensor | None:
        """Ids of the words that logits cover, or None for the vocabulary."""
        return self.layers.words if self.layers.config.num_words else None

    @property
    def num_bytes(self) -> int:
        """Bytes besides the adapter's weights."""
        return self.head.module.weight.nbytes if self.layers.config.num_words else 0

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
        numbers: for each call its rows' ids, positions, entries and places among the states of all
            calls; then the flat index of its last row, the end of its text and its drafts' depth.
        planes: keys and values ``[B, H, C, E]``.
        seen: the end of the longest text; None: passes read all entries, as graphs need it.
        num_states: the number of states of all calls, filled up for a graph.
    """

    calls: Sequence[DraftCall | None]
    numbers: Sequence[Sequence[int]]
    planes: Sequence[Tensor]
    seen: int | None
    num_states: int = 0

    @classmethod
    def of(cls, calls: Sequence[DraftCall | None], planes: Sequence[Tensor], bucketed: int) -> Self:
        """Lay calls out, padding up to `bucketed` rows to a power of two from 8 on."""
        if not planes:
            return cls(calls, (), planes, None)
        present = [call for call in calls if call is not None]
        max_rows = max([len(call.tokens) for call in present])
        fixed = max_rows <= bucketed
        width = graph_size(max(max_rows, 8 * fixed), fixed)
        scrap = planes[0].shape[2] - 1
        nowhere = scrap - max(MAX_DRAFTS, present[0].shape.depth)
        packed, last_end, states = list[list[int]](), 0, 0
        for number, call in enumerate(calls):
            if call is None:
                none = [0] * (2 * width) + [scrap] * width + [0] * width
                packed.append([*none, number * width, nowhere, 0])
                continue
            tokens, start = call.tokens, call.session.fed.get(call.name, 0)
            end, rest = start + len(tokens), width - len(tokens)
            entries, last_end = range(start, end), max(last_end, end)
            rows = [*tokens, *[0] * rest, *entries, *[0] * rest, *entries, *[scrap] * rest]
            places = [states + row for row in call.rows or range(len(tokens))]
            rows, states = [*rows, *places, *places[:1] * rest], states + len(call.states)
            packed.append([*rows, number * width + len(tokens) - 1, end, call.max_depth])
        if fixed:
            most = max([len(call.states) for call in present])
            states = len(calls) * graph_size(max(most, 8), bucketed=True)
        return cls(calls, packed, planes, None if fixed else last_end, states)

    def packed(self, extra: Tensor | None = None) -> dict[str, Tensor]:
        """Return the inputs of a graph, which takes them apart by `unpack`: states and numbers.

        The numbers, and `extra` ones ``[B, X]`` of eight bytes, are on the host: one copy.
        """
        numbers = torch.tensor(self.numbers)
        if extra is not None:
            numbers = torch.cat((numbers, extra.view(torch.int64)), 1)
        states = [call.states for call in self.calls if call is not None]
        if missing := self.num_states - sum(map(len, states)):  # which no row reads
            states.append(states[0][:1].expand(missing, -1))
        return {"states": torch.cat(states), "packed": staged(numbers, states[0].device)}

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """Inputs of a pass without a graph, see `unpack`."""
        inputs = unpack(self.packed()) if self.planes else {}
        if len({call.max_depth for call in self.calls if call}) < 2:
            inputs.pop("depths", None)
        return inputs

    @cached_property
    def first(self) -> DraftCall:
        """The first call, whose name, shape and sampling all calls share."""
        return next(filter(None, self.calls))

    @property
    def depths(self) -> list[int]:
        """The depth that each call asks for."""
        return [0 if call is None else call.max_depth for call in self.calls]

    def last_states(self) -> Tensor:
        """Return the last state of each text ``[1, B, D]``, and count a call of one row for it."""
        calls = [call for call in self.calls if call is not None]
        for call in calls:
            call.session.drafted(call, num_calls=1, num_rows=1)
        last = [call.states[-1 if call.rows is None else call.rows[-1]] for call in calls]
        return torch.stack(last)[None]

    @cached_property
    def uniforms(self) -> Tensor:
        """Uniforms of draws on the host, float64 ``[B, depth, width]`` (0.5 without a call)."""
        shape = self.first.shape
        none = (0.5,) * (shape.depth * shape.width)
        numbers = [none if call is None else call.uniforms for call in self.calls]
        return torch.tensor(numbers, dtype=torch.float64).view(-1, shape.depth, shape.width)


def unpack(inputs: Inputs, num_extra: int = 0) -> dict[str, Tensor]:
    """Take the inputs of `Texts.packed`, with X extra numbers, apart on their device.

    Returns `states` ``[B, N, D]``, `ids`, `positions` and `entries` ``[B, N]``; `last`, flat
    indices ``[B]`` of the last rows; `ends` ``[B, 1]`` of the texts and `depths` ``[B, 1]`` of
    their drafts, and `extra` numbers ``[B, X]``.
    """
    flat, packed = inputs["states"], inputs["packed"]
    numbers = packed.to(flat.device, non_blocking=True)
    width = (numbers.shape[1] - 3 - num_extra) // 4
    *rows, rest = torch.split(numbers, [width] * 4 + [numbers.shape[1] - 4 * width], 1)
    states = flat.index_select(0, rows[3].flatten()).view(len(numbers), width, -1)
    fields = {"states": states, "ids": rows[0], "positions": rows[1], "entries": rows[2]}
    ends = {"last": rest[:, 0], "ends": rest[:, 1:2], "depths": rest[:, 2:3]}
    return {**fields, **ends, "extra": rest[:, 3:]}


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
