"""Slots that enter a model above its first layer.

A call of one sequence leaves the slots out of lower layers. In a batch, or where transformers'
modules run, the slots run there too and are replaced.
Letters: N rows of a call, P of them tokens, S slots, T cache entries read, D hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from decoders.core.adapter.gating import decoder_layers
from decoders.core.adapter.module import SlotAdapter


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
