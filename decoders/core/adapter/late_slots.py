"""Slots that enter a model above its first layer.

A call of one sequence leaves the slots out of lower layers. In a batch, or where transformers'
modules run, the slots run there too and are replaced.
Letters: N rows of a call, P of them tokens, S slots, T cache entries read, D hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from decoders.core.adapter.gating import decoder_layers
from decoders.core.adapter.module import SlotAdapter

_PARTS = ("rows", "before", "number", "embedded", "tokens")


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
        """Restore late slots from `tensors`."""
        parts: dict[str, Any] = {part: tensors.get(f"late.{part}") for part in _PARTS}
        return cls(adapter, **parts)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        parts = {f"late.{part}": getattr(self, part) for part in _PARTS}
        return {name: part for name, part in parts.items() if part is not None}

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


class LateSlotHooks:
    """Hooks that insert the late slots of the running call into transformers' modules."""

    def __init__(self, module: Any) -> None:
        """Add no hook before `open`."""
        self._module = module
        self._open_layers: set[int] = set()
        self.running: LateSlots | None = None

    def open(self, layer: int) -> None:
        """Let slots enter at a decoder layer from now on (0: with the tokens)."""
        if layer and layer not in self._open_layers:
            decoder_layers(self._module)[layer].register_forward_pre_hook(self._at(layer))
            self._open_layers.add(layer)

    def _at(self, layer: int) -> Any:
        def hook(_layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            late = self.running
            if late is None or late.layer != layer:
                return None
            return (late.replaced(args[0]), *args[1:])

        return hook
