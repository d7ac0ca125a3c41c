"""The low-rank delta of a linear layer, or of layers that share an input.

``y = W x + g (alpha / r) B A x``, where the gate g is 0 for token rows and 1 for slots (gated LoRA:
PTP, arXiv 2512.21323). If the weights exceed a CPU's cache, reading them dominates a call's cost;
factors are small. Letters: R ranks, summed over the layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.core import products
from decoders.core.adapter.gating import Layer, laid_out

_WHOLE = 32
"""Ranks of joined layers are padded to a multiple of this, which makes products faster."""
Factors = tuple[Tensor | None, Tensor]
"""A ``[r, in]`` and B ``[out, r]``, B scaled by alpha / r; or None and a delta ``[out, in]``."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The factors A ``[R, in]`` and B ``[out, R]``, or without A the whole delta ``[out, in]``."""

    low: Tensor | None
    high: Tensor

    @property
    def whole(self) -> Tensor:
        """The delta ``B A`` ``[out, in]``."""
        return self.high if self.low is None else self.high @ self.low

    def rows(self, x: Tensor) -> Tensor:
        """Return ``B A x`` ``[…, out]`` of rows ``[…, in]``."""
        return products.product(x if self.low is None else products.product(x, self.low), self.high)


Change = Delta | Tensor | None
"""What an adapter changes of a product: a low-rank delta, or the whole weight ``[out, in]``."""


def join_factors(
    pairs: Sequence[Factors | None], sizes: Sequence[int], weight: Tensor, *, switches: bool
) -> Change:
    """Join the factors of layers that share an input, or multiply them if that costs less.

    Args:
        pairs: each layer's factors, None without a delta.
        sizes: each layer's number of outputs.
        weight: the layers' weights, ``[sum out, in]``.
        switches: return ``W + B A`` instead of a whole delta, added in the factors' precision.
    """
    factors = [pair for pair in pairs if pair is not None]
    lows = [pair[0] for pair in factors if pair[0] is not None]
    if not factors:
        return None
    if len(lows) < len(factors) or weight.numel() <= sum(map(len, lows)) * sum(weight.shape):
        deltas = [
            weight.new_zeros(size, weight.shape[1]) if pair is None else Delta(*pair).whole
            for pair, size in zip(pairs, sizes, strict=True)
        ]
        whole = torch.cat(deltas)
        if switches:
            return _laid_out_like(weight.to(whole.dtype) + whole, weight)
        return Delta(None, _laid_out_like(whole, weight))
    blocks = [
        weight.new_zeros(size, 0) if pair is None else pair[1]
        for pair, size in zip(pairs, sizes, strict=True)
    ]
    if missing := -sum(map(len, lows)) % _WHOLE:
        lows.append(weight.new_zeros(missing, weight.shape[1]))
        blocks.append(weight.new_zeros(0, missing))
    high = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return Delta(_laid_out_like(torch.cat(lows), weight), _laid_out_like(high, weight))


def layer_deltas(layers: Sequence[Layer], factors: Mapping[str, Factors]) -> list[Change]:
    """Return the delta of each of a module's layers, or None for those without factors."""
    pairs = [(factors.get(layer.name), layer.weight.t()) for layer in layers]
    return [join_factors([pair], [len(w)], w, switches=False) for pair, w in pairs]


def _laid_out_like(part: Tensor, weight: Tensor) -> Tensor:
    return laid_out(part.to(weight).t()).t()
