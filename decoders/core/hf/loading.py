"""Load transformers checkpoints, only from safetensors and without running their code.

A loaded module can be copied without our wrappers (`library_copy`).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from decoders.core.adapter.gating import decoder_layers
from decoders.core.hf.architecture import max_sequence_length
from decoders.core.hf.checkpoint import (
    MERGE_IT,
    base_config,
    find_checkpoint,
    is_of_memory,
    refusing_panics,
    unavailable,
)

DeviceMap = str | Mapping[str, str | int]
_TOKENIZER = ("tokenizer_config.json", "tokenizer.json")


def load_module(
    path_or_id: str | Path, *, dtype: torch.dtype, device_map: DeviceMap | None = None
) -> tuple[Any, tuple[str, ...]]:
    """Load a causal LM, with notes on weights of its files that it does not take.

    Arguments and errors are those of `HFModel.load`.
    """
    source = find_checkpoint(path_or_id, "model", "config.json")
    try:
        with no_bars():  # the terminal belongs to the caller
            both: Any = AutoModelForCausalLM.from_pretrained(
                source,
                config=base_config(source),
                device_map=device_map,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            module, loaded = both
        if getattr(module, "_hf_peft_config_loaded", False):
            raise ValueError(MERGE_IT)
    except Exception as error:  # the library may raise anything on a damaged folder
        if is_of_memory(error):
            raise
        raise unavailable(path_or_id, "model", error) from error
    if lacking := sorted(loaded["missing_keys"]):  # else they would be random
        missing = f"{lacking[0]} and {len(lacking) - 1} more" if lacking[1:] else lacking[0]
        raise ValueError(
            f"model {str(path_or_id)!r} lacks weights of its architecture ({missing}); give a "
            "complete folder of save_pretrained"
        )
    notes = []
    if names := sorted(loaded["unexpected_keys"]):
        text = f"{names[0]} and {len(names) - 1} more" if names[1:] else names[0]
        notes.append(
            f"the architecture has no place for {len(names)} of its files' weights, which are left "
            f"out ({text}): do config.json and the weights belong together?"
        )
    return module, tuple(notes)


def load_tokenizer(path_or_id: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint folder or hub model, or raise `ValueError`."""
    source = find_checkpoint(path_or_id, "tokenizer", *_TOKENIZER)
    try:
        with refusing_panics():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                source, trust_remote_code=False
            )
    except Exception as error:  # the library raises a bare Exception if it is damaged
        raise unavailable(path_or_id, "tokenizer", error) from error
    return tokenizer


def has_tokenizer(path_or_id: str | Path) -> bool:
    """Tell whether a checkpoint has its own tokenizer (a hub model counts as having one)."""
    folder = Path(path_or_id).expanduser()
    return not folder.is_dir() or any((folder / name).is_file() for name in _TOKENIZER)


def max_context(path_or_id: str | Path) -> int | None:
    """Return a checkpoint's longest sequence without loading it, or None if its config names none.

    Raises:
        ValueError: there is no such checkpoint, or its configuration cannot be read.
    """
    source = find_checkpoint(path_or_id, "model", "config.json")
    try:
        config = base_config(source) or AutoConfig.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # the library may raise anything on a damaged folder
        raise unavailable(path_or_id, "model", error) from error
    return max_sequence_length(config.get_text_config())


def placement(module: Any) -> str:
    """Count a module's decoder layers by device, as in ``cuda:0 20, disk 12``."""
    whole: Mapping[str, Any] = getattr(module, "hf_device_map", {"": module.device})
    names = {id(part): name for name, part in module.named_modules()}
    counts = Counter[str]()
    for layer in decoder_layers(module):
        name = names[id(layer)]
        while name and name not in whole:
            name = name.rpartition(".")[0]
        device = whole.get(name)
        counts[f"cuda:{device}" if isinstance(device, int) else str(device)] += 1
    return ", ".join(f"{device} {count}" for device, count in counts.items())


@contextmanager
def no_bars() -> Iterator[None]:
    """Hide the progress bars of tqdm, which transformers and the hub's client use."""
    bars: Any = tqdm
    init = bars.__init__

    def hidden(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "disable": True})

    bars.__init__ = hidden
    try:
        yield
    finally:
        bars.__init__ = init


@torch.no_grad()
def library_copy(module: Any) -> Any:
    """Copy a causal LM without our wrappers, sharing contiguous weights."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        weight = tensor.contiguous()
        if weight is not tensor and isinstance(tensor, nn.Parameter):
            weight = nn.Parameter(weight, requires_grad=False)
        memo[id(tensor)] = weight
    copied = copy.deepcopy(module, memo)
    for part in copied.modules():
        vars(part).pop("forward", None)
    return copied
