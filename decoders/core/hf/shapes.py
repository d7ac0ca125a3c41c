"""Models of published shapes with random weights, as costs do not depend on weight values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from decoders.core.hf.model import HFModel

_COLUMNS = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("vocab_size", "max_position_embeddings", "tie_word_embeddings"),
)
_ROWS = {
    "smollm2-135m": ("llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, True),
    "llama-1b": ("llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, True),
    "qwen3-8b": ("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 40960, False),
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True)) for name, row in _ROWS.items()
}
"""Shapes of SmolLM2-135M, Llama-3.2-1B and Qwen3-8B."""
_MODELS: Any = AutoModelForCausalLM  # its `from_config` has no types


def shape_config(shape: str | Path, **changes: Any) -> Any:
    """Return the configuration of a name in `SHAPES` or of a folder, or raise `ValueError`."""
    if str(shape) in SHAPES:
        return AutoConfig.for_model(**{**SHAPES[str(shape)], **changes})
    if not (Path(shape) / "config.json").is_file():
        names = ", ".join(SHAPES)
        raise ValueError(f"shape {str(shape)!r} is neither a folder with a config.json nor {names}")
    return AutoConfig.from_pretrained(str(shape), **changes)


def count_weights(config: Any) -> int:
    """Count the weights of a configuration's model, tied weights once."""
    with torch.device("meta"), no_init_weights():
        module = _MODELS.from_config(config)
    module.tie_weights()
    return sum(parameter.numel() for parameter in module.parameters())


def random_model(
    config: Any,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    spread: float = 0.02,
    **options: Any,
) -> HFModel:
    """Make a model with seeded normal weights, norms 1 and biases 0.

    Args:
        config: a configuration of transformers (`shape_config`).
        dtype: of the weights.
        device: of the weights.
        spread: standard deviation of the weights.
        options: see `HFModel`.
    """
    with torch.device(device), no_init_weights():
        module = _MODELS.from_config(config, dtype=dtype)
    module.tie_weights()
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, spread, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return HFModel(module, **options)
