"""What all adapters share that read a model's hidden states: their files, sizes and checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoders.core.adapter.config import (
    CONFIG_FILE,
    HEADS,
    WEIGHTS_FILE,
    AdapterConfig,
    HeadsVariant,
)


class HiddenAdapter(nn.Module):
    """Trained weights beside a model that is used as it is.

    Attributes:
        variant: the kind of configuration that makes one.
    """

    variant: ClassVar[HeadsVariant]

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Of a configuration; subclasses make fresh weights by `seed`.

        Raises:
            ValueError: a configuration of another kind.
        """
        super().__init__()
        self._check(config)
        self.config = config

    @classmethod
    def sizes_of(cls, state: Mapping[str, Tensor]) -> tuple[int, ...]:
        """What weights say of the sizes."""
        raise NotImplementedError

    @classmethod
    def sizes_said(cls, config: AdapterConfig) -> tuple[int, ...]:
        """What a configuration says of the same sizes."""
        raise NotImplementedError

    @property
    def num_parameters(self) -> int:
        """How many weights are trained."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def check_fits(self, width: int) -> None:
        """`ValueError` unless a model's hidden states are as wide as those of training."""
        if width != self.config.width:
            raise ValueError(
                f"the {_NOUNS[self.variant]} made for a model {self.config.width} wide, not {width}"
            )

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write ``adapter.json`` and ``adapter.safetensors``, weights cast to `dtype`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(self.config.to_json(), encoding="utf-8")
        state = {name: value.to(dtype).contiguous() for name, value in self.state_dict().items()}
        save_file(state, folder / WEIGHTS_FILE)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a folder, in float32 on the CPU.

        Raises:
            ValueError: in one line for a folder that is incomplete or malformed.
        """
        folder = Path(folder).expanduser()
        try:
            config = AdapterConfig.from_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            cls._check(config)
            state = load_file(folder / WEIGHTS_FILE)
            sizes, stored = cls.sizes_said(config), cls.sizes_of(state)
            if sizes != stored:  # before room is made for whatever the sizes say
                raise ValueError(f"its sizes are {sizes}, its weights' {stored}")
            adapter = cls(config)
            adapter.load_state_dict({name: value.float() for name, value in state.items()})
        except (ValueError, TypeError, KeyError, RuntimeError, OSError, SafetensorError) as error:
            line = " ".join(str(error).split())
            raise ValueError(f"adapter {str(folder)!r} cannot be loaded: {line}") from error
        return adapter.eval().requires_grad_(False)

    @classmethod
    def _check(cls, config: AdapterConfig) -> None:
        if config.variant not in HEADS:
            raise ValueError(f"an adapter of variant {config.variant} has slots, not heads")
        if config.variant != cls.variant:
            raise ValueError(f"it is of variant {config.variant}, and {cls.variant} is needed here")


_NOUNS = {"medusa": "heads were", "eagle": "draft layer was", "exit": "exit was"}
