"""Hooks that let slots enter a module above its first layer.

A call of one sequence leaves the slots out of lower layers if these are called with known
arguments. Else the slots run there too and are replaced.
Letters: N rows of a call, P of them tokens, S slots, T cache entries read, D hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from decoders.core.adapter.gating import decoder_layers
from decoders.core.adapter.module import SlotAdapter

_KEYWORDS = {
    *("attention_mask", "position_embeddings", "position_ids", "past_key_values", "use_cache"),
    *("cache_position", "output_attentions"),
}
"""Arguments of a decoder layer, besides hidden states, that can be cut to fewer rows."""
_PARTS = ("rows", "before", "number", "embedded", "tokens")


@dataclass(frozen=True, slots=True)
class LateSlots:
    """Slots of a call that enter above the first layer, embedded as ``[S, D]``.

    `rows` ``[S]`` are the slots' flat rows, `before` the rows of the tokens before their branches,
    `number` the slots' numbers in the branch. A call of one sequence has its tokens in the first
    rows: `num_tokens`, or in a graph `tokens` ``[P]``, whose last row may be repeated.
    """

    adapter: SlotAdapter
    rows: Tensor
    before: Tensor
    number: Tensor
    embedded: Tensor
    tokens: Tensor | None = None
    num_tokens: int = 0

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

    def slots(self, hidden: Tensor) -> Tensor:
        """Return hidden states ``[S, D]`` of the slots, from those of token rows ``[.., D]``."""
        before = hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.before)
        return self.adapter.entering(self.embedded, self.number, before)

    def without(self, part: Tensor, dim: int, num_rows: int) -> Tensor:
        """Return the token rows of a tensor that has N = `num_rows` rows along `dim`."""
        assert part.shape[dim] == num_rows, "a trace would let the two sizes differ"
        if self.tokens is None:
            return part.narrow(dim, 0, self.num_tokens)
        return part.index_select(dim, self.tokens)

    def joined(self, hidden: Tensor, num_rows: int) -> Tensor:
        """Return all rows' hidden states ``[1, N, D]`` from token rows' ``[1, P, D]``."""
        slots = self.slots(hidden)[None]
        if self.tokens is None:
            return torch.cat([hidden, slots], 1)
        both = hidden.new_zeros(1, num_rows, hidden.shape[-1])
        return both.index_copy(1, self.tokens, hidden).index_copy(1, self.rows, slots)


class LateSlotHooks:
    """Hooks that insert the late slots of the running call."""

    def __init__(self, module: Any) -> None:
        """Add no hook before `open`."""
        self._module = module
        self._open_layers: set[int] = set()
        self.begin(None)

    def open(self, layer: int) -> None:
        """Let slots enter at a decoder layer from now on (0: with the tokens)."""
        if not layer or layer in self._open_layers:
            return
        layers = decoder_layers(self._module)
        for number in range(layer):
            if not any(number < open_layer for open_layer in self._open_layers):
                layers[number].register_forward_pre_hook(self._entry(number), with_kwargs=True)
        layers[layer].register_forward_pre_hook(self._at(layer))
        self._open_layers.add(layer)

    def begin(self, late: LateSlots | None, see: Callable[[bool], None] | None = None) -> None:
        """Announce late slots.

        `see` prepares the cache for all rows. Without it, the slots run through lower layers.
        """
        self._late, self._see = late, see
        self._narrow, self._num_rows = False, 0
        self._cut: dict[str, tuple[Any, Any]] = {}  # arguments of the layer below, whole and cut

    def _entry(self, number: int) -> Callable[..., Any]:
        def hook(
            _layer: nn.Module, args: tuple[Tensor, ...], named: Mapping[str, Any]
        ) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
            late = self._late
            if late is None or number >= late.layer or self._see is None:
                return None
            if number == 0:
                self._narrow = len(args) == 1 and set(named) <= _KEYWORDS
                if self._narrow:
                    self._see(False)
                    self._num_rows = args[0].shape[1]
                    args = (late.without(args[0], 1, self._num_rows),)
            if not self._narrow:
                return None
            for name, part in named.items():
                if name not in self._cut or self._cut[name][0] is not part:
                    self._cut[name] = part, _without(late, name, part, self._num_rows)
            return args, {name: self._cut[name][1] for name in named}

        return hook

    def _at(self, layer: int) -> Callable[..., Any]:
        def hook(_layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            late = self._late
            if late is None or late.layer != layer:
                return None
            hidden = args[0]
            if self._narrow:
                assert self._see is not None
                self._see(True)
                return (late.joined(hidden, self._num_rows), *args[1:])
            flat = hidden.reshape(-1, hidden.shape[-1])
            return (flat.index_copy(0, late.rows, late.slots(hidden)).view(hidden.shape), *args[1:])

        return hook


def _without(late: LateSlots, name: str, part: Any, num_rows: int) -> Any:
    dims = {"attention_mask": 2, "position_ids": 1, "cache_position": 0}
    if name == "position_embeddings" and part is not None:
        return tuple(late.without(values, 1, num_rows) for values in part)
    if name not in dims or part is None:
        return part
    rows = late.without(part, dims[name], num_rows)
    has_slots = name == "attention_mask" and late.tokens is None
    return rows[..., : part.shape[3] - len(late.rows)] if has_slots else rows
