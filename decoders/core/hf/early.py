"""The first layers of a causal LM as a causal LM of their own, which shares all its weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from decoders.core.adapter.gating import decoder_layers


def early_exit(module: Any, num_layers: int, block: Callable[[Tensor], Tensor]) -> Any:
    """Make a causal LM that runs the first `num_layers` layers of `module`, then `block`.

    It shares all weights, wrappers and hooks; `block` maps hidden states ``[B, N, D]``.
    `ValueError` where the first layers do not run without the others.
    """
    layers = decoder_layers(module)
    if not 1 <= num_layers < len(layers):
        raise ValueError(
            f"an exit after layer {num_layers} of a model of {len(layers)}; it may leave after "
            f"layers 1 to {len(layers) - 1}"
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
    """A layer with a block behind it; asked for anything else, it is the layer."""

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
