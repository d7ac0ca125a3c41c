"""A module as transformers made it, beside one that `HFModel` wrapped, hooked and laid out anew."""

from __future__ import annotations

import contextlib
import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from decoders.core.adapter.gating import decoder_layers, linear_layers
from decoders.core.hf.grouped_attention import ungroup_attention


@torch.no_grad()
def library_copy(module: Any) -> Any:
    """Copy a causal LM without our wrappers and hooks; weights that were not moved are shared."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        own = tensor if tensor.is_contiguous() else _laid_out(tensor)
        memo[id(tensor)] = own
    copied = copy.deepcopy(module, memo)
    for layer in linear_layers(copied).values():
        vars(layer).pop("forward", None)
    with contextlib.suppress(ValueError):  # unknown layers were not hooked either
        for layer in decoder_layers(copied):
            layer._forward_pre_hooks.clear()
            layer._forward_pre_hooks_with_kwargs.clear()
    ungroup_attention(copied)
    return copied


_stop_early: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@torch.no_grad()
def stops_early(module: Any) -> bool:
    """Tell whether a module's body runs as many layers as its config says; it is tried once."""
    if module not in _stop_early:
        _stop_early[module] = _tried(module)
    return _stop_early[module]


def _tried(module: Any) -> bool:
    try:
        last = decoder_layers(module)[-1]
    except ValueError:
        return True
    ran: list[None] = []
    config = module.base_model.config
    num_layers = getattr(config, "num_hidden_layers", None)
    if num_layers is None:  # a text model beside an image tower has a configuration of its own
        return False
    hook = last.register_forward_pre_hook(lambda *_: ran.append(None))
    try:
        config.num_hidden_layers = num_layers - 1
        module(torch.zeros(1, 1, dtype=torch.int64, device=module.device), use_cache=False)
    finally:
        config.num_hidden_layers = num_layers
        hook.remove()
    return not ran


def _laid_out(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.contiguous(), requires_grad=False)
    return tensor.contiguous()
