"""The forward pass of training: transformers' own, with attention as two batched products.

On a CPU and for rows of about 150 tokens, the backward pass of the two products is several times as
fast as that of the fused kernel.

Letters: B rows, T positions, D width, H heads, N queries, E head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

ATTENTION = "two-products"


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    windows: Any = None,
    **facts: Any,
) -> tuple[Tensor, None]:
    """Attend with queries ``[B, H, N, E]`` under an additive mask ``[B or 1, 1, N, T]``.

    If given, `windows(query, key, value, scale)` attends instead (`training.adapter.lean_job`).
    """
    num_batch, heads, rows, size = query.shape
    scale = facts.get("scaling") or size**-0.5
    if windows is not None:
        return windows(query, key, value, scale), None
    groups = heads // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    assert attention_mask is not None, "transformers makes no mask for this attention; bring one"
    if query.is_cuda:
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scale
        )
        return mixed.transpose(1, 2).contiguous(), None
    columns = key.shape[2]
    flat = num_batch * heads
    added = attention_mask.expand(num_batch, heads, rows, columns).reshape(flat, rows, columns)
    queries = query.reshape(flat, rows, size)
    scores = torch.baddbmm(added, queries, key.reshape(flat, columns, size).mT, alpha=scale)
    mixed = torch.bmm(scores.softmax(-1), value.reshape(flat, columns, -1))
    return mixed.view(num_batch, heads, rows, -1).transpose(1, 2).contiguous(), None


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive attention mask: the dtype's minimum where `hidden` is True, else 0."""
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, eager_mask)


def fresh_llama(sizes: Any, **config: Any) -> Any:
    """Return a fresh `LlamaForCausalLM` of the given sizes and seed, by default with tied weights.

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
        llama = LlamaForCausalLM(settings)
    llama.set_attn_implementation(ATTENTION)
    return llama


def head_logits(head: Any, states: Tensor) -> Tensor:
    """Return an output head's float32 logits ``[..., V]`` of hidden states ``[..., D]``."""
    logits: Tensor = head(states.to(head.weight.dtype))
    return logits.float()


def hidden_states(model: Any, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the final normed states (B, T, D), in `dtype`, of right-padded `ids` (B, T)."""
    with torch.autocast(ids.device.type, dtype, enabled=dtype != torch.float32):
        hidden: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return hidden.to(dtype)
