"""Turn published I-DLM checkpoints into a base model and an isd adapter (`bench import idlm`).

The files in the folder tell the two kinds apart:

* ``config.json``: a whole model (I-DLM-8B). Its weights have Qwen3's names, so ``OUTPUT/model`` is
  an ordinary Qwen3 checkpoint: the same files, linked, with a Qwen3 configuration. The remote code
  is not needed. The adapter has no delta: the mask is a row of the embedding. Decoding keeps the
  distribution of *this* model's token rows, not Qwen3's.
* ``adapter_config.json``: a LoRA in PEFT's format, for a base model that must be local too. It
  becomes a gated adapter: only masks run through it; token rows use the base (the paper's R-ISD).

I-DLM places masks as this project does: after the last token, each before its predicted token.

Source: I-DLM (arXiv 2604.11035); key layout of thuEcstasy/I-DLM.
Letters: D hidden width, r rank.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import CONFIG_FILE, AdapterConfig
from decoders.core.hf.checkpoint import first_line

PEFT_CONFIG, MODEL_CONFIG = "adapter_config.json", "config.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FACTOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_RESCALING = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
_TRAINED_ROWS = re.compile(r"base_model\.model\.(?:.+\.)?embed_tokens(?:\..+)?\.weight")
CONFIGS = ("tokenizer*", "vocab.json", "merges.txt", "added_tokens.json", "chat_template*")


def import_idlm(
    checkpoint: Path,
    output: Path,
    *,
    base: Path | None = None,
    stride: int = 4,
    mask_id: int = 151_669,
) -> str:
    """Convert, write, read back, and return one line about the adapter.

    Args:
        checkpoint: folder of a whole model or of a LoRA.
        output: new folder of the adapter; a whole model goes to its subfolder ``model``.
        base: folder of the LoRA's base model.
        stride: stride N that the checkpoint was trained for, by default the release's.
        mask_id: token whose embedding is the mask, by default a row that Qwen3 leaves unused.

    Raises:
        ValueError: the checkpoint cannot be imported faithfully; the message is one line.
    """
    if output.is_file() or any((output / name).exists() for name in (CONFIG_FILE, "model")):
        raise ValueError(f"output {str(output)!r} is in use; give a new folder")
    if (checkpoint / PEFT_CONFIG).is_file():
        if base is None:
            raise ValueError(
                f"{str(checkpoint)!r} is a LoRA; give its base model's folder as --base"
            )
        adapter = _convert_lora(checkpoint, base, stride, mask_id)
    elif (checkpoint / MODEL_CONFIG).is_file():
        adapter = _convert_model(checkpoint, output / "model", stride, mask_id)
    else:
        raise ValueError(
            f"checkpoint {str(checkpoint)!r} holds neither {MODEL_CONFIG} nor {PEFT_CONFIG}; "
            "download it first and give its folder"
        )
    try:
        adapter.save(output, torch.bfloat16)
    except OSError as error:
        raise ValueError(f"output {str(output)!r} cannot be written: {error}") from error
    config = SlotAdapter.load(output).config
    beside = f" for {output / 'model'}" if (output / "model").is_dir() else ""
    return (
        f"imported {checkpoint.name}: isd, rank {config.rank}, {len(config.layers)} layers, "
        f"strides up to {stride}{beside} -> {output}"
    )


def _convert_model(checkpoint: Path, model: Path, stride: int, mask_id: int) -> SlotAdapter:
    """Write the model as a Qwen3 checkpoint, and return an adapter with only a mask."""
    config = _read_tree(checkpoint / MODEL_CONFIG)
    module = _empty(config)
    files = _weight_files(checkpoint)
    expected = {name: tuple(part.shape) for name, part in module.state_dict().items()}
    shapes = {name: tuple(_open(file).get_slice(name).get_shape()) for name, file in files.items()}
    if config.get("tie_word_embeddings"):
        expected[HEAD] = shapes.setdefault(HEAD, expected[EMBEDDING])
    if odd := sorted(expected.items() ^ shapes.items()):
        raise ValueError(
            f"checkpoint {str(checkpoint)!r} is not of Qwen3's layout: {odd[0][0]} is "
            f"{shapes.get(odd[0][0], 'missing')}, Qwen3's {expected.get(odd[0][0], 'has none')}"
        )
    mask = _row(files[EMBEDDING], EMBEDDING, mask_id)
    model.mkdir(parents=True)
    text = json.dumps(_as_qwen3(config), indent=1) + "\n"
    (model / MODEL_CONFIG).write_text(text, encoding="utf-8")
    for file in {*files.values(), *checkpoint.glob("*.safetensors.index.json")}:
        try:
            os.link(file.resolve(), model / file.name)
        except OSError:  # the disk allows no hard link
            shutil.copyfile(file, model / file.name)
    for pattern in (*CONFIGS, "generation_config.json"):
        for file in checkpoint.glob(pattern):
            shutil.copyfile(file, model / file.name)
    return _adapter(module, {}, mask, stride, rank=1, alpha=1.0)


def _convert_lora(checkpoint: Path, base: Path, stride: int, mask_id: int) -> SlotAdapter:
    """Return the gated adapter of a LoRA, without a delta for layers that it does not adapt."""
    peft = _read_tree(checkpoint / PEFT_CONFIG)
    if odd := [name for name in _RESCALING if peft.get(name)]:
        raise ValueError(f"the LoRA sets {odd[0]}; plain LoRA of one rank can be imported")
    try:
        rank, alpha = int(peft["r"]), float(peft["lora_alpha"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{PEFT_CONFIG} gives no r or no lora_alpha ({error!r})") from error
    files = _weight_files(checkpoint)
    trained = [key for key in files if _TRAINED_ROWS.fullmatch(key)]
    factors: dict[str, Tensor] = {}
    for key in files.keys() - {*trained}:
        if (match := _FACTOR.fullmatch(key)) is None:
            raise ValueError(f"{key}: unknown weight")
        name = f"lora_{match[2].lower()}.{match[1].replace('.', '/')}"
        factors[name] = _open(files[key]).get_tensor(key)
    sides = [{key[7:] for key in factors if key.startswith(side)} for side in ("lora_a", "lora_b")]
    if not factors or (odd := sorted(sides[0] ^ sides[1])):
        why = f"one of lora_A and lora_B of {odd[0]}" if factors else "LoRA weights"
        raise ValueError(f"{str(checkpoint)!r} lacks {why}")
    if not all(value.isfinite().all() for value in factors.values()):
        raise ValueError("there are NaN or infinite weights; take another checkpoint")
    key = trained[-1] if trained else EMBEDDING
    mask = _row((files if trained else _weight_files(base))[key], key, mask_id)
    module = _empty(_read_tree(base / MODEL_CONFIG))
    return _adapter(module, factors, mask, stride, rank=rank, alpha=alpha)


def _adapter(
    module: Any,
    factors: Mapping[str, Tensor],
    mask: Tensor,
    stride: int,
    *,
    rank: int,
    alpha: float,
) -> SlotAdapter:
    """Return the adapter of a mask and of LoRA factors, with delta 0 in other layers."""
    config = AdapterConfig(
        variant="isd",
        code="constant",
        num_slots=stride - 1,
        layers=layer_shapes(module),
        width=len(mask),
        rank=rank,
        alpha=alpha,
        base={"architecture": type(module).__name__},
    )
    adapter = SlotAdapter(config)
    state = {**adapter.state_dict(), **factors, "embedding.blank": mask}
    try:
        adapter.load_state_dict({name: value.float() for name, value in state.items()})
    except RuntimeError as error:
        line = " ".join(" ".join(str(error).splitlines()[1:2]).split())
        raise ValueError(f"the LoRA of rank {rank} does not fit its base model: {line}") from error
    return adapter


def _as_qwen3(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration as Qwen3's, without remote code."""
    settings = {name: value for name, value in config.items() if name != "auto_map"}
    return {**settings, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}


def _empty(config: Mapping[str, Any]) -> Any:
    """Return a Qwen3 with this configuration and without weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if config.get("model_type") not in ("sdar", "qwen3"):
        raise ValueError(
            f"model_type is {config.get('model_type')!r}; sdar (I-DLM) and qwen3 can be imported"
        )
    try:
        with torch.device("meta"):
            return Qwen3ForCausalLM(Qwen3Config.from_dict(_as_qwen3(config)))
    except Exception as error:  # a damaged configuration can raise anything
        raise ValueError(
            f"{MODEL_CONFIG} is no configuration of Qwen3: {first_line(error)}"
        ) from error


def _read_tree(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or raise `ValueError` for other content."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {first_line(error)}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{str(path)!r} holds {type(tree).__name__}; it must be an object")
    return tree


def _weight_files(folder: Path) -> dict[str, Path]:
    """Return the file of every weight, by the weight's name."""
    files: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                files |= dict.fromkeys(file.keys(), path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(path)!r} cannot be read: {first_line(error)}") from error
    if not files:
        raise ValueError(f"{str(folder)!r} holds no *.safetensors; only these are read")
    return files


def _open(path: Path) -> Any:
    return safe_open(path, "pt")


def _row(path: Path, name: str, index: int) -> Tensor:
    """Return one row of a matrix without reading the other rows."""
    rows = _open(path).get_slice(name)
    if not 0 <= index < rows.get_shape()[0]:
        raise ValueError(
            f"the mask's id is {index}, and {name} has {rows.get_shape()[0]} rows; "
            "give the right one as --mask-id"
        )
    row: Tensor = rows[index : index + 1][0]
    return row
