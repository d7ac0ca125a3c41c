"""Reads checkpoint, configuration and histogram in a training folder of the PTP authors.

The files are not trusted: torch's restricted unpickler reads pickles without running code, and
`safe_load` reads YAML, where `_target_` keys stay strings. Every error message is one line.

Source: PTP (arXiv 2512.21323), with layout and defaults of the authors' code (mandt-lab/ptp, or its
predecessor where a key is called `student`).
Letters: G leading correct tokens of a window.
"""

from __future__ import annotations

import math
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from training.importers.lora import check_plain, read_tensors, read_tree

TRAIN_FILE, WARP_FILE, COUNTS_FILE = "train.yaml", "pregenerate.yaml", "correct_count_hist.pt"
NUM_SLOTS, ALPHA = 16, 8.0  # `train_completion_len` of every released file; PEFT's default
_NUM_COUNTS = 21
_LOSSES = (None, "bc", "bce")  # None: the current code trains only O-PTP


def find_checkpoint(path: Path) -> Path:
    """Return the path if it is a file, else the folder's ``last.ckpt`` or only checkpoint."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"checkpoint {str(path)!r}: there is no such file or folder")
    last = path / "last.ckpt"
    candidates = [last] if last.exists() else sorted(path.glob("*.ckpt"))
    candidates = candidates or sorted(path.glob("*.safetensors"))
    if len(candidates) != 1:
        names = ", ".join(one.name for one in candidates) or "none"
        raise ValueError(
            f"checkpoint {str(path)!r} must hold last.ckpt or a single *.ckpt or *.safetensors; "
            f"found: {names}; name the file"
        )
    if not candidates[0].is_file():
        raise ValueError(
            f"checkpoint {str(candidates[0])!r} is sharded; merge it into one file first"
        )
    return candidates[0]


def read_state(path: Path) -> Mapping[str, Any]:
    """Return the weights by name, memory-mapped if the file allows it.

    A file that is damaged, or holds more than tensors and plain values, raises `ValueError`.
    """
    if path.suffix == ".safetensors":
        return read_tensors(path, "checkpoint ")
    loaded = _unpickle(path)
    state = loaded.get("state_dict", loaded) if isinstance(loaded, Mapping) else None
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise ValueError(f"checkpoint {str(path)!r} has no `state_dict` of named weights")
    return state


def read_settings(
    train: Path | None, warp: Path | None
) -> tuple[dict[str, Any], int | None, str | None]:
    """Read ``train.yaml`` and ``pregenerate.yaml``; missing values take their defaults.

    Return the fields of an `AdapterConfig`, the rank, and the authors' name of the u embedding
    (rank and name are None if missing). Raise `ValueError` for a training setup that our slots
    cannot reproduce.
    """
    tree = read_tree(train, yaml.safe_load, "a mapping") if train else {}
    block = _part(tree, "model")
    name = next((n for n in ("student", "student_cfg", "model_cfg") if block.get(n)), "model")
    network = _part(block, name)
    lora = _part(network, "lora_config")
    _check_training(block, network, lora, shifted_by_default=not name.startswith("student"))
    warps = read_tree(warp, yaml.safe_load, "a mapping") if warp else {}
    drawn = _part(warps, "generate")
    top_p = _number(drawn, "top_p", 1.0)
    if top_p > 1:
        raise ValueError(f"configuration: `top_p` is {top_p}; it must be 1 or below")
    model, embedding = network.get("model_id"), network.get("adapter_name")
    fields = {
        "num_slots": _whole(_part(tree, "data"), "train_completion_len", NUM_SLOTS, 1),
        "alpha": _number(lora, "lora_alpha", ALPHA),
        "temperatures": (_number(drawn, "temperature", 1.0),) * 2,
        "top_ps": (top_p,),
        "top_k": _whole(drawn, "top_k", 0, 0),
        "base": {"model": model} if model and isinstance(model, str) else {},
    }
    rank = _whole(lora, "r", 0, 1) or None
    return fields, rank, None if embedding is None else str(embedding)


def read_survival(path: Path) -> list[float]:
    """Return P(G >= g) for g = 1..20 from the authors' histogram of G, float64 ``[21]``."""
    counts = _unpickle(path)
    fits = isinstance(counts, Tensor) and counts.shape == (_NUM_COUNTS,)
    distribution = counts.double() if fits else torch.zeros(_NUM_COUNTS)
    if not (distribution >= 0).all() or abs(float(distribution.sum()) - 1) > 1e-4:
        raise ValueError(f"{str(path)!r} must hold {_NUM_COUNTS} shares that sum to 1; remove it")
    survival: list[float] = distribution.flip(0).cumsum(0).flip(0)[1:].clamp(max=1).tolist()
    return survival


def _unpickle(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, which do not matter here
            mapped = zipfile.is_zipfile(path)  # so that unused base weights are never read
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # damaged pickles can raise any error
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it names {named[1]}" if named else "it is damaged or no torch file of tensors"
        raise ValueError(
            f"{str(path)!r} is refused, and nothing in it was run: {what}; if you trust it, save "
            "its `state_dict` alone as safetensors and import that"
        ) from error


def _check_training(
    block: Mapping[str, Any],
    network: Mapping[str, Any],
    lora: Mapping[str, Any],
    *,
    shifted_by_default: bool,
) -> None:
    """Refuse checkpoints that would load but predict nonsense."""
    if (loss := block.get("loss_type")) not in _LOSSES:
        raise ValueError(
            f"configuration: `loss_type` is {loss!r}; O-PTP checkpoints (bc, bce) can be imported"
        )
    if not network.get("shift_positions", shifted_by_default):
        raise ValueError(
            "configuration: `shift_positions` is false (the older code's default); slots stand at "
            "their target's position - 1 here, so only checkpoints trained that way can be imported"
        )
    check_plain(lora, "configuration: `lora_config`")


def _part(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = tree.get(name)
    if part is not None and not isinstance(part, Mapping):
        raise ValueError(f"configuration: `{name}` is {part!r}; it must be a mapping")
    return part or {}


def _number(tree: Mapping[str, Any], name: str, default: float) -> float:
    value = tree.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"configuration: `{name}` is {value!r}; it must be a number above 0")
    return float(value)


def _whole(tree: Mapping[str, Any], name: str, default: int, lowest: int) -> int:
    value = tree.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError(f"configuration: `{name}` is {value!r}; it must be {lowest} or above")
    return value
