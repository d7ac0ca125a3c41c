"""`bench import peft`: an adapter that `bench export --to peft` wrote, or PEFT saved since.

PEFT saves its own two files alone: ``slots.json`` and ``slots.safetensors`` of the export must lie
beside them. Factors and rank are PEFT's, so that it may have trained them on; all else is the
export's. What was measured of other factors is forgotten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from decoders.core.adapter.config import CONFIG_FILE, AdapterConfig
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter.peft import (
    FACTORS_HASH,
    PEFT_CONFIG,
    PEFT_WEIGHTS,
    SLOTS_CONFIG,
    SLOTS_WEIGHTS,
    factors_hash,
)
from training.importers.idlm import LORA, read_json
from training.importers.ptp import Parts, factor_shapes, put
from training.importers.ptp_files import RESCALING


def import_peft(folder: Path, output: Path) -> str:
    """Convert, write, read back, and say in one line what was found.

    Raises:
        ValueError: in one line for whatever cannot be imported faithfully.
    """
    if (output / CONFIG_FILE).exists() or output.is_file():
        raise ValueError(f"output {str(output)!r} is in use; give a new folder")
    _check_files(folder)
    settings = read_json(folder / PEFT_CONFIG)
    _check_settings(settings)
    factors = _read(folder / PEFT_WEIGHTS)
    adapter = _build(folder, settings, factors)
    dtypes = {value.dtype for value in factors.values()}
    try:
        adapter.save(output, dtypes.pop() if len(dtypes) == 1 else torch.float32)
    except OSError as error:
        raise ValueError(f"output {str(output)!r} cannot be written: {error}") from error
    config = SlotAdapter.load(output).config
    forgotten = not config.measured and _slots_config(folder / SLOTS_CONFIG).measured
    told = ", nothing measured of these weights" if forgotten else ""
    return (
        f"imported {folder.name}: {config.variant}, rank {config.rank}, "
        f"{len(config.layers)} layers, {config.num_slots} slots{told} -> {output}"
    )


def _check_files(folder: Path) -> None:
    for name in (PEFT_CONFIG, PEFT_WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(
                f"{str(folder)!r} holds no {name}; give a folder that PEFT saved (pickles, "
                "adapter_model.bin, are not read)"
            )
    for name in (SLOTS_CONFIG, SLOTS_WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(
                f"{str(folder)!r} holds no {name}, so nothing says what its slots are fed; copy it "
                "from what `bench export --to peft` wrote (a LoRA of I-DLM: `bench import idlm`)"
            )


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what would load and then compute something else."""
    if settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type")
        raise ValueError(f"{PEFT_CONFIG}: peft_type is {kind!r}; LORA can be imported")
    if odd := next((key for key in RESCALING if settings.get(key)), None):
        raise ValueError(f"{PEFT_CONFIG} sets {odd}; plain LoRA of one rank can be imported")
    if settings.get("bias", "none") != "none":
        raise ValueError(f"{PEFT_CONFIG} trains biases; an adapter here cannot hold them")
    if not settings.get("alora_invocation_tokens"):
        raise ValueError(
            f"{PEFT_CONFIG} has no alora_invocation_tokens: it is a LoRA of all tokens, where ours "
            "is one of slots alone"
        )
    alpha = settings.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0:
        raise ValueError(f"{PEFT_CONFIG}: lora_alpha is {alpha!r}; it must be a number above 0")


def _build(folder: Path, settings: Mapping[str, Any], factors: Mapping[str, Tensor]) -> SlotAdapter:
    """The adapter; a layer that PEFT was not told to adapt keeps a delta of zero."""
    written = _slots_config(folder / SLOTS_CONFIG)
    parts = Parts()
    for key, value in factors.items():
        if (match := LORA.fullmatch(key)) is None:
            raise ValueError(f"{key}: a weight that is not known here")
        name, side = match.groups()
        put(parts, parts.low if side == "A" else parts.high, name, key, value)
    if not parts.low:
        raise ValueError(f"{str(folder)!r} holds no LoRA weight")
    shapes, rank = factor_shapes(parts, settings.get("r"))
    for name, shape in shapes.items():
        if written.layers.get(name) != shape:
            told = written.layers.get(name, "missing")
            raise ValueError(f"the layer {name} is {shape}, and in {SLOTS_CONFIG} {told}")
    alpha = float(settings["lora_alpha"])
    slots = _read(folder / SLOTS_WEIGHTS)
    hashed = _metadata(folder / SLOTS_WEIGHTS).get(FACTORS_HASH)
    same = alpha == written.alpha and hashed == factors_hash(factors)
    measured = written.measured if same else {}
    config = dataclasses.replace(written, rank=rank, alpha=alpha, measured=measured)
    try:
        adapter = SlotAdapter(config)
    except (TypeError, RuntimeError) as error:  # sizes that are none, or that nothing holds
        raise ValueError(f"{SLOTS_CONFIG} cannot be used: {_line(error)}") from error
    state = adapter.state_dict() | slots
    for name in parts.low:
        key = name.replace(".", "/")
        state |= {f"lora_a.{key}": parts.low[name], f"lora_b.{key}": parts.high[name]}
    try:
        adapter.load_state_dict({name: value.float() for name, value in state.items()})
    except RuntimeError as error:
        raise ValueError(f"{SLOTS_WEIGHTS} does not fit {SLOTS_CONFIG}: {_line(error)}") from error
    return adapter


def _slots_config(path: Path) -> AdapterConfig:
    try:
        return AdapterConfig.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {_line(error)}") from error


def _read(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {_line(error)}") from error
    return tensors


def _metadata(path: Path) -> Mapping[str, str]:
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
