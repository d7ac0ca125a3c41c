"""Tiny random models of every kind of architecture, shared by tests that need a real module.

Weights are random and larger than usual, biases and norms included, so that a wrong mask, position
or gate moves logits by far more than a tolerance.
"""

import copy
import functools
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig

VOCAB, WIDTH, WINDOW = 97, 32, 7

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GQA: dict[str, Any] = {"num_key_value_heads": 2}

MODELS: dict[str, Any] = {
    "llama": lambda: (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "llama-gqa": lambda: (LlamaForCausalLM, LlamaConfig(**SIZES, **GQA, tie_word_embeddings=True)),
    "llama-bias": lambda: (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, **GQA, attention_bias=True, mlp_bias=True),  # type: ignore[call-arg]
    ),
    "qwen2": lambda: (Qwen2ForCausalLM, Qwen2Config(**SIZES, **GQA)),
    "qwen2-window": lambda: (
        Qwen2ForCausalLM,
        Qwen2Config(
            **SIZES, **GQA, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
        ),
    ),
    "qwen3": lambda: (Qwen3ForCausalLM, Qwen3Config(**SIZES, **GQA, head_dim=16)),
    "mistral": lambda: (MistralForCausalLM, MistralConfig(**SIZES, **GQA, sliding_window=None)),
    "mistral-window": lambda: (
        MistralForCausalLM,
        MistralConfig(**SIZES, **GQA, sliding_window=WINDOW),
    ),
    "gemma": lambda: (GemmaForCausalLM, GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=8)),
    "gemma2-window": lambda: (
        Gemma2ForCausalLM,
        Gemma2Config(
            **SIZES,
            **GQA,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=WINDOW,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
    ),
    "gemma3-window": lambda: (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **SIZES,
            **GQA,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
    "gpt-neox": lambda: (
        GPTNeoXForCausalLM,
        GPTNeoXConfig(**SIZES, rotary_pct=0.5),  # type: ignore[call-arg]
    ),
    "gpt2": lambda: (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=128,
            n_embd=WIDTH,
            n_layer=2,
            n_head=4,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "opt": lambda: (
        OPTForCausalLM,
        OPTConfig(
            **{**SIZES, "init_std": 0.2, "ffn_dim": 48, "word_embed_proj_dim": WIDTH},
        ),
    ),
}


EAGER = ("gemma2-window",)
"""Architectures for which transformers has no other attention."""


def tiny(name: str, attention: str | None = None) -> Any:
    """The module of a name in `MODELS`, the same one every time: wrap and change `fresh` ones.

    Its attention is sdpa, or eager where there is no other.
    """
    return _tiny(name, attention or ("eager" if name in EAGER else "sdpa"))


@functools.cache
def _tiny(name: str, attention: str) -> Any:
    make, config = MODELS[name]()
    torch.manual_seed(0)
    config._attn_implementation = attention
    module = make._from_config(config, attn_implementation=attention, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def fresh(name: str, attention: str | None = None) -> Any:
    """A copy of the module of a name."""
    module = tiny(name, attention)
    wrapped = any("forward" in vars(part) for part in module.modules())
    assert not wrapped, f"a test wrapped the shared module {name}; it must take a fresh one"
    return copy.deepcopy(module)


def slot_adapter(module: Any, **options: Any) -> SlotAdapter:
    """An adapter of a module whose delta, numbers and blank slot matter; options are its fields."""
    config = AdapterConfig(
        layers=layer_shapes(module, options.get("enter", 0)),
        num_slots=4,
        **{"width": WIDTH, "rank": 3, "alpha": 4.5, **options},
    )
    adapter = SlotAdapter(config, seed=2)
    generator = torch.Generator().manual_seed(3)
    for parameter in (*adapter.lora_b.values(), adapter.numbers):
        if parameter is not None:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    if adapter.carried is not None:
        adapter.carried.data = torch.linspace(0.4, 1.3, 4)
    return adapter.eval().requires_grad_(False)


def embedded_slots(
    adapter: SlotAdapter,
    u: torch.Tensor,
    warp: torch.Tensor,
    number: torch.Tensor,
    anchors: torch.Tensor,
) -> torch.Tensor:
    """The inputs ``[K, D]`` of slots, slot by slot."""
    rows = []
    for row, at, anchor in zip(adapter.embedding(u, warp), number.tolist(), anchors, strict=True):
        if adapter.numbers is not None:
            row = row + adapter.numbers[min(at, len(adapter.numbers) - 1)]
        rows.append(row + anchor if adapter.config.anchored and not at else row)
    return torch.stack(rows)
