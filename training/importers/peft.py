"""`bench import peft`: reads an adapter that `bench export --to peft` wrote or PEFT saved later.

PEFT saves only its own two files, so ``slots.json`` and ``slots.safetensors`` of the export must be
in the same folder. Factors, rank and alpha come from PEFT, which may have trained them further; all
else comes from the export. Figures measured with other factors are dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig
from decoders.extras.library.peft import (
    FACTORS_HASH,
    PEFT_CONFIG,
    PEFT_WEIGHTS,
    SLOTS_CONFIG,
    SLOTS_WEIGHTS,
    factors_hash,
)
from training.importers.lora import (
    Parts,
    check_new,
    check_plain,
    one_line,
    read_tensors,
    read_tree,
    written,
)


def import_peft(folder: Path, output: Path) -> str:
    """Convert, write, read back, and return one line about the adapter.

    If the adapter cannot be imported faithfully, raise `ValueError`.
    """
    check_new(output)
    settings = _read_settings(folder)
    factors = read_tensors(folder / PEFT_WEIGHTS)
    file = folder / SLOTS_CONFIG
    try:
        slots = AdapterConfig.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{str(file)!r} cannot be read: {one_line(error)}") from error
    adapter = _build(folder, slots, settings, factors)
    dtypes = {value.dtype for value in factors.values()}
    config = written(adapter, output, dtypes.pop() if len(dtypes) == 1 else torch.float32)
    forgotten = not config.measured and slots.measured
    note = ", nothing measured of these weights" if forgotten else ""
    return (
        f"imported {folder.name}: {config.variant}, rank {config.rank}, "
        f"{len(config.layers)} layers, {config.num_slots} slots{note} -> {output}"
    )


def _read_settings(folder: Path) -> dict[str, Any]:
    """Refuse missing files, and settings that would load but compute something else."""
    saved = "; give a folder that PEFT saved (pickles, adapter_model.bin, are not read)"
    beside = (
        ", so nothing says what its slots are fed; copy it from what `bench export --to peft` "
        "wrote (a LoRA of I-DLM: `bench import idlm`)"
    )
    lines = dict.fromkeys((PEFT_CONFIG, PEFT_WEIGHTS), saved)
    for name, line in {**lines, SLOTS_CONFIG: beside, SLOTS_WEIGHTS: beside}.items():
        if not (folder / name).is_file():
            raise ValueError(f"{str(folder)!r} holds no {name}{line}")
    settings = read_tree(folder / PEFT_CONFIG)
    if settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type")
        raise ValueError(f"{PEFT_CONFIG}: peft_type is {kind!r}; LORA can be imported")
    check_plain(settings, PEFT_CONFIG)
    if not settings.get("alora_invocation_tokens"):
        raise ValueError(
            f"{PEFT_CONFIG} has no alora_invocation_tokens: it is a LoRA of all tokens, but ours "
            "is one of slots only"
        )
    alpha = settings.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0:
        raise ValueError(f"{PEFT_CONFIG}: lora_alpha is {alpha!r}; it must be a number above 0")
    return settings


def _build(
    folder: Path, written: AdapterConfig, settings: Mapping[str, Any], factors: Mapping[str, Tensor]
) -> SlotAdapter:
    """Return the adapter, with a delta of zero in layers that PEFT does not adapt."""
    parts = Parts()
    parts.put_peft(factors.items(), folder)
    line = f"the layer {{}} is {{}}, and in {SLOTS_CONFIG} {{}}"
    _, rank = parts.shapes(settings.get("r"), written.layers, line)
    alpha = float(settings["lora_alpha"])
    slots = read_tensors(folder / SLOTS_WEIGHTS)
    with safe_open(folder / SLOTS_WEIGHTS, "pt") as file:
        hashed = (file.metadata() or {}).get(FACTORS_HASH)
    same = alpha == written.alpha and hashed == factors_hash(factors)
    measured = written.measured if same else {}
    config = dataclasses.replace(written, rank=rank, alpha=alpha, measured=measured)
    try:
        SlotAdapter(config)
    except (TypeError, RuntimeError) as error:  # sizes that are invalid or too large
        raise ValueError(f"{SLOTS_CONFIG} cannot be used: {one_line(error)}") from error
    try:
        return parts.adapter(config, slots)
    except RuntimeError as error:
        raise ValueError(
            f"{SLOTS_WEIGHTS} does not fit {SLOTS_CONFIG}: {one_line(error)}"
        ) from error
