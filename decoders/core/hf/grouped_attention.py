"""Attention of few rows on a CPU, for models whose query heads share key-value heads.

The query heads of a key-value head, laid behind one another as rows, are one product that reads
each entry once; torch's kernels repeat them (docs/log.md).
Letters: B sequences, H query heads, K key-value heads, N rows, T entries seen, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "sdpa_grouped"
"""What the configuration of a module says that runs it."""
_SPECIAL = ("softcap", "position_bias", "cache", "s_aux")
"""Options that only some architectures give: theirs is left to transformers."""
GROUPED_ROWS = 16
"""Wider calls have rows enough for a product of their own."""


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' scaled dot product does, with the rows of a group as one.

    `query` is ``[B, H, N, D]``, `key` and `value` ``[B, K, T, D]``, the mask additive ``[B or 1, 1
    or H, N, T]``. Returns ``[B, N, H, D]``, and no weights.
    """
    num_heads, num_rows = query.shape[1:3]
    num_groups = num_heads // key.shape[1]
    alone = attention_mask is None and num_rows > 1  # causal: the kernel knows how
    special = any(options.get(name) is not None for name in _SPECIAL) or options.get("dropout")
    by_head = attention_mask is not None and attention_mask.shape[1] > 1
    if num_groups == 1 or num_rows > GROUPED_ROWS or alone or special or by_head:
        given: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return given
    rows = query.reshape(query.shape[0], key.shape[1], num_groups * num_rows, query.shape[-1])
    if attention_mask is not None:
        attention_mask = attention_mask[..., : key.shape[2]].repeat(1, 1, num_groups, 1)
    out = nn.functional.scaled_dot_product_attention(
        rows, key, value, attn_mask=attention_mask, scale=scaling
    )
    return out.view(query.shape).transpose(1, 2).contiguous(), None


def group_attention(module: Any) -> None:
    """Let a causal LM group its rows: on a CPU, by torch's kernel, with shared heads."""
    config = module.config.get_text_config()
    shared = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if module.device.type != "cpu" or config._attn_implementation != "sdpa":
        return
    if shared < config.num_attention_heads:
        module.set_attn_implementation(NAME)


def ungroup_attention(module: Any) -> None:
    """Give a causal LM transformers' own attention back."""
    if module.config.get_text_config()._attn_implementation == NAME:
        module.set_attn_implementation("sdpa")


@contextmanager
def own_attention(module: Any) -> Iterator[None]:
    """Run transformers' own attention in a causal LM."""
    grouped = module.config.get_text_config()._attn_implementation == NAME
    ungroup_attention(module)
    try:
        yield
    finally:
        if grouped:
            module.set_attn_implementation(NAME)


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
