"""A copy of a causal LM that shares its weights and has none of our wrappers."""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from decoders.core.adapter.gating import decoder_layers


@torch.no_grad()
def library_copy(module: Any) -> Any:
    """Copy a causal LM without our wrappers, sharing contiguous weights."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        weight = tensor if tensor.is_contiguous() else _laid_out(tensor)
        memo[id(tensor)] = weight
    copied = copy.deepcopy(module, memo)
    for part in copied.modules():
        vars(part).pop("forward", None)
    return copied


_stop_early: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@torch.no_grad()
def stops_early(module: Any) -> bool:
    """Test once whether a module's body runs only as many layers as its config says."""
    if module in _stop_early:
        return _stop_early[module]
    try:
        last = decoder_layers(module)[-1]
    except ValueError:
        return True
    ran: list[None] = []
    config = module.base_model.config
    num_layers = getattr(config, "num_hidden_layers", None)
    if num_layers is None:  # a text model next to an image tower has another configuration
        return False
    try:
        config.num_hidden_layers = num_layers - 1
        with last.register_forward_pre_hook(lambda *_: ran.append(None)):
            module(torch.zeros(1, 1, dtype=torch.int64, device=module.device), use_cache=False)
    finally:
        config.num_hidden_layers = num_layers
    _stop_early[module] = not ran
    return not ran


def _laid_out(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.contiguous(), requires_grad=False)
    return tensor.contiguous()
