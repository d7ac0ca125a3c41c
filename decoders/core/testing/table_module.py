"""Wrap a next-token table as a transformers module: `generate` then has exact distributions.

The tokens themselves are cached as keys, so that cropping the cache forgets them.
Letters: B sequences, N rows of a call, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

Law = Callable[[Sequence[int]], Tensor]


class TableConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Configure two layers, the first of which is an early exit with another table."""

    model_type = "table"


class _Body(nn.Module):
    """Map tokens to logits, which serve as hidden states."""

    def __init__(self, config: Any, whole: Law, early: Law) -> None:
        super().__init__()
        self.config = config
        self._laws = (early, whole)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **_: Any,
    ) -> Any:
        num_layers = self.config.num_hidden_layers
        seen = input_ids
        if past_key_values is not None:
            states = input_ids[:, None, :, None].float()
            for layer in range(num_layers):
                seen = past_key_values.update(states, states, layer)[0][:, 0, :, 0].long()
        law, num_rows = self._laws[num_layers - 1], input_ids.shape[1]
        rows = []
        for number, tokens in enumerate(seen.tolist()):
            mask = [1] * len(tokens) if attention_mask is None else attention_mask[number].tolist()
            for end in range(len(tokens) - num_rows + 1, len(tokens) + 1):
                rows.append(law(list(itertools.compress(tokens[:end], mask))))
        hidden = torch.stack(rows).view(*input_ids.shape, -1)
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=past_key_values)


class TableModule(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """Define a transformers causal LM whose logits ``[B, N, V]`` are functions of the context."""

    config_class = TableConfig
    base_model_prefix = "model"
    _supports_cache_class = True

    def __init__(self, whole: Law, early: Law, *, vocab_size: int, max_length: int) -> None:
        """Take functions from a context to logits ``[V]``, `early` for the exit layer."""
        sizes: dict[str, Any] = {
            "vocab_size": vocab_size,
            "num_hidden_layers": 2,
            "exit_layer": 1,
            "hidden_size": vocab_size,
            "num_attention_heads": 1,
            "max_position_embeddings": max_length,
        }
        super().__init__(TableConfig(**sizes))
        self.model = _Body(self.config, whole, early)
        self.anchor = nn.Parameter(torch.zeros(1), requires_grad=False)  # has the device
        self.requires_grad_(False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """See the class."""
        del position_ids, use_cache  # the cache knows the positions
        out = self.model(input_ids, attention_mask=attention_mask, past_key_values=past_key_values)
        logits = out.last_hidden_state[:, -logits_to_keep or None :]
        return CausalLMOutputWithPast(logits=logits, past_key_values=out.past_key_values)
