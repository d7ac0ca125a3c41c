"""`bench import ptp`: turns a checkpoint of the PTP authors into a `SlotAdapter` folder.

The base model is never loaded: the LoRA factors give the shapes of its layers. The authors' code
scales B A by lora_alpha / r and opens the gate only on slots, as ours does, so the factors are
unchanged. Their embeddings of u, by the keys under ``u_embed`` (``u_adapter`` in older files):

    u_adapter.weight (D, 32), .bias     bits of the float32       `float-bits`
    embedding.weight (3, D)             three anchors             `interpolation`
    embedding.weight (32, D)            32 bins                   refused
    embedding.weight (D, 32), .bias     sawtooth or cosines       refused

Source: PTP (arXiv 2512.21323); key layouts of mandt-lab/ptp and its predecessor.
Letters: D hidden width, r rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.core.adapter.config import AdapterConfig
from decoders.core.adapter.embedding import NUM_ANCHORS, Code
from decoders.core.adapter.module import SlotAdapter
from training.importers.lora import Parts, check_new, written
from training.importers.ptp_files import (
    COUNTS_FILE,
    TRAIN_FILE,
    WARP_FILE,
    find_checkpoint,
    read_settings,
    read_state,
    read_survival,
)

LORA = re.compile(
    r"(?:(?:model|student)\.(?:model\.)?)?base_model\.model\.(.+)\.lora_([AB])\.default\.weight"
)
EMBEDDING = re.compile(
    r"(?:model|student)\.(?:u_embed|u_adapter)\.((?:u_adapter|embedding)\.(?:weight|bias))"
)
_STRANGE = (
    "lora_",
    ".u_embed.",
    ".u_adapter.",
    ".u_scale_embed.",
    ".time_embed.",
    ".modules_to_save.",
)
_CODE_OF = {"binary": "float-bits", "linear_interpolation": "interpolation"}
_NUM_BINS = 32


def import_ptp(checkpoint: Path, output: Path, config: Path | None = None) -> str:
    """Convert, write, read back, and return one line about the adapter.

    Args:
        checkpoint: a Lightning ``.ckpt``, a safetensors file with the same keys, or their folder.
        output: folder of the adapter; it must not hold an adapter yet.
        config: ``train.yaml``; by default the one in the checkpoint's folder, if any.
            ``pregenerate.yaml`` is searched in the folders of both.

    Raises:
        ValueError: the checkpoint cannot be imported faithfully; the message is one line.
    """
    check_new(output)
    path = find_checkpoint(checkpoint)
    beside = path.parent / TRAIN_FILE
    train = config or (beside if beside.is_file() else None)
    warps = [folder / WARP_FILE for folder in (path.parent, (train or path).parent)]
    warp = next((warp for warp in warps if warp.is_file()), None)
    fields, rank, embedding = read_settings(train, warp)
    if (counts := path.parent / COUNTS_FILE).is_file():
        fields["measured"] = {"survival": read_survival(counts)}
    parts = _sort_weights(read_state(path))
    adapter = _build_adapter(parts, fields, rank, embedding)
    # keep half precision, so that the file does not grow
    half = parts.dtypes in ({torch.float16}, {torch.bfloat16})
    imported = written(adapter, output, parts.dtypes.pop() if half else torch.float32)
    return (
        f"imported {path.name}: {imported.variant}, rank {imported.rank}, "
        f"{len(imported.layers)} layers, code {imported.code}, {imported.num_slots} slots "
        f"-> {output}"
    )


def _sort_weights(state: Mapping[str, Any]) -> Parts:
    """Pick the trained weights; skip those of the base model and the teacher."""
    parts = Parts()
    for key, value in state.items():
        if key.startswith("teacher."):
            continue
        if "adaLN_modulation" in key:
            raise ValueError(f"{key}: norm patching is not supported by the adapters here")
        if match := LORA.fullmatch(key):
            parts.put_factor(match, value)
        elif match := EMBEDDING.fullmatch(key):
            parts.put(parts.embedding, match[1], key, value)
        elif strange := next((mark for mark in _STRANGE if mark in key), None):
            raise ValueError(f"{key}: unknown `{strange}` weight")
    if not parts.low and not parts.high:
        whole = any(not key.startswith("teacher.") for key in state if not EMBEDDING.fullmatch(key))
        what = "it is a whole model trained without LoRA (`scaling`)" if whole else "there is none"
        raise ValueError(
            f"no LoRA weight was found: {what}; import a LoRA checkpoint, or export the model as a "
            "transformers folder and train an adapter for it with `bench train ptp`"
        )
    return parts


def _build_adapter(
    parts: Parts, fields: Mapping[str, Any], rank: int | None, named: str | None
) -> SlotAdapter:
    """Return the adapter; its blank vector is zero, because PTP's code has no greedy decoding."""
    layers, rank = parts.shapes(rank)
    code, embedding, width = _embed_weights(parts.embedding, named)
    if all(num_in != width for num_in, _ in layers.values()):
        raise ValueError(f"the u embedding is {width} wide, and no layer reads that width")
    config = AdapterConfig(
        variant="o-ptp", layers=layers, width=width, rank=rank, code=code, greedy=False, **fields
    )
    others = {f"embedding.{name}": value for name, value in embedding.items()}
    return parts.adapter(config, {**others, "embedding.blank": torch.zeros(width)})


def _embed_weights(
    tensors: Mapping[str, Tensor], named: str | None
) -> tuple[Code, dict[str, Tensor], int]:
    """Return the code, the weights under our names, and D; `named` is the configuration's name."""
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    bits = shapes.get("u_adapter.bias", ())
    rows = shapes.get("embedding.weight", ())
    code: Code
    if len(bits) == 1 and shapes == {"u_adapter.weight": (*bits, 32), "u_adapter.bias": bits}:
        code, width = "float-bits", bits[0]
        weights = {"net.weight": tensors["u_adapter.weight"], "net.bias": tensors["u_adapter.bias"]}
    elif len(shapes) == 1 and len(rows) == 2 and rows[0] == NUM_ANCHORS and named != "round":
        code, width = "interpolation", rows[1]
        weights = {"anchors": tensors["embedding.weight"]}
    else:
        source = f", {named} by the configuration," if named else ""
        raise ValueError(
            f"the u embedding is {_guess(shapes)}{source} with {shapes or 'no weights'}; binary "
            "(D, 32) and linear_interpolation (3, D) can be imported"
        )
    if named is not None and _CODE_OF.get(named) != code:
        raise ValueError(
            f"the u embedding is {code!r}, the configuration says {named!r}; give the "
            "configuration of this checkpoint"
        )
    return code, weights, width


def _guess(shapes: Mapping[str, tuple[int, ...]]) -> str:
    if "embedding.bias" in shapes:
        return "sawtooth or quarter_cos"
    if shapes.get("embedding.weight", ())[:1] == (_NUM_BINS,):
        return "round"
    return "unknown" if shapes else "missing"
