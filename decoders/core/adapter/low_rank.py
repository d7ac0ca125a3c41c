"""The low-rank delta of a linear layer, or of layers that share an input.

``y = W x + g (alpha / r) B A x``, where the gate g is 0 for token rows and 1 for slots (gated LoRA:
PTP, arXiv 2512.21323). If the weights exceed a CPU's cache, reading them dominates a call's cost;
factors are small. Letters: R ranks, summed over the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.core import products
from decoders.core.adapter.gating import laid_out

_WHOLE = 32
"""Ranks of joined layers are padded to a multiple of this, which makes products faster."""
Factors = tuple[Tensor | None, Tensor]
"""A ``[r, in]`` and B ``[out, r]``, B scaled by alpha / r; or None and a delta ``[out, in]``."""


def is_whole(pairs: Sequence[Factors | None], weight: Tensor) -> bool:
    """Tell whether factors multiplied cost less than factors, or one of them is a whole delta."""
    lows = [pair[0] for pair in pairs if pair is not None]
    rank = sum(len(low) for low in lows if low is not None)
    return any(low is None for low in lows) or weight.numel() <= rank * sum(weight.shape)


def whole(pairs: Sequence[Factors | None], sizes: Sequence[int], weight: Tensor) -> Tensor:
    """Return the delta ``B A`` ``[sum out, in]`` in the factors' precision (see `Delta.of`)."""
    deltas = [
        weight.new_zeros(size, weight.shape[1]) if pair is None else Delta(*pair).whole
        for pair, size in zip(pairs, sizes, strict=True)
    ]
    return torch.cat(deltas)


@dataclass(frozen=True, slots=True)
class Delta:
    """The factors A ``[R, in]`` and B ``[out, R]``, or without A the whole delta ``[out, in]``."""

    low: Tensor | None
    high: Tensor

    @classmethod
    def of(
        cls, pairs: Sequence[Factors | None], sizes: Sequence[int], weight: Tensor
    ) -> Delta | None:
        """Join the factors of layers that share an input, or multiply them if that costs less.

        Args:
            pairs: each layer's factors, None without a delta.
            sizes: each layer's number of outputs.
            weight: the layers' weights, ``[sum out, in]``.
        """
        if not any(pairs):
            return None
        if is_whole(pairs, weight):
            return cls(None, _laid_out_like(whole(pairs, sizes, weight), weight))
        lows = [pair[0] for pair in pairs if pair is not None and pair[0] is not None]
        blocks = [
            weight.new_zeros(size, 0) if pair is None else pair[1]
            for pair, size in zip(pairs, sizes, strict=True)
        ]
        if missing := -sum(map(len, lows)) % _WHOLE:
            lows.append(weight.new_zeros(missing, weight.shape[1]))
            blocks.append(weight.new_zeros(0, missing))
        high = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        return cls(_laid_out_like(torch.cat(lows), weight), _laid_out_like(high, weight))

    @property
    def whole(self) -> Tensor:
        """The delta ``B A`` ``[out, in]``."""
        return self.high if self.low is None else self.high @ self.low

    def rows(self, x: Tensor) -> Tensor:
        """Return ``B A x`` ``[…, out]`` of rows ``[…, in]``."""
        return products.product(x if self.low is None else products.product(x, self.low), self.high)


def merged(pairs: Sequence[Factors | None], sizes: Sequence[int], weight: Tensor) -> Tensor:
    """Return ``W + B A`` ``[sum out, in]``, added in the factors' precision (see `Delta.of`)."""
    delta = whole(pairs, sizes, weight)
    return _laid_out_like(weight.to(delta.dtype) + delta, weight)


def _laid_out_like(part: Tensor, weight: Tensor) -> Tensor:
    return laid_out(part.to(weight).t()).t()
