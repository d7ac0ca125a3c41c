"""An adapter's slots as inputs of a forward pass: embedded rows, a gate, late slots.

Late slots enter a model above its first layer. A call of one sequence leaves them out of lower
layers. In a batch, or where transformers' modules run, they run there too and are replaced.
Letters: B calls, N rows of the widest call, P of them tokens, S slots, D hidden width.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from decoders.core.adapter.embedding import all_levels, level_index
from decoders.core.adapter.gating import decoder_layers
from decoders.core.adapter.module import SlotAdapter
from decoders.core.device import graph_size, upload
from decoders.core.model import Call
from decoders.core.types import MASKED, Slots


@dataclass(frozen=True, slots=True)
class LateSlots:
    """Slots of a call that enter above the first layer, embedded as ``[S, D]``.

    `rows` ``[S]`` are the slots' flat rows, `before` the rows of the tokens before their branches,
    `number` the slots' numbers in the branch. A call of one sequence may name its `tokens` ``[P]``,
    which are its first rows; the last one may be repeated.
    """

    adapter: SlotAdapter
    rows: Tensor
    before: Tensor
    number: Tensor
    embedded: Tensor
    tokens: Tensor | None = None

    @classmethod
    def of(cls, adapter: SlotAdapter, tensors: Mapping[str, Tensor]) -> LateSlots:
        """Take the fields from tensors named ``late.FIELD``."""
        parts: dict[str, Any] = {
            name[5:]: each for name, each in tensors.items() if name.startswith("late.")
        }
        return cls(adapter, **parts)

    @property
    def layer(self) -> int:
        """Decoder layer at which the slots enter."""
        return self.adapter.config.enter

    def entering(self, hidden: Tensor) -> Tensor:
        """Return hidden states ``[S, D]`` of the slots, from those of token rows ``[.., D]``."""
        before = hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.before)
        return self.adapter.entering(self.embedded, self.number, before)

    def joined(self, hidden: Tensor, num_rows: int) -> Tensor:
        """Return all rows' hidden states ``[1, N, D]`` from token rows' ``[1, P, D]``."""
        assert self.tokens is not None
        both = hidden.new_zeros(1, num_rows, hidden.shape[-1]).index_copy(1, self.tokens, hidden)
        return both.index_copy(1, self.rows, self.entering(hidden)[None])

    def replaced(self, hidden: Tensor) -> Tensor:
        """Return hidden states ``[B, N, D]`` in which the slots have just entered."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        return flat.index_copy(0, self.rows, self.entering(hidden)).view(hidden.shape)


@contextmanager
def entering(module: Any, late: LateSlots | None) -> Iterator[None]:
    """Let late slots enter transformers' modules inside the context, at their layer."""
    if late is None:
        yield
        return

    def enter(_layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (late.replaced(args[0]), *args[1:])

    with decoder_layers(module)[late.layer].register_forward_pre_hook(enter):
        yield


class AttachedAdapter:
    """An adapter attached to a module, in the module's dtype and on its device.

    `deltas` are laid out as the forward pass takes them.
    """

    def __init__(
        self,
        adapter: SlotAdapter,
        tokens: nn.Module,
        deltas: Sequence[Any],
        *,
        dtype: torch.dtype,
        num_bytes: int,
    ) -> None:
        """Take an adapter on its device, the model's token embedding, and deltas of `num_bytes`."""
        self.config, self._tokens = adapter.config, tokens
        self.module, self.deltas = adapter, deltas
        self._dtype, self._device = dtype, next(adapter.parameters()).device
        self._tables: dict[tuple[float, float], Tensor] = {}
        numbers = self.module.numbers
        self._numbers = None if numbers is None else numbers.detach().to(dtype)
        embedding = sum(parameter.nbytes for parameter in adapter.embedding.parameters())
        self.num_bytes = embedding + num_bytes

    def inputs(
        self,
        calls: Sequence[Call],
        firsts: Sequence[int],
        embedded: Tensor,
        *,
        bucketed: bool | None,
    ) -> dict[str, Tensor]:
        """Return inputs of a pass by name: embedded rows, the slots' gate, and late slots.

        Args:
            calls: padded calls of the pass.
            firsts: their first flat rows.
            embedded: embedded tokens ``[B, N, D]``, with any states in place of slots.
            bucketed: round numbers of late slots up as `graph_size` does; None: no graph.
        """
        flat, gate = embedded.flatten(0, 1), torch.zeros(embedded.shape[:2]).unsqueeze(2)
        is_slot = gate.view(-1)
        for first, call in zip(firsts, calls, strict=True):
            is_slot[first + len(call.tokens) : first + call.num_rows] = 1
        slots = upload(is_slot.nonzero().squeeze(1), self._device)
        parts = [self._embed(call.slots) for call in calls if call.slots is not None]
        flat[slots] = torch.cat(parts) if parts[1:] else parts[0]
        inputs = {"embeds": embedded, "gate": upload(gate, self._device)}
        if self.config.enter:
            inputs |= self._late_slots(calls, firsts, embedded, bucketed)
        return inputs

    def late(self, inputs: Mapping[str, Tensor]) -> LateSlots | None:
        """Return the late slots of `inputs`, if any."""
        return LateSlots.of(self.module, inputs) if self.config.enter else None

    def _late_slots(
        self, calls: Sequence[Call], firsts: Sequence[int], inputs: Tensor, bucketed: bool | None
    ) -> dict[str, Tensor]:
        rows, before, number = list[int](), list[int](), list[int]()
        for begin, call in zip(firsts, calls, strict=True):
            if call.slots is None:
                continue
            first, sizes = begin + len(call.tokens), call.slots.sizes
            if len(call.tokens) < len(sizes):
                raise ValueError(
                    f"adapter {call.slots.adapter!r} enters at layer {self.config.enter}: its "
                    "slots begin from the token before them, and this call does not feed it; "
                    "use an adapter with enter = 0"
                )
            rows += range(first, first + sum(sizes))
            for branch, size in enumerate(sizes):  # branches follow the last tokens, in order
                before += [first - len(sizes) + branch] * size
                number += range(size)
        missing = 0 if bucketed is None else graph_size(len(rows), bucketed) - len(rows)
        numbers = {"rows": rows, "before": before, "number": number}
        late = {
            f"late.{name}": self._indices(each + each[-1:] * missing)
            for name, each in numbers.items()
        }
        late["late.embedded"] = inputs.flatten(0, 1).index_select(0, late["late.rows"])
        if len(calls) == 1 and not bucketed:
            num_tokens = len(calls[0].tokens)
            repeated = [0] * (num_tokens == 1 and bucketed is not None)  # 1 needs another graph
            late["late.tokens"] = self._indices([*range(num_tokens), *repeated])
        return late

    def _embed(self, slots: Slots) -> Tensor:
        """Embed u from a fast table of `NUM_LEVELS` levels, as finer bits seldom decide a pick."""
        if slots.warp not in self._tables:
            rows = all_levels().to(self._device)
            warps = torch.tensor([slots.warp], device=self._device).expand(len(rows), 2)
            self._tables[slots.warp] = self.module.embedding(rows, warps).to(self._dtype)
        levels = self._indices([level_index(u) for u in slots.uniforms])
        embedded = self._tables[slots.warp].index_select(0, levels)
        firsts = list(itertools.accumulate(slots.sizes, initial=0))[:-1]
        if showing := [slot for slot, token in enumerate(slots.slot_tokens) if token != MASKED]:
            tokens = self._tokens(self._indices([slots.slot_tokens[slot] for slot in showing]))
            embedded.index_copy_(0, self._indices(showing), tokens)
        if self._numbers is not None:
            last = len(self._numbers) - 1
            numbers = [min(n, last) for size in slots.sizes for n in range(size)]
            embedded += self._numbers.index_select(0, self._indices(numbers))
        if self.config.anchored:
            open_branches = [m for m, size in enumerate(slots.sizes) if size]
            anchors = self._tokens(self._indices([slots.anchors[m] for m in open_branches]))
            embedded.index_add_(0, self._indices([firsts[m] for m in open_branches]), anchors)
        return embedded

    def _indices(self, numbers: list[int]) -> Tensor:
        return upload(numbers, self._device)
