"""Code that all importers share: gathers and checks the LoRA factors in other projects' files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import CONFIG_FILE, AdapterConfig

PEFT_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_HEADS = ("lm_head", "embed_out")
_RESCALING = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save")


@dataclass(frozen=True, slots=True)
class Parts:
    """Trained float32 factors by layer: A ``[r, in]`` and B ``[out, r]``."""

    low: dict[str, Tensor] = field(default_factory=dict)
    high: dict[str, Tensor] = field(default_factory=dict)

    def put_peft(self, weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
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

    def shapes(
        self, rank: int | None, layers: Mapping[str, tuple[int, int]], line: str
    ) -> tuple[dict[str, tuple[int, int]], int]:
        """Return (in, out) of every adapted layer and the common rank, which `rank` may prescribe.

        Unpaired factors or another rank raise a `ValueError` that names the layer. So do shapes
        other than those `layers`; `line` formats the message from layer, shape and known shape.
        """
        shapes: dict[str, tuple[int, int]] = {}
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
            shapes[name] = low.shape[1], high.shape[0]
            if layers.get(name) != shapes[name]:
                raise ValueError(line.format(name, shapes[name], layers.get(name, "missing")))
        assert rank is not None, "there is at least one layer"
        return shapes, rank

    def adapter(self, config: AdapterConfig, extra: Mapping[str, Tensor]) -> SlotAdapter:
        """Return the adapter of these factors and `extra`, with delta 0 in other layers."""
        adapter = SlotAdapter(config)
        state = {**adapter.state_dict(), **extra}
        for name in self.low:
            key = name.replace(".", "/")
            state |= {f"lora_a.{key}": self.low[name], f"lora_b.{key}": self.high[name]}
        adapter.load_state_dict({name: value.float() for name, value in state.items()})
        return adapter


def check_new(output: Path, *names: str) -> None:
    """Refuse a folder that already holds an adapter or files of these names."""
    if output.is_file() or any((output / name).exists() for name in (CONFIG_FILE, *names)):
        raise ValueError(f"output {str(output)!r} is in use; give a new folder")


def check_plain(settings: Mapping[str, Any], where: str, *, saved: bool = True) -> None:
    """Refuse a rescaled LoRA and, if `saved`, ``modules_to_save`` and trained biases."""
    odd = [name for name in _RESCALING if settings.get(name) and (saved or name != _RESCALING[-1])]
    if odd:
        raise ValueError(f"{where} sets {odd[0]}; plain LoRA of one rank can be imported")
    if saved and settings.get("bias", "none") != "none":
        raise ValueError(f"{where} trains biases; an adapter here cannot hold them")


def written(adapter: SlotAdapter, output: Path, dtype: torch.dtype) -> AdapterConfig:
    """Write an adapter, read it back, and return its configuration."""
    try:
        adapter.save(output, dtype)
    except OSError as error:
        raise ValueError(f"output {str(output)!r} cannot be written: {error}") from error
    return SlotAdapter.load(output).config


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the weights of a safetensors file, or raise `ValueError` if it is damaged."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {one_line(error)}") from error
    return tensors


def read_tree(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or raise `ValueError` for other content."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {one_line(error)}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{str(path)!r} holds {type(tree).__name__}; it must be an object")
    return tree


def one_line(error: Exception) -> str:
    """Return an error's text on one line, or the error's class if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
