"""Gated linear layers whose slots add a low-rank product to the model's own.

Where weights exceed a CPU's cache, reading them is what a call costs, and factors are small.
Letters: B sequences, N rows of a sequence, S slot rows of a call, R ranks of a group, summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.core.adapter.gating import GatedModule, by_tiles, laid_out
from decoders.core.adapter.weights import AddedWeights, Delta, Group, GroupedWeights

_WHOLE = 32
"""Ranks of a group are filled up to a multiple of this, which products run faster."""
Factors = tuple[Tensor | None, Tensor]
"""A ``[r, in]`` and B ``[out, r]``, B scaled by alpha / r; or None and a delta ``[out, in]``."""


class LowRankWeights(AddedWeights):
    """One product per group for all rows, one of the group's delta for slots, added in place.

    A ``[in, R]`` stand side by side, B are blocks of ``[R, sum out]``. For decoding alone.
    """

    def __init__(self, gated: GatedModule, factors: Mapping[str, Factors]) -> None:
        """Take factors by layer name, in the dtype of a module whose weights stand side by side."""
        self._base = GroupedWeights.base(gated)
        self._deltas: dict[int, _Delta | None] = {}
        for indices in gated.groups:
            pairs = [factors.get(gated.layers[index].name) for index in indices]
            shapes = [gated.layers[index].shape for index in indices]
            weight = gated.layers[indices[0]].weight
            delta = _Delta.of(pairs, shapes, weight) if any(pairs) else None
            self._deltas |= dict.fromkeys(indices, delta)

    @property
    def num_bytes(self) -> int:
        """Bytes of the factors; the weights are the model's own."""
        deltas = {id(delta): delta for delta in self._deltas.values() if delta is not None}
        return sum(part.nbytes for delta in deltas.values() for part in delta.parts)

    def run(self, index: int, x: Tensor, add: Callable[[Delta, Tensor, Tensor], object]) -> Tensor:
        """See `AddedWeights.run`; the first layer of a group runs it."""

        def run(group: Group) -> Tensor:
            y = group.everywhere(x)
            delta = self._deltas[index]
            if delta is not None:
                add(delta, x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1]))
            return y

        return self._base.part(index, run)


@dataclass(frozen=True, slots=True)
class _Delta(Delta):
    """The delta of a group: ``x low high``, or ``x high`` without `low`."""

    low: Tensor | None
    high: Tensor

    @classmethod
    def of(
        cls, pairs: Sequence[Factors | None], shapes: Sequence[tuple[int, int]], like: Tensor
    ) -> _Delta:
        if any(pair is not None and pair[0] is None for pair in pairs):  # one is of full rank
            whole = [
                like.new_zeros(shape)
                if pair is None
                else (pair[1] if pair[0] is None else pair[1] @ pair[0]).t()
                for pair, shape in zip(pairs, shapes, strict=True)
            ]
            return cls(None, torch.cat(whole, 1))
        lows = [pair[0] for pair in pairs if pair is not None and pair[0] is not None]
        blocks = [
            like.new_zeros(0, shape[1]) if pair is None else pair[1].t()
            for pair, shape in zip(pairs, shapes, strict=True)
        ]
        if missing := -sum(map(len, lows)) % _WHOLE:
            lows.append(like.new_zeros(missing, shapes[0][0]))
            blocks.append(like.new_zeros(missing, 0))
        high = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        return cls(laid_out(torch.cat(lows).t()), laid_out(high))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.high,) if self.low is None else (self.low, self.high)

    def of_rows(self, x: Tensor) -> Tensor:
        return by_tiles(lambda x: (x if self.low is None else x @ self.low) @ self.high, x)

    def add(self, x: Tensor, y: Tensor) -> None:
        y.addmm_(x if self.low is None else x @ self.low, self.high)
