"""`DraftHeads`: further heads on the last hidden state of a causal LM, which predict later tokens.

Medusa-1 (Cai et al. 2024, arXiv 2401.10774): head h predicts the token h + 2 places on from the
hidden state whose own logits are of the next token. A head is a residual block, at first the
identity, before the model's own frozen head. Here the block has a width of its own (`rank`), so
that it can be small, and the model's head is shared by all and not stored again.

Letters: R rows, H heads, D hidden width, M width of a block, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.config import CONFIG_FILE, HEADS, AdapterConfig
from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.exit_block import ExitBlock
from decoders.core.adapter.hidden import HiddenAdapter
from decoders.core.adapter.module import SlotAdapter


class DraftHeads(HiddenAdapter):
    """The blocks ``h + up silu(down h + bias)`` of all heads."""

    variant = "medusa"

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Fresh blocks that change nothing (`up` is 0): each head says what the model's own says.

        Raises:
            ValueError: a configuration of slots.
        """
        super().__init__(config)
        num_heads, rank, width = config.num_slots, config.rank, config.width
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(width)
        down = torch.rand(num_heads, rank, width, generator=generator) * 2 * bound - bound
        self.down = nn.Parameter(down)
        self.bias = nn.Parameter(torch.zeros(num_heads, rank))
        self.up = nn.Parameter(torch.zeros(num_heads, width, rank))

    def forward(self, hidden: Tensor) -> Tensor:
        """What the model's head is to read for each of H: ``[R, H, D]`` of states ``[R, D]``."""
        inner = F.linear(hidden, self.down.flatten(0, 1), self.bias.flatten())
        inner = F.silu(inner).view(len(hidden), *self.bias.shape)
        added = torch.bmm(inner.transpose(0, 1), self.up.transpose(1, 2))
        return hidden[:, None] + added.transpose(0, 1)

    @classmethod
    def sizes_of(cls, state: Mapping[str, Tensor]) -> tuple[int, ...]:
        """Heads, width of a block and of the model, by the weights."""
        return tuple(state["down"].shape)

    @classmethod
    def sizes_said(cls, config: AdapterConfig) -> tuple[int, ...]:
        """The same by a configuration."""
        return config.num_slots, config.rank, config.width


def read_adapter(folder: str | Path) -> SlotAdapter | HiddenAdapter:
    """Read an adapter's folder, whichever kind it holds.

    Raises:
        ValueError: in one line for a folder that is missing, incomplete or malformed.
    """
    file = Path(folder).expanduser() / CONFIG_FILE
    try:
        config = AdapterConfig.from_json(file.read_text(encoding="utf-8"))
    except (ValueError, TypeError, OSError):
        return SlotAdapter.load(folder)  # says what is wrong
    if config.variant not in HEADS:
        return SlotAdapter.load(folder)
    kinds: tuple[type[HiddenAdapter], ...] = (DraftHeads, DraftLayer, ExitBlock)
    return next(kind for kind in kinds if kind.variant == config.variant).load(folder)
