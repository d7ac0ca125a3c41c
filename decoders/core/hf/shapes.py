"""Models of a known shape with random weights: what a call costs does not depend on their values.

Configurations as their publishers give them; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from decoders.core.hf.model import Attention, HFModel
from decoders.core.hf.quantized import Width

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "llama-1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
}
"""SmolLM2-135M, Llama-3.2-1B and Qwen3-8B."""
_MODELS: Any = AutoModelForCausalLM  # its `from_config` has no types
_SPREAD = 0.02


def config_of(shape: str | Path) -> Any:
    """The configuration of a name in `SHAPES`, or of a folder with a config.json.

    Raises:
        ValueError: in one line where there is none.
    """
    if str(shape) in SHAPES:
        return AutoConfig.for_model(**SHAPES[str(shape)])
    if not (Path(shape) / "config.json").is_file():
        known = ", ".join(SHAPES)
        raise ValueError(f"shape {str(shape)!r} is neither a folder with a config.json nor {known}")
    return AutoConfig.from_pretrained(str(shape))


def count_weights(config: Any) -> int:
    """How many weights a model of a configuration has, tied ones counted once."""
    with torch.device("meta"), no_init_weights():
        module = _MODELS.from_config(config)
    module.tie_weights()
    return sum(parameter.numel() for parameter in module.parameters())


def random_model(
    config: Any,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    attn_implementation: Attention | None = None,
    quantized: Width | None = None,
) -> HFModel:
    """A model of a configuration with seeded random weights; norms are one, biases zero.

    Raises:
        ValueError: for an architecture that `HFModel` cannot run.
    """
    with torch.device(device), no_init_weights():
        module = _MODELS.from_config(config, dtype=dtype, attn_implementation=attn_implementation)
    module.tie_weights()
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, _SPREAD, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return HFModel(module, quantized=quantized)
