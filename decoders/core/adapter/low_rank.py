"""Gated linear layers in which slots add a low-rank product to the model's own.

If the weights exceed a CPU's cache, reading them dominates a call's cost; factors are small.
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
"""A group's ranks are padded to a multiple of this, which makes products faster."""
Factors = tuple[Tensor | None, Tensor]
"""A ``[r, in]`` and B ``[out, r]``, B scaled by alpha / r; or None and a delta ``[out, in]``."""


class LowRankWeights(AddedWeights):
    """One product per group for all rows, and one for the group's delta, added to slots in place.

    The A are joined as ``[in, R]``, the B are blocks of ``[R, sum out]``. Only for decoding.
    """

    def __init__(self, gated: GatedModule, factors: Mapping[str, Factors]) -> None:
        """Take factors by layer name, in the dtype of a module with joined weights."""
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
        """Bytes of the factors, without the model's own weights."""
        deltas = {id(delta): delta for delta in self._deltas.values() if delta is not None}
        return sum(part.nbytes for delta in deltas.values() for part in delta.parts)

    def run(self, index: int, x: Tensor, add: Callable[[Delta, Tensor, Tensor], object]) -> Tensor:
        """Run a layer as `AddedWeights.run`, a group at its first layer."""

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
        if any(pair is not None and pair[0] is None for pair in pairs):  # a full-rank delta
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

    def delta_rows(self, x: Tensor) -> Tensor:
        return by_tiles(lambda x: (x if self.low is None else x @ self.low) @ self.high, x)

    def add(self, x: Tensor, y: Tensor) -> None:
        y.addmm_(x if self.low is None else x @ self.low, self.high)
