"""Residual blocks on hidden states, read by the model's own head.

Fresh blocks are the identity. Letters: R rows, H heads, D hidden width, M block width, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.draft_pass import DraftPass, Inputs, Run, Texts
from decoders.core.adapter.growth import trees_of_heads
from decoders.core.adapter.module import HiddenAdapter, spread
from decoders.core.adapter_config import AdapterConfig
from decoders.core.device import upload
from decoders.core.products import product
from decoders.core.types import CallResult


class HeadsPass(DraftPass):
    """A forward pass of heads that maps states ``[1, R, D]`` to logits ``[R, H, V]``."""

    layers: DraftHeads

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run a `DraftPass`, which needs no planes."""
        return (self.head(self.layers(inputs["states"][0])).float(),)

    def draft(self, texts: Texts, run: Run, size: int) -> Sequence[CallResult]:
        """Make a tree of the heads' likeliest paths after each text."""
        (logits,) = run(None, {"states": texts.last_states()}, ())
        shape, sampling = texts.first.shape, texts.first.sampling
        uniforms = upload(texts.uniforms, logits.device) if shape.draws else None
        return trees_of_heads(logits, texts.depths, shape, sampling, uniforms)


class DraftHeads(HiddenAdapter):
    """Blocks ``h + up silu(down h + bias)`` on the last hidden state, one per head.

    Head h predicts the token h + 2 positions ahead: Medusa-1 (Cai et al. 2024, arXiv 2401.10774).
    """

    variant, student = "medusa", "heads"
    work = HeadsPass
    plane_shapes = ()  # they read the last state only

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Make fresh blocks that change nothing, or raise `ValueError` for other settings."""
        super().__init__(config)
        num_heads, rank, width = config.num_slots, config.rank, config.width
        self.down = spread(torch.Generator().manual_seed(seed), num_heads, rank, width)
        self.bias = nn.Parameter(torch.zeros(num_heads, rank))
        self.up = nn.Parameter(torch.zeros(num_heads, width, rank))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map states ``[R, D]`` to the model head's inputs ``[R, H, D]``, one per draft head."""
        inner = product(hidden, self.down.flatten(0, 1), self.bias.flatten())
        inner = F.silu(inner).view(-1, *self.bias.shape)
        added = torch.bmm(inner.transpose(0, 1), self.up.transpose(1, 2))
        return hidden[:, None] + added.transpose(0, 1)
