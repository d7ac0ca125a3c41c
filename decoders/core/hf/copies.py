"""Copies of a causal LM that share its weights: early exits, and copies without our wrappers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from decoders.core.adapter.gating import decoder_layers
from decoders.core.hf.attention import ungroup_attention


def early_exit(module: Any, num_layers: int, block: Callable[[Tensor], Tensor]) -> Any:
    """Make a causal LM that runs the first `num_layers` layers of `module`, then `block`.

    The copy shares all weights, wrappers and hooks; `block` maps hidden states ``[B, N, D]``.
    `ValueError` if the first layers do not run without the others.
    """
    layers = decoder_layers(module)
    if not 1 <= num_layers < len(layers):
        raise ValueError(
            f"exit after layer {num_layers} of a model with {len(layers)} layers; give a layer "
            f"from 1 to {len(layers) - 1}"
        )
    _check_parts(module)
    shared = [*module.parameters(), *module.buffers(), *layers]
    early = copy.deepcopy(module, {id(part): part for part in shared})
    kept = decoder_layers(early)
    del kept[num_layers:]
    kept[-1] = _LastLayer(kept[-1], block)
    config = early.config.get_text_config()
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:num_layers]
    return early


def _check_parts(module: Any) -> None:
    name, config = type(module).__name__, module.config.get_text_config()
    width, read = config.hidden_size, module.get_output_embeddings().weight.shape[1]
    if width != read:
        raise ValueError(
            f"{name} projects states {width} wide to {read} before its head, which an exit would "
            "leave out; use another adapter"
        )
    for shared in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if getattr(config, shared, 0):
            raise ValueError(
                f"{name} has parts that all of its layers share ({shared}): the first ones do not "
                "run without the others, so there is no exit; use another adapter"
            )


class _LastLayer(nn.Module):
    """A layer followed by a block; all other attributes are those of the layer."""

    def __init__(self, layer: nn.Module, block: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.block = layer, block

    def forward(self, *args: Any, **named: Any) -> Any:
        out = self.layer(*args, **named)
        if isinstance(out, tuple):
            return self.block(out[0]), *out[1:]
        return self.block(out)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


@torch.no_grad()
def library_copy(module: Any) -> Any:
    """Copy a causal LM without our wrappers and hooks; contiguous weights are shared."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        own = tensor if tensor.is_contiguous() else _laid_out(tensor)
        memo[id(tensor)] = own
    copied = copy.deepcopy(module, memo)
    for part in copied.modules():
        vars(part).pop("forward", None)
    with contextlib.suppress(ValueError):  # unknown layers were not hooked either
        for layer in decoder_layers(copied):
            layer._forward_pre_hooks.clear()
            layer._forward_pre_hooks_with_kwargs.clear()
    ungroup_attention(copied)
    return copied


_stop_early: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@torch.no_grad()
def stops_early(module: Any) -> bool:
    """Tell whether a module's body runs only as many layers as its config says; test it once."""
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
