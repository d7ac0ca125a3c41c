"""Attend in training by two batched products, in `hf.llama` and in transformers' modules.

On a CPU and for rows of about 150 tokens, the backward pass of the two products is several times as
fast as the fused kernel's. If all weights are trained, transformers' modules run, because the
products of `hf.llama` are joined.

Letters: B rows, T positions, D width, H heads, N queries, E head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from decoders.core.adapter.gating import cache_argument

ATTENTION = "two-products"


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float) -> Tensor:
    """Return the attention ``[B, N, H, E]`` of queries.

    Args:
        query: ``[B, H, N, E]``.
        key: ``[B, K, T, E]``, where K divides H.
        value: ``[B, K, T, E]``.
        mask: additive ``[B or 1, 1, N, T]``, or a pair: see `_attend_windows`.
        scale: factor on the products of queries and keys.
    """
    if isinstance(mask, tuple):
        return _attend_windows(query, key, value, mask, scale)
    num_batch, heads, rows, size = query.shape
    groups = heads // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if query.is_cuda:
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale
        )
        return mixed.transpose(1, 2).contiguous()
    columns = key.shape[2]
    flat = num_batch * heads
    added = mask.expand(num_batch, heads, rows, columns).reshape(flat, rows, columns)
    queries = query.reshape(flat, rows, size)
    scores = torch.baddbmm(added, queries, key.reshape(flat, columns, size).mT, alpha=scale)
    mixed = torch.bmm(scores.softmax(-1), value.reshape(flat, columns, -1))
    return mixed.view(num_batch, heads, rows, -1).transpose(1, 2).contiguous()


def _attend_windows(
    query: Tensor, key: Tensor, value: Tensor, masks: tuple[Tensor, Tensor], scale: float
) -> Tensor:
    """Return the attention ``[B, N, H, E]`` of slots to the context and to their own windows.

    W windows of L slots each are N rows. Keys and values are ``[B, K, S + N, E]``, the context's
    first. The additive `masks` are ``[B, W, S]`` for the context and ``[B, W, L, L]`` for windows.
    Query heads that share a key head are rows of one matrix product.
    """
    (batch, windows, slots, _), length = masks[1].shape, masks[0].shape[2]
    heads, groups, size = query.shape[1], key.shape[1], query.shape[3]
    share = heads // groups
    q = query.reshape(batch, groups, share, windows, slots, size).permute(0, 1, 3, 4, 2, 5)
    q = q.reshape(batch * groups, windows * slots * share, size)
    far_key, far_value = (part[:, :, :length].flatten(0, 1) for part in (key, value))
    k, v = (part[:, :, length:].reshape(-1, slots, size) for part in (key, value))
    far = torch.baddbmm(q.new_empty(()), q, far_key.mT, beta=0, alpha=scale)
    near = torch.baddbmm(
        q.new_empty(()), q.reshape(-1, slots * share, size), k.mT, beta=0, alpha=scale
    )
    far.view(batch, groups, windows, -1, length).add_(masks[0][:, None, :, None])
    near.view(batch, groups, windows, slots, share, slots).add_(masks[1][:, None, :, :, None])
    seen = torch.cat([far, near.view(len(far), -1, slots)], -1).softmax(-1)
    near_values = torch.bmm(seen[..., length:].reshape(len(near), -1, slots), v)
    mixed = torch.bmm(seen[..., :length], far_value) + near_values.view(q.shape)
    mixed = mixed.view(batch, groups, windows, slots, share, size).permute(0, 2, 3, 1, 4, 5)
    return mixed.reshape(batch, windows * slots, heads, size)


def _attend(
    _: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **facts: Any
) -> tuple[Tensor, None]:
    """Attend as transformers' modules do (`attend`)."""
    assert attention_mask is not None, "transformers makes no mask for this attention; bring one"
    scale = facts.get("scaling") or query.shape[-1] ** -0.5
    return attend(query, key, value, attention_mask, scale), None


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive attention mask: the dtype's minimum where `hidden` is True, else 0."""
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, eager_mask)


def fresh_llama(sizes: Any, **config: Any) -> Any:
    """Return a fresh `LlamaForCausalLM` of `sizes` and a seed, by default with tied weights.

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


def last_states(model: Any, cache: Any = None, **fed: Any) -> Tensor:
    """Return the final normed states ``[B, T, D]`` of the inputs of a model's modules."""
    if cache is not None:
        fed[cache_argument(model.base_model)] = cache
    out = model.base_model(**fed, use_cache=cache is not None)
    hidden: Tensor = out.last_hidden_state
    return hidden
