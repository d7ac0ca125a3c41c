"""The inputs of an adapter's slots, and the gated forward of their calls.

Letters: B calls, N rows of the widest call, S slots, D hidden width.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from decoders.core.adapter.embedding import all_levels, level_index
from decoders.core.adapter.gating import Forward, GatedModule
from decoders.core.adapter.low_rank import LowRankWeights
from decoders.core.adapter.mid_layer_slots import LateSlots
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter.weights import Deltas, MergedWeights, UnmergedWeights, graph_size
from decoders.core.model import Call
from decoders.core.types import MASKED, Slots
from decoders.core.upload import upload


class AttachedAdapter:
    """An adapter attached to a module, in the module's dtype and on its device."""

    def __init__(
        self,
        adapter: SlotAdapter,
        gated: GatedModule,
        tokens: nn.Module,
        *,
        dtype: torch.dtype,
        device: torch.device,
        merged: bool,
    ) -> None:
        """Prepare `weights`, merged or not, and the token embedding `tokens`."""
        self.config, self._tokens = adapter.config, tokens
        self.module = adapter.to(device)
        self._dtype, self._device = dtype, device
        self._tables: dict[tuple[float, float], Tensor] = {}
        numbers = self.module.numbers
        self._numbers = None if numbers is None else numbers.detach().to(dtype)
        weights: MergedWeights | UnmergedWeights | LowRankWeights
        with torch.no_grad():
            factors = adapter.factors(torch.float32 if merged else dtype)
            if merged:
                weights = MergedWeights(Deltas(gated, factors), dtype)
            elif gated.side_by_side:
                weights = LowRankWeights(gated, factors)
            else:
                weights = UnmergedWeights(Deltas(gated, factors))
        embedding = sum(parameter.nbytes for parameter in adapter.embedding.parameters())
        self.num_bytes = weights.num_bytes + embedding
        self.weights = weights

    def late_slots(
        self,
        calls: Sequence[Call],
        firsts: Sequence[int],
        inputs: Tensor,
        *,
        bucketed: bool | None = None,
    ) -> LateSlots | None:
        """Return the slots of calls with inputs ``[B, N, D]``, or None unless slots enter late.

        `firsts` are the calls' first flat rows. `bucketed` (None: no graph) pads as `graph_size`
        does, with copies of the last slot; graphs of free sizes leave slots out below.
        """
        if not self.config.enter:
            return None
        rows: list[int] = []
        before: list[int] = []
        number: list[int] = []
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
        num_tokens = len(calls[0].tokens) if len(inputs) == 1 else 0
        tokens = [*range(num_tokens), *[0] * (num_tokens == 1)] if bucketed is False else []
        if bucketed is not None:
            missing = graph_size(len(rows), bucketed) - len(rows)
            rows, before, number = (each + each[-1:] * missing for each in (rows, before, number))
        embedded = inputs.reshape(-1, inputs.shape[-1]).index_select(0, self._indices(rows))
        return LateSlots(
            adapter=self.module,
            rows=self._indices(rows),
            before=self._indices(before),
            number=self._indices(number),
            embedded=embedded,
            tokens=self._indices(tokens) if tokens else None,
            num_tokens=num_tokens,
        )

    def one(self, slots: Slots, embedded: Tensor) -> tuple[Tensor, Forward]:
        """Return inputs ``[1, N, D]`` and gated forward of one call with embedded tokens."""
        rows = self._embed([slots])[None]
        num_tokens = embedded.shape[1]
        if not num_tokens:
            return rows, self.weights.everywhere
        both = torch.cat([embedded, rows], 1)
        return both, self.weights.tail(num_tokens, both.shape[1])

    def merged(
        self,
        calls: Sequence[Call],
        firsts: Sequence[int],
        embedded: Tensor,
        *,
        bucketed: bool = False,
    ) -> tuple[Tensor, Forward]:
        """Return inputs ``[B, N, D]`` and gated forward of padded calls with embedded tokens."""
        inputs, base, slots = self._embedded(calls, firsts, embedded)
        if bucketed:
            gate = self.weights.gate(base, slots, bucketed=True)
            return inputs, self.weights.through(gate)
        return inputs, self.weights.scattered(base, slots)

    def inputs(
        self, calls: Sequence[Call], firsts: Sequence[int], embedded: Tensor, *, bucketed: bool
    ) -> dict[str, Tensor]:
        """Return a graph's inputs for padded calls by name: embedded rows, gate and late slots.

        If `bucketed`, numbers of rows are rounded up to powers of two, so that shapes are few.
        Otherwise, calls that have only slots have no gate.
        """
        rows, base, slots = self._embedded(calls, firsts, embedded)
        late = self.late_slots(calls, firsts, rows, bucketed=bucketed)
        gate = {}
        if bucketed or any(call.tokens for call in calls):
            gate = self.weights.gate(base, slots, bucketed=bucketed)
        by_row = {"gate", "gate.back"} & gate.keys()  # two sizes, both known to a trace
        gate |= {name: gate[name].view(*rows.shape[:2], *gate[name].shape[1:]) for name in by_row}
        return {"embeds": rows, **gate, **({} if late is None else late.tensors)}

    def through(self, inputs: Mapping[str, Tensor]) -> Forward:
        """Return the gated forward of `inputs`."""
        has_gate = any(name.startswith("gate") for name in inputs)
        return self.weights.through(inputs) if has_gate else self.weights.everywhere

    def late(self, inputs: Mapping[str, Tensor]) -> LateSlots | None:
        """Return the late slots of `inputs`, if any."""
        return LateSlots.of(self.module, inputs) if self.config.enter else None

    def _embedded(
        self, calls: Sequence[Call], firsts: Sequence[int], embedded: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs ``[B, N, D]``, and the flat indices of base rows and of slots."""
        flat = embedded.reshape(-1, embedded.shape[-1])
        is_slot = torch.zeros(len(flat), dtype=torch.bool)
        for first, call in zip(firsts, calls, strict=True):
            is_slot[first + len(call.tokens) : first + call.num_rows] = True
        slots = upload(is_slot.nonzero().squeeze(1), self._device)
        base = upload((~is_slot).nonzero().squeeze(1), self._device)
        flat[slots] = self._embed([call.slots for call in calls if call.slots is not None])
        return flat.view(embedded.shape), base, slots

    def _embed(self, parts: Sequence[Slots]) -> Tensor:
        if len(parts) == 1:
            return self._embed_one(parts[0])
        return torch.cat([self._embed_one(part) for part in parts])

    def _embed_one(self, slots: Slots) -> Tensor:
        """Embed u from a fast table of `NUM_LEVELS` levels, as finer bits seldom decide a pick."""
        levels = self._indices([level_index(u) for u in slots.uniforms])
        embedded = self._table(slots.warp).index_select(0, levels)
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

    def _table(self, warp: tuple[float, float]) -> Tensor:
        if warp not in self._tables:
            rows = all_levels().to(self._device)
            warps = torch.tensor([warp], device=self._device).expand(len(rows), 2)
            table: Tensor = self.module.embedding(rows, warps)
            self._tables[warp] = table.to(self._dtype)
        return self._tables[warp]
