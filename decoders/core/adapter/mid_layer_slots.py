"""Hooks that let slots enter a module above its first layer.

A call of one sequence leaves the slots out of lower layers if these are called with known
arguments. Else the slots run there too and are replaced. Letters: P token rows, S slots, D width.
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
_PARTS = ("rows", "before", "number", "embedded")


@dataclass(frozen=True, slots=True)
class LateSlots:
    """Slots of a call that enter above the first layer, embedded as ``[S, D]``.

    `rows` ``[S]`` are the slots' flat rows, `before` the rows of the tokens before their branches,
    `number` the slots' numbers in the branch.
    """

    adapter: SlotAdapter
    rows: Tensor
    before: Tensor
    number: Tensor
    embedded: Tensor

    @classmethod
    def of(cls, adapter: SlotAdapter, tensors: Mapping[str, Tensor]) -> LateSlots:
        """Restore late slots from `tensors`."""
        rows, before, number, embedded = (tensors[f"late.{part}"] for part in _PARTS)
        return cls(adapter, rows, before, number, embedded)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {f"late.{part}": getattr(self, part) for part in _PARTS}

    @property
    def layer(self) -> int:
        """Decoder layer at which the slots enter."""
        return self.adapter.config.enter

    def slots(self, hidden: Tensor) -> Tensor:
        """Return hidden states ``[S, D]`` of the slots, from those of token rows ``[.., D]``."""
        before = hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.before)
        return self.adapter.entering(self.embedded, self.number, before)


class LateSlotHooks:
    """Hooks that insert the late slots of the running call."""

    def __init__(self, module: Any) -> None:
        """Add no hook before `open`."""
        self._module = module
        self._opened: set[int] = set()
        self._late: LateSlots | None = None
        self._num_tokens = 0
        self._see: Callable[[int], None] | None = None
        self._narrow = False

    def open(self, layer: int) -> None:
        """Let slots enter at a decoder layer from now on (0: with the tokens)."""
        if not layer or layer in self._opened:
            return
        layers = decoder_layers(self._module)
        for number in range(layer):
            if not any(number < opened for opened in self._opened):
                layers[number].register_forward_pre_hook(self._below(number), with_kwargs=True)
        layers[layer].register_forward_pre_hook(self._at(layer))
        self._opened.add(layer)

    def begin(
        self,
        late: LateSlots | None,
        num_tokens: int = 0,
        see: Callable[[int], None] | None = None,
    ) -> None:
        """Announce late slots after P tokens; `see` prepares the cache for a number of rows."""
        self._late, self._num_tokens, self._see = late, num_tokens, see
        self._narrow = False

    def _below(self, number: int) -> Callable[..., Any]:
        def hook(
            _layer: nn.Module, args: tuple[Tensor, ...], named: Mapping[str, Any]
        ) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
            late = self._late
            if late is None or number >= late.layer or self._see is None:
                return None
            count = self._num_tokens
            if number == 0:
                self._narrow = len(args) == 1 and set(named) <= _KEYWORDS
                if self._narrow:
                    self._see(count)
                    args = (args[0][:, :count],)
            if not self._narrow:
                return None
            spared = len(late.rows)
            parts = {name: _of_first(name, part, count, spared) for name, part in named.items()}
            return args, parts

        return hook

    def _at(self, layer: int) -> Callable[..., Any]:
        def hook(_layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            late = self._late
            if late is None or late.layer != layer:
                return None
            hidden, slots = args[0], late.slots(args[0])
            if self._narrow:
                assert self._see is not None
                self._see(self._num_tokens + len(slots))
                return (torch.cat([hidden, slots[None]], 1), *args[1:])
            flat = hidden.reshape(-1, hidden.shape[-1])
            return (flat.index_copy(0, late.rows, slots).view(hidden.shape), *args[1:])

        return hook


def _of_first(name: str, part: Any, count: int, spared: int) -> Any:
    if name == "attention_mask" and part is not None:
        return part[:, :, :count, : part.shape[3] - spared]
    if name == "position_embeddings" and part is not None:
        return tuple(values[:, :count] for values in part)
    if name == "position_ids" and part is not None:
        return part[:, :count]
    if name == "cache_position" and part is not None:
        return part[:count]
    return part
