"""`bench import ptp`: a checkpoint of the PTP authors becomes a `SlotAdapter` folder.

The base model is never loaded: the shapes of LoRA's factors give those of its layers. Their code
scales B A by lora_alpha / r and opens the gate on slots alone, as ours does, so factors are taken
as they are. Their embeddings of u, by the keys under ``u_embed`` (``u_adapter`` in older files):

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.core.adapter.config import CONFIG_FILE, AdapterConfig
from decoders.core.adapter.embedding import NUM_ANCHORS, Code
from decoders.core.adapter.module import SlotAdapter
from training.importers.ptp_files import (
    COUNTS_FILE,
    TRAIN_FILE,
    WARP_FILE,
    Settings,
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
HEADS = ("lm_head", "embed_out")
_CODE_OF = {"binary": "float-bits", "linear_interpolation": "interpolation"}
_NUM_BINS = 32


@dataclass(frozen=True, slots=True)
class Parts:
    """The trained weights, in float32: A ``[r, in]`` and B ``[out, r]`` by layer, and u's."""

    low: dict[str, Tensor] = field(default_factory=dict)
    high: dict[str, Tensor] = field(default_factory=dict)
    embedding: dict[str, Tensor] = field(default_factory=dict)
    dtypes: set[torch.dtype] = field(default_factory=set)


def import_ptp(checkpoint: Path, output: Path, config: Path | None = None) -> str:
    """Convert, write, read back, and say in one line what was found.

    Args:
        checkpoint: a Lightning ``.ckpt``, a safetensors file of the same keys, or their folder.
        output: the adapter's folder; it must not hold an adapter yet.
        config: ``train.yaml``; by default the one beside the checkpoint, if any.
            ``pregenerate.yaml`` is looked for beside both.

    Raises:
        ValueError: in one line for whatever cannot be imported faithfully.
    """
    if (output / CONFIG_FILE).exists() or output.is_file():
        raise ValueError(f"output {str(output)!r} is in use; give a new folder")
    path = find_checkpoint(checkpoint)
    beside = path.parent / TRAIN_FILE
    train = config or (beside if beside.is_file() else None)
    warps = [folder / WARP_FILE for folder in (path.parent, (train or path).parent)]
    settings = read_settings(train, next((warp for warp in warps if warp.is_file()), None))
    counts = path.parent / COUNTS_FILE
    measured = {"survival": read_survival(counts)} if counts.is_file() else {}
    parts = _sort_weights(read_state(path))
    adapter = _build_adapter(parts, settings, measured)
    # half-precision files stay as small as they were
    dtype = parts.dtypes.pop() if parts.dtypes in ({torch.float16}, {torch.bfloat16}) else None
    try:
        adapter.save(output, dtype or torch.float32)
    except OSError as error:
        raise ValueError(f"output {str(output)!r} cannot be written: {error}") from error
    imported = SlotAdapter.load(output).config
    return (
        f"imported {path.name}: {imported.variant}, rank {imported.rank}, "
        f"{len(imported.layers)} layers, code {imported.code}, {imported.num_slots} slots "
        f"-> {output}"
    )


def _sort_weights(state: Mapping[str, Any]) -> Parts:
    """Pick the trained weights; base weights and the teacher's are passed over.

    Raises:
        ValueError: naming the key that has no place in an adapter.
    """
    parts = Parts()
    for key, value in state.items():
        if key.startswith("teacher."):
            continue
        if "adaLN_modulation" in key:
            raise ValueError(f"{key}: norm patching is not supported by the adapters here")
        if match := LORA.fullmatch(key):
            name, side = match.groups()
            if name in HEADS:
                raise ValueError(f"{key}: the output head cannot be adapted here")
            put(parts, parts.low if side == "A" else parts.high, name, key, value)
        elif match := EMBEDDING.fullmatch(key):
            put(parts, parts.embedding, match[1], key, value)
        elif strange := next((mark for mark in _STRANGE if mark in key), None):
            raise ValueError(f"{key}: a `{strange}` weight that is not known here")
    if not parts.low and not parts.high:
        whole = any(not key.startswith("teacher.") for key in state if not EMBEDDING.fullmatch(key))
        what = "it is a whole model trained without LoRA (`scaling`)" if whole else "there is none"
        raise ValueError(
            f"no LoRA weight was found: {what}; import a LoRA checkpoint, or export the model as a "
            "transformers folder and train an adapter for it with `bench train ptp`"
        )
    return parts


def put(parts: Parts, into: dict[str, Tensor], name: str, key: str, value: Any) -> None:
    """Put a weight into its place, once, as float32."""
    if name in into:
        raise ValueError(f"{key}: this weight comes twice, under an old and a new name")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise ValueError(f"{key}: it must be a tensor of floating-point weights")
    parts.dtypes.add(value.dtype)
    into[name] = value.float()
    if not into[name].isfinite().all():
        raise ValueError(f"{key}: there are NaN or infinite weights; take another checkpoint")


def _build_adapter(
    parts: Parts, settings: Settings, measured: Mapping[str, Any] | None = None
) -> SlotAdapter:
    """The adapter; greedy decoding has no counterpart there, so its blank vector is zero.

    Raises:
        ValueError: for parts that do not fit together or the settings.
    """
    layers, rank = factor_shapes(parts, settings.rank)
    code, embedding, width = _embed_weights(parts.embedding, settings.embedding)
    if all(num_in != width for num_in, _ in layers.values()):
        raise ValueError(f"the u embedding is {width} wide, and no layer reads that width")
    config = AdapterConfig(
        variant="o-ptp",
        num_slots=settings.num_slots,
        layers=layers,
        width=width,
        rank=rank,
        alpha=settings.alpha,
        code=code,
        temperatures=(settings.temperature, settings.temperature),
        top_ps=(settings.top_p,),
        top_k=settings.top_k,
        greedy=False,
        base={"model": settings.model} if settings.model else {},
        measured=measured or {},
    )
    adapter = SlotAdapter(config)
    state = {f"lora_a.{name.replace('.', '/')}": parts.low[name] for name in layers}
    state |= {f"lora_b.{name.replace('.', '/')}": parts.high[name] for name in layers}
    state |= {f"embedding.{name}": value for name, value in embedding.items()}
    adapter.load_state_dict({**state, "embedding.blank": torch.zeros(width)})
    return adapter


def factor_shapes(parts: Parts, rank: int | None) -> tuple[dict[str, tuple[int, int]], int]:
    """(in, out) of every adapted layer, and the one rank; `rank` is the configuration's.

    Raises:
        ValueError: naming the layer whose factors are not a pair, or of another rank.
    """
    shapes: dict[str, tuple[int, int]] = {}
    for name in parts.low | parts.high:
        for side, factors in (("A", parts.low), ("B", parts.high)):
            if name not in factors:
                raise ValueError(f"{name}.lora_{side} is missing")
            if factors[name].ndim != 2:
                shape = _shape(factors[name])
                raise ValueError(f"{name}.lora_{side} is {shape}; it must be a matrix")
        low, high = parts.low[name], parts.high[name]
        if low.shape[0] != high.shape[1]:
            raise ValueError(
                f"{name}: lora_A {_shape(low)} and lora_B {_shape(high)} differ in rank; they must "
                "be (r, in) and (out, r)"
            )
        rank = rank or low.shape[0]
        if low.shape[0] != rank:
            raise ValueError(
                f"{name}: lora_A is of rank {low.shape[0]}, where the configuration or the layers "
                f"before have {rank}; an adapter has one rank"
            )
        shapes[name] = low.shape[1], high.shape[0]
    assert rank is not None, "there is at least one layer"
    return shapes, rank


def _embed_weights(
    tensors: Mapping[str, Tensor], named: str | None
) -> tuple[Code, dict[str, Tensor], int]:
    """The code, the weights under our names, and D; `named` is the configuration's word for it.

    Raises:
        ValueError: for an embedding that is missing, unknown here, or named otherwise.
    """
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
        said = f", {named} by the configuration," if named else ""
        raise ValueError(
            f"the u embedding is {_guess(shapes)}{said} with {shapes or 'no weights'}; binary "
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


def _shape(value: Tensor) -> str:
    return str(tuple(value.shape))
