"""Run GPT-Neo with our masks; its layers apply tables of their own, equal for all sequences.

The tables assume that a call's rows are the last rows of its longest text. Masks per kind of layer
replace the tables; without such masks, the model runs as transformers made it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_NO_END = 2**24


def is_local(module: Any) -> bool:
    """Tell whether a causal LM is a GPT-Neo."""
    return bool(module.config.model_type == "gpt_neo")


def take_masks(module: Any) -> None:
    """Let a GPT-Neo take masks ``[B, 1, N, T]`` by kind of layer; a second call does nothing."""
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
