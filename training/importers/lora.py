"""The factors of a LoRA, as PEFT saves them, gathered and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig

PEFT_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_HEADS = ("lm_head", "embed_out")
_RESCALING = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern")


@dataclass(frozen=True, slots=True)
class Parts:
    """Trained float32 factors by layer: A ``[r, in]`` and B ``[out, r]``."""

    low: dict[str, Tensor] = field(default_factory=dict)
    high: dict[str, Tensor] = field(default_factory=dict)

    def put(self, weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
        """Add the factors that PEFT saved (`ValueError` for unfit weights, or no factors)."""
        for key, value in weights:
            if (match := PEFT_KEY.fullmatch(key)) is None:
                raise ValueError(f"{key}: unknown weight")
            name, side = match.groups()
            factors = self.low if side == "A" else self.high
            if name in _HEADS:
                raise ValueError(f"{key}: the output head cannot be adapted here")
            if name in factors:
                raise ValueError(f"{key}: this weight comes twice, under an old and a new name")
            if not value.is_floating_point():
                raise ValueError(f"{key}: it must be a tensor of floating-point weights")
            if not value.isfinite().all():
                line = "there are NaN or infinite weights; take another checkpoint"
                raise ValueError(f"{key}: {line}")
            factors[name] = value.float()
        if not self.low:
            raise ValueError(f"{str(folder)!r} holds no LoRA weight")

    def rank(self, settings: Mapping[str, Any], layers: Mapping[str, tuple[int, int]]) -> int:
        """Return the rank that all layers have, of PEFT's `settings` if these name one.

        Unpaired factors, another rank, or shapes other than those of the base model's `layers`
        raise a `ValueError` that names the layer.
        """
        rank: int | None = settings.get("r")
        for name in self.low | self.high:
            for side, factors in (("A", self.low), ("B", self.high)):
                if name not in factors:
                    raise ValueError(f"{name}.lora_{side} is missing")
                if factors[name].ndim != 2:
                    shape = tuple(factors[name].shape)
                    raise ValueError(f"{name}.lora_{side} is {shape}; it must be a matrix")
            low, high = self.low[name], self.high[name]
            if low.shape[0] != high.shape[1]:
                raise ValueError(
                    f"{name}: lora_A {tuple(low.shape)} and lora_B {tuple(high.shape)} differ in "
                    "rank; they must be (r, in) and (out, r)"
                )
            rank = rank or low.shape[0]
            if low.shape[0] != rank:
                raise ValueError(
                    f"{name}: lora_A is of rank {low.shape[0]}, where the configuration or the "
                    f"layers before have {rank}; an adapter has one rank"
                )
            shape = low.shape[1], high.shape[0]
            if layers.get(name) != shape:
                of_base = layers.get(name, "missing")
                raise ValueError(f"the LoRA's layer {name} is {shape}, the base model's {of_base}")
        assert rank is not None, "there is at least one layer"
        return rank

    def adapter(self, config: AdapterConfig, extra: Mapping[str, Tensor]) -> SlotAdapter:
        """Return the adapter of these factors and `extra`, with delta 0 in other layers."""
        adapter = SlotAdapter(config)
        state = {**adapter.state_dict(), **extra}
        for name in self.low:
            key = name.replace(".", "/")
            state |= {f"lora_a.{key}": self.low[name], f"lora_b.{key}": self.high[name]}
        adapter.load_state_dict({name: value.float() for name, value in state.items()})
        return adapter


def check_plain(settings: Mapping[str, Any]) -> None:
    """Refuse the settings of a rescaled LoRA."""
    if odd := [name for name in _RESCALING if settings.get(name)]:
        raise ValueError(f"the LoRA sets {odd[0]}; plain LoRA of one rank can be imported")
