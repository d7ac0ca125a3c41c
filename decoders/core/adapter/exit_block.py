"""`ExitBlock`: what lets a causal LM leave after its first layers, through its own norm and head.

A residual block on the hidden state after those layers, at first the identity. The layers, the last
norm and the head are the model's own and not stored again.

Source: LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710) leaves there with a model trained for it;
here the model is frozen and the block is trained, as Kangaroo's adapter (arXiv 2404.18911).
Letters: D hidden width, M width of the block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.config import AdapterConfig
from decoders.core.adapter.hidden import HiddenAdapter


class ExitBlock(HiddenAdapter):
    """The block ``h + up silu(down norm(h) + bias)``; the norm has no weights."""

    variant = "exit"

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """A fresh block that changes nothing (`up` is 0).

        Raises:
            ValueError: a configuration of another kind.
        """
        super().__init__(config)
        rank, width = config.rank, config.width
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(width)
        down = torch.rand(rank, width, generator=generator) * 2 * bound - bound
        self.down = nn.Parameter(down)
        self.bias = nn.Parameter(torch.zeros(rank))
        self.up = nn.Parameter(torch.zeros(width, rank))

    def forward(self, hidden: Tensor) -> Tensor:
        """What the model's last norm is to read, ``[..., D]`` of states ``[..., D]``."""
        normed = F.rms_norm(hidden, hidden.shape[-1:], eps=1e-6)
        return hidden + F.linear(F.silu(F.linear(normed, self.down, self.bias)), self.up)

    @classmethod
    def sizes_of(cls, state: Mapping[str, Tensor]) -> tuple[int, ...]:
        """Width of the block and of the model, by the weights."""
        return tuple(state["down"].shape)

    @classmethod
    def sizes_said(cls, config: AdapterConfig) -> tuple[int, ...]:
        """The same by a configuration."""
        return config.rank, config.width
