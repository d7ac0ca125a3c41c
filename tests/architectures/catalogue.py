"""Tiny checkpoints of the causal LMs of transformers, from their own configs, with random weights.

Weights are larger than usual, biases and norms included: a wrong mask, position or gate changes
tokens within a few steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.tiny_checkpoint import save_tokenizer

CONTEXT, WINDOW, ORIGINAL = 48, 12, 24
"""Places of a model, of a sliding window, and of the context before it was stretched."""
_SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "dff"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), CONTEXT),
    **dict.fromkeys(("initializer_range", "init_std"), 0.3),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "max_window_layers"), 1),
    **dict.fromkeys(("sliding_window", "window_size"), WINDOW),
    **dict.fromkeys(("head_dim", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("mamba_d_head", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("mamba_d_state", "mamba_dt_rank", "state_size", "rotary_dim"), 4),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    "attention_types": [[["global", "local"], 1]],
    "mamba_n_heads": 8,
    "q_lora_rank": 16,
    "word_embed_proj_dim": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,  # tied, random weights repeat their input
}
"""What a config is given, as far as it has a field of that name."""


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


_BITS = {
    "quant_method": "bitnet",
    "linear_class": "autobitlinear",
    "quantization_mode": "online",
    "modules_to_not_convert": ["lm_head"],
}
_LATENT = {"num_key_value_heads": 4}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_LONG = _rope(
    "longrope",
    short_factor=[1.0] * 4,
    long_factor=[1.5, 2.0, 3.0, 4.0],
    original_max_position_embeddings=ORIGINAL,
)
_PLAIN = [
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "biogpt",
    "bitnet",
    "bloom",
    "codegen",
    "cohere",
    "cohere2",
    "ctrl",
    "cwm",
    "diffllama",
    "doge",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "falcon",
    "falcon_mamba",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_neox_japanese",
    "gptj",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "jais2",
    "jetmoe",
    "llama",
    "mamba",
    "minimax",
    "minimax_m2",
    "ministral",
    "mistral",
    "mixtral",
    "mpt",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "openai-gpt",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "rwkv",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "vaultgemma",
]
CATALOGUE: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in _PLAIN},
    "bitnet, online": {"quantization_config": _BITS},
    "bamba": {"attn_layer_indices": [1]},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "dots1": {"n_shared_experts": 1},
    "falcon, alibi": {"alibi": True},
    "falcon, 40B": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 81},
    "gemma4_text": {
        "vocab_size_per_layer_input": 81,
        "hidden_size_per_layer_input": 8,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "glm4_moe_lite": _LATENT,
    "gpt_oss": _rope("default"),
    "granitemoehybrid, dense": {"layer_types": ["full_attention"] * 2, "num_local_experts": 0},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "llama, dynamic": _rope("dynamic", factor=2.0, original_max_position_embeddings=ORIGINAL),
    "llama, linear": _rope("linear", factor=2.0),
    "llama, llama3": _rope(
        "llama3",
        factor=2.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=ORIGINAL,
    ),
    "llama, yarn": _rope("yarn", factor=2.0, original_max_position_embeddings=ORIGINAL),
    "llama4_text": {"intermediate_size_mlp": 48},
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "minicpm3": _LATENT,
    "opt, projected": {"word_embed_proj_dim": 16},
    "phi3, longrope": {**_LONG, "original_max_position_embeddings": ORIGINAL},
    "phimoe, longrope": _rope(
        "longrope", **_LONG["rope_parameters"], short_mscale=1.0, long_mscale=1.2
    ),
    "qwen2, window": {"use_sliding_window": True},
    "qwen3_5_text": _LINEAR,
    "qwen3_next": _LINEAR,
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": WINDOW},
    "xglm": {"attention_heads": 4},
}
"""Fields of the configs beside the sizes, by type of the model and what is special about it."""


def save(name: str, folder: Path) -> str:
    """Write the checkpoint of a name in `CATALOGUE` and a tokenizer; returns the class."""
    kind, options = name.partition(",")[0], CATALOGUE[name]
    made: Any = CONFIG_MAPPING[kind]
    fields = set(made.__dataclass_fields__) | set(made.attribute_map)
    sizes = {field: value for field, value in _SIZES.items() if field in fields}
    twins = {alias for alias, field in made.attribute_map.items() if field in sizes}
    given = {field: value for field, value in sizes.items() if field not in twins}
    config = made(**{"vocab_size": save_tokenizer(folder), **given, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn(parameter.shape)
    module.save_pretrained(folder)
    return type(module).__name__
