"""`DraftHeads`: further heads on the last hidden state of a causal LM, which predict later tokens.

Medusa-1 (Cai et al. 2024, arXiv 2401.10774): head h predicts the token h + 2 places on from the
hidden state whose own logits are of the next token. A head is a residual block, at first the
identity, before the model's own frozen head. Here the block has a width of its own (`rank`), so
that it can be small, and the model's head is shared by all and not stored again.

Letters: R rows, H heads, D hidden width, M width of a block, V vocabulary.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoders.core.adapter.config import CONFIG_FILE, HEADS, WEIGHTS_FILE, AdapterConfig
from decoders.core.adapter.module import SlotAdapter


class DraftHeads(nn.Module):
    """The blocks ``h + up silu(down h + bias)`` of all heads."""

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Fresh blocks that change nothing (`up` is 0): each head says what the model's own says.

        Raises:
            ValueError: a configuration of slots.
        """
        super().__init__()
        _check_heads(config)
        self.config = config
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

    @property
    def num_parameters(self) -> int:
        """How many weights are trained."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def check_fits(self, width: int) -> None:
        """`ValueError` unless a model's last hidden state is as wide as that of training."""
        if width != self.config.width:
            raise ValueError(
                f"the heads were made for a model {self.config.width} wide, not {width}"
            )

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write ``adapter.json`` and ``adapter.safetensors``, weights cast to `dtype`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(self.config.to_json(), encoding="utf-8")
        state = {name: value.to(dtype).contiguous() for name, value in self.state_dict().items()}
        save_file(state, folder / WEIGHTS_FILE)

    @classmethod
    def load(cls, folder: str | Path) -> DraftHeads:
        """Read a folder of heads, in float32 on the CPU.

        Raises:
            ValueError: in one line for a folder that is incomplete or malformed.
        """
        folder = Path(folder).expanduser()
        try:
            config = AdapterConfig.from_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            _check_heads(config)
            state = load_file(folder / WEIGHTS_FILE)
            sizes, stored = (config.num_slots, config.rank, config.width), state["down"].shape
            if sizes != stored:  # before room is made for whatever the sizes say
                raise ValueError(f"its sizes are {sizes}, its weights' {tuple(stored)}")
            heads = cls(config)
            heads.load_state_dict({name: value.float() for name, value in state.items()})
        except (ValueError, TypeError, KeyError, RuntimeError, OSError, SafetensorError) as error:
            line = " ".join(str(error).split())
            raise ValueError(f"adapter {str(folder)!r} cannot be loaded: {line}") from error
        return heads.eval().requires_grad_(False)


def read_adapter(folder: str | Path) -> SlotAdapter | DraftHeads:
    """Read an adapter's folder, whichever kind it holds.

    Raises:
        ValueError: in one line for a folder that is missing, incomplete or malformed.
    """
    file = Path(folder).expanduser() / CONFIG_FILE
    try:
        config = AdapterConfig.from_json(file.read_text(encoding="utf-8"))
    except (ValueError, TypeError, OSError):
        return SlotAdapter.load(folder)  # says what is wrong
    return DraftHeads.load(folder) if config.variant in HEADS else SlotAdapter.load(folder)


def _check_heads(config: AdapterConfig) -> None:
    if config.variant not in HEADS:
        raise ValueError(f"an adapter of variant {config.variant} has slots, not heads")
