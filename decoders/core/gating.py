"""Which linear layers of a model are gated, and how an adapter is put in their place.

Each linear layer of a module is wrapped once; while nothing is active the wrapper is the layer
itself. What an active adapter computes there is in `gated_weights`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer that can be gated: its weight ``[in, out]`` and bias, as views."""

    name: str
    plain: Callable[[Tensor], Tensor]
    weight: Tensor
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """(in, out)."""
        return self.weight.shape[0], self.weight.shape[1]


def linear_layers(module: Any) -> dict[str, nn.Module]:
    """Every linear layer of a causal LM except the output head (GPT-2's `Conv1D` is one)."""
    head = module.get_output_embeddings()
    return {
        name: layer
        for name, layer in module.named_modules()
        if layer is not head and (isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D")
    }


def layer_shapes(module: Any) -> dict[str, tuple[int, int]]:
    """(in, out) of every layer that `linear_layers` finds."""
    return {name: _layer(name, layer).shape for name, layer in linear_layers(module).items()}


def _layer(name: str, layer: nn.Module) -> Layer:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    bias = layer.bias if isinstance(layer.bias, Tensor) else None
    is_linear = isinstance(layer, nn.Linear)
    return Layer(name, layer.forward, weight.t() if is_linear else weight, bias)


class GatedModule:
    """A module whose linear layers are wrapped; `active` puts an adapter to work."""

    def __init__(self, module: Any) -> None:
        """Wrap the layers of a transformers causal LM in place."""
        found = linear_layers(module)
        self.layers = [_layer(name, layer) for name, layer in found.items()]
        self.groups = _shared_inputs(module, list(found.values()))
        self._active: Forward | None = None
        for index, layer in enumerate(found.values()):
            layer.forward = self._wrapped(index, layer.forward)

    def _wrapped(self, index: int, plain: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            active = self._active
            return plain(x) if active is None else active(index, x)

        return forward

    @contextmanager
    def active(self, forward: Forward) -> Iterator[None]:
        """While inside, layer `index` of `layers` computes ``forward(index, x)``."""
        assert self._active is None, "an adapter is active already"
        self._active = forward
        try:
            yield
        finally:
            self._active = None


@torch.no_grad()
def _shared_inputs(module: Any, layers: Sequence[nn.Module]) -> list[list[int]]:
    """Indices of layers in call order, grouped where they are fed the very same tensor."""
    groups: list[list[int]] = []
    fed: list[Tensor] = []  # kept, so that no address is used twice

    def note(index: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if fed and args[0] is fed[-1]:
                groups[-1].append(index)
            else:
                fed.append(args[0])
                groups.append([index])

        return hook

    hooks = [layer.register_forward_pre_hook(note(i)) for i, layer in enumerate(layers)]
    try:
        module(torch.zeros(1, 1, dtype=torch.int64, device=module.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return groups
