"""GPT-Neo on masks of ours: its layers mask by themselves, in every sequence of a call alike.

Its tables take the last rows of the longest text for those that are fed. Masks for each kind of
layer replace them; without, the model runs as transformers made it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_NO_END = 2**24


def is_local(module: Any) -> bool:
    """Tell whether a causal LM is of this kind."""
    return bool(module.config.model_type == "gpt_neo")


def take_masks(module: Any) -> None:
    """Let a GPT-Neo take a dictionary of masks ``[B, 1, N, T]`` by kind (once is enough)."""
    body = module.base_model
    layers = [block.attn.attention for block in body.h]
    if all(hasattr(layer, "own_table") for layer in layers):
        return
    given: dict[str, Any] = {}

    def begin(_: nn.Module, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        masks = named.get("attention_mask")
        if not isinstance(masks, dict):
            return None
        given.update(masks)
        for layer in layers:
            everything = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=layer.own_table.device)
            layer.bias = everything.expand(1, 1, _NO_END, _NO_END)
        return args, {**named, "attention_mask": masks["global"]}

    def replace(
        layer: nn.Module, args: Any, named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        if not given:
            return None
        return args, {**named, "attention_mask": given[str(layer.attention_type)]}

    def end(*_: Any) -> None:
        given.clear()
        for layer in layers:
            layer.bias = layer.own_table

    for layer in layers:
        layer.own_table = layer.bias
        layer.register_forward_pre_hook(replace, with_kwargs=True)
    body.register_forward_pre_hook(begin, with_kwargs=True)
    body.register_forward_hook(end, always_call=True)
