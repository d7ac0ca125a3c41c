"""An adapter's slots as inputs of a forward pass: embedded rows, a gate, late slots.

Late slots enter a model above its first layer. A call of one sequence leaves them out of lower
layers. In a batch, or where transformers' modules run, they run there too and are replaced.
Letters: B calls, N rows of the widest call, P of them tokens, S slots, D hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from decoders.core.adapter.embedding import NUM_LEVELS, all_levels, level_index
from decoders.core.adapter.gating import decoder_layers
from decoders.core.adapter.module import SlotAdapter
from decoders.core.device import graph_size
from decoders.core.model import Call
from decoders.core.types import MASKED


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

    def replaced(self, hidden: Tensor) -> Tensor:
        """Return hidden states ``[B, N, D]`` in which the slots have just entered."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        before = flat.index_select(0, self.before)
        slots = self.adapter.entering(self.embedded, self.number, before)
        return flat.index_copy(0, self.rows, slots).view(hidden.shape)

    def enter(self, module: Any) -> RemovableHandle:
        """Let the slots enter transformers' modules, at their layer, until the hook is removed."""
        layer = decoder_layers(module)[self.adapter.config.enter]
        return layer.register_forward_pre_hook(lambda _, args: (self.replaced(args[0]), *args[1:]))


class AttachedAdapter:
    """An adapter attached to a module, in the module's dtype and on its device.

    `deltas` are laid out as the forward pass takes them.
    """

    def __init__(
        self, adapter: SlotAdapter, tokens: Any, deltas: Sequence[Any], num_bytes: int
    ) -> None:
        """Take an adapter on its device, the model's token embedding, and deltas of `num_bytes`."""
        self.config, self._tokens = adapter.config, tokens
        self.module, self.deltas = adapter, deltas
        self._dtype, self._device = tokens.weight.dtype, next(adapter.parameters()).device
        self._tables: dict[tuple[float, float], Tensor] = {}
        numbers = self.module.numbers
        self._numbers = None if numbers is None else numbers.detach().to(self._dtype)
        embedding = sum(parameter.nbytes for parameter in adapter.embedding.parameters())
        self.num_bytes = embedding + num_bytes

    def numbers(
        self, calls: Sequence[Call], firsts: Sequence[int], num_rows: int, *, bucketed: bool | None
    ) -> tuple[dict[str, list[int]], list[tuple[float, float]]]:
        """Return what the host says of a pass's slots: numbers by name, and the slots' warps.

        Of every flat row: its `number` in its branch, its `level` among those of all warps, and the
        `anchor` that is added to it (-1: no slot, no level, none). Of late slots: `LateSlots`.

        Args:
            calls: padded calls of the pass.
            firsts: their first flat rows.
            num_rows: number of all flat rows.
            bucketed: round numbers of late slots up as `graph_size` does; None: no graph.
        """
        numbers, levels, anchors = ([-1] * num_rows for _ in range(3))
        warps = sorted({call.slots.warp for call in calls if call.slots is not None})
        late: list[tuple[int, int, int]] = []  # row, the row before its branch, number
        for begin, call in zip(firsts, calls, strict=True):
            if (slots := call.slots) is None:
                continue
            if self.config.enter and len(call.tokens) < len(slots.sizes):
                raise ValueError(
                    f"adapter {slots.adapter!r} enters at layer {self.config.enter}: its "
                    "slots begin from the token before them, and this call does not feed it; "
                    "use an adapter with enter = 0"
                )
            row, table = begin + len(call.tokens), warps.index(slots.warp) * (NUM_LEVELS + 1)
            levels[row : row + len(slots.uniforms)] = [
                table + level_index(u) for u in slots.uniforms
            ]
            for slot, token in enumerate(slots.slot_tokens):
                levels[row + slot] = levels[row + slot] if token == MASKED else -1
            first = row - len(slots.sizes)
            for branch, size in enumerate(slots.sizes):
                if size and self.config.anchored:
                    anchors[row] = slots.anchors[branch]
                numbers[row : row + size] = range(size)
                late += [(row + number, first + branch, number) for number in range(size)]
                row += size
        fields = {"slots.number": numbers, "slots.level": levels, "slots.anchor": anchors}
        if self.config.enter:
            missing = 0 if bucketed is None else graph_size(len(late), bucketed) - len(late)
            columns = map(list, zip(*late, *late[-1:] * missing, strict=True))
            fields |= zip(("late.rows", "late.before", "late.number"), columns, strict=True)
            if len(calls) == 1 and not bucketed:
                num_tokens = len(calls[0].tokens)
                repeated = [0] * (num_tokens == 1 and bucketed is not None)  # 1 needs another graph
                fields["late.tokens"] = [*range(num_tokens), *repeated]
        for warp in warps:
            self._table(warp)  # made before a graph is captured
        return fields, warps

    def inputs(
        self, numbers: Mapping[str, Tensor], embedded: Tensor, warps: Sequence[tuple[float, float]]
    ) -> dict[str, Tensor]:
        """Return inputs of a pass by name: embedded rows, the slots' gate, and late slots.

        `numbers` are those of `AttachedAdapter.numbers` on the device, `embedded` are the embedded
        tokens ``[B, N, D]``, of slots too that show one.
        """
        number, level, anchor = (numbers[f"slots.{name}"] for name in ("number", "level", "anchor"))
        flat, is_slot = embedded.flatten(0, 1), (number >= 0).unsqueeze(1)
        tables = [self._table(warp) for warp in warps]
        table = torch.cat(tables) if tables[1:] else tables[0]
        slots = table.index_select(0, level.clamp(min=0))
        slots = torch.where(level.unsqueeze(1) >= 0, slots, flat)
        if self._numbers is not None:
            slots = slots + self._numbers.index_select(0, number.clamp(0, len(self._numbers) - 1))
        if self.config.anchored:
            anchored = slots + self._tokens(anchor.clamp(0, len(self._tokens.weight) - 1))
            slots = torch.where(anchor.unsqueeze(1) >= 0, anchored, slots)
        flat = torch.where(is_slot, slots, flat)
        gate = is_slot.float().view(*embedded.shape[:2], 1)
        inputs = {"embeds": flat.view_as(embedded), "gate": gate}
        late = {name: each for name, each in numbers.items() if name.startswith("late.")}
        if late:
            late["late.embedded"] = flat.index_select(0, late["late.rows"])
        return inputs | late

    def late(self, inputs: Mapping[str, Tensor]) -> LateSlots | None:
        """Return the late slots of `inputs`, whose names are ``late.FIELD``, if any."""
        parts: dict[str, Any] = {n[5:]: each for n, each in inputs.items() if n[:5] == "late."}
        return LateSlots(self.module, **parts) if self.config.enter else None

    def _table(self, warp: tuple[float, float]) -> Tensor:
        """Return embedded u by level: `NUM_LEVELS` are enough, as finer bits seldom decide."""
        if warp not in self._tables:
            rows = all_levels().to(self._device)
            warps = torch.tensor([warp], device=self._device).expand(len(rows), 2)
            self._tables[warp] = self.module.embedding(rows, warps).to(self._dtype)
        return self._tables[warp]
