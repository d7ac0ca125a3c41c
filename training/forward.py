"""A lean training forward pass of a Llama model, on the parameters of the transformers model.

Rows start at position 0 and are padded on the right, so a causal mask is all that is needed. On a
CPU, attention is written out with two batched products: for rows of some 150 tokens its backward
pass is several times as fast as the fused kernel's. `tests/training` holds it against transformers.

Letters: B rows, T positions, D width, H heads, E head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_MASKED = -1e9


def fresh_llama(sizes: Any, **config: Any) -> Any:
    """Return a `LlamaForCausalLM` of a recipe's sizes, from its seed; embeddings are tied.

    `sizes` has the fields width, intermediate, layers, heads and seed.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig(
        hidden_size=sizes.width,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        **{"tie_word_embeddings": True, **config},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sizes.seed)  # noqa: TID251 - transformers draws from it; forked
        return LlamaForCausalLM(settings)


def hidden_states(model: Any, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return final normed states (B, T, D) in `dtype` of a `LlamaForCausalLM` for `ids` (B, T)."""
    config = model.config
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    batch, length = ids.shape
    cos, sin = _rotary(length, size, config.rope_parameters["rope_theta"], dtype, ids.device)
    eps, width = config.rms_norm_eps, config.hidden_size
    mask = torch.full((length, length), _MASKED, dtype=dtype, device=ids.device).triu(1)
    x = F.embedding(ids, model.model.embed_tokens.weight.to(dtype))
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        h = F.rms_norm(x, (width,), layer.input_layernorm.weight.to(dtype), eps)
        joined = torch.cat(
            [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        ).to(dtype)
        parts = F.linear(h, joined).view(batch, length, 3, heads, size).permute(2, 0, 3, 1, 4)
        q, k, v = _rotate(parts[0], cos, sin), _rotate(parts[1], cos, sin), parts[2]
        mixed = _attend(q, k, v, mask).transpose(1, 2).reshape(batch, length, width)
        x = x + F.linear(mixed, attention.o_proj.weight.to(dtype))
        h = F.rms_norm(x, (width,), layer.post_attention_layernorm.weight.to(dtype), eps)
        joined = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).to(dtype)
        gate, up = F.linear(h, joined).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, mlp.down_proj.weight.to(dtype))
    return F.rms_norm(x, (width,), model.model.norm.weight.to(dtype), eps)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Causal attention; q, k, v are (B, H, T, E) and so is the result."""
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    batch, heads, length, size = q.shape
    flat = (batch * heads, length, size)
    scores = torch.baddbmm(
        mask.expand(batch * heads, length, length),
        q.reshape(flat),
        k.reshape(flat).transpose(1, 2),
        alpha=size**-0.5,
    )
    return torch.bmm(scores.softmax(-1), v.reshape(flat)).view(q.shape)


def _rotary(
    length: int, size: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.arange(0, size, 2, device=device).float() / size
    angles = torch.outer(torch.arange(length, device=device).float(), theta**-steps)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin
