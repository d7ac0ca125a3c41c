"""Gated linear layers: base rows see the base weights alone, slot rows base + adapter.

``y = W x + b + g (alpha / r) B A x`` with g = 0 for base rows and 1 for slots (gated LoRA). Each
linear layer of a module is wrapped once; while nothing is active the wrapper is the layer itself.
Two ways of computing the same numbers:

* *merged*: slot rows go through ``W + (alpha / r) B A``, base rows through W. Fastest where the
  weights are small, at twice the weight memory.
* *unmerged*: W for all rows, then the low-rank delta on slot rows. Layers that read the same input
  (q, k, v; gate, up) share one product with their stacked A.

Letters: R rows of a merged call, S slot rows among them, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """A module whose linear layers are wrapped; `rows` and `everywhere` activate an adapter."""

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


class Deltas:
    """An adapter's low-rank factors laid out for a module: stacked A per group, scaled B per layer.

    A layer without factors (`factors` lacks its name) is left alone; a factor pair ``(None, D)`` is
    a full-rank delta ``[out, in]``.
    """

    def __init__(
        self, gated: GatedModule, factors: Mapping[str, tuple[Tensor | None, Tensor]]
    ) -> None:
        """`factors`: by layer name, A ``[r, in]`` and B ``[out, r]``, B scaled by alpha / r."""
        self.gated = gated
        self._factors = [factors.get(layer.name) for layer in gated.layers]
        self._group_of: dict[int, tuple[int, int]] = {}
        self._stacks: list[Tensor | None] = []
        for number, group in enumerate(gated.groups):
            stacked, start = [], 0
            for index in group:
                pair = self._factors[index]
                if pair is not None and pair[0] is not None:
                    self._group_of[index] = (number, start)
                    stacked.append(pair[0])
                    start += len(pair[0])
            self._stacks.append(torch.cat(stacked).t() if stacked else None)
        self._last: tuple[int, Tensor] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the factors and of the stacks made of them."""
        pairs = [pair for pair in self._factors if pair is not None]
        factors = [part for pair in pairs for part in pair if part is not None]
        stacks = [stack for stack in self._stacks if stack is not None]
        return sum(tensor.nbytes for tensor in (*factors, *stacks))

    def merged(self, index: int) -> Tensor:
        """``W + B A`` of a layer as ``[in, out]``, computed in the factors' precision."""
        layer, pair = self.gated.layers[index], self._factors[index]
        if pair is None:
            return layer.weight
        low, high = pair
        delta = high if low is None else high @ low
        return layer.weight.to(delta.dtype) + delta.t()

    def delta(self, index: int, x: Tensor) -> Tensor | None:
        """``B A x`` ``[S, out]`` of rows ``[S, in]``; a group shares the product with its A."""
        pair = self._factors[index]
        if pair is None:
            return None
        if pair[0] is None:
            return x @ pair[1].t()
        number, start = self._group_of[index]
        if start == 0 or self._last is None or self._last[0] != number:
            stack = self._stacks[number]
            assert stack is not None
            self._last = (number, x @ stack)
        high = pair[1]
        return self._last[1][:, start : start + high.shape[1]] @ high.t()


class MergedWeights:
    """W + B A of every layer, once; serves the merged way and training with the gate open.

    The weights of a group stand side by side, so that its slots take one product.
    """

    def __init__(self, deltas: Deltas, dtype: torch.dtype) -> None:
        """Merge in the factors' precision, then cast to `dtype`."""
        self.layers, self._groups = deltas.gated.layers, deltas.gated.groups
        self._stacks: list[Tensor] = []
        self._place: dict[int, tuple[int, int, int]] = {}
        for number, group in enumerate(self._groups):
            parts = [deltas.merged(index).to(dtype) for index in group]
            self._stacks.append(torch.cat(parts, 1) if len(parts) > 1 else parts[0].contiguous())
            start = 0
            for index, part in zip(group, parts, strict=True):
                self._place[index] = (number, start, part.shape[1])
                start += part.shape[1]
        self._last: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def num_bytes(self) -> int:
        """Bytes of the merged weights."""
        return sum(stack.nbytes for stack in self._stacks)

    def weight(self, index: int) -> Tensor:
        """``W + B A`` of a layer, ``[in, out]``."""
        number, start, size = self._place[index]
        return self._stacks[number].narrow(1, start, size)

    def _slots(self, index: int, x: Tensor) -> Tensor:
        """The output ``[S, out]`` of slot rows ``[S, in]``."""
        number, start, size = self._place[index]
        if start == 0 or self._last[0] != number:
            self._last = (number, x @ self._stacks[number])
        out, bias = self._last[1].narrow(1, start, size), self.layers[index].bias
        return out if bias is None else out + bias

    def everywhere(self, index: int, x: Tensor) -> Tensor:
        """All rows are slots."""
        return self._slots(index, x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)

    def tail(self, first: int) -> Forward:
        """One sequence whose rows from `first` on are slots."""

        def forward(index: int, x: Tensor) -> Tensor:
            flat = x.view(-1, x.shape[-1])
            base = self.layers[index].plain(flat[:first])
            out = torch.cat([base, self._slots(index, flat[first:])])
            return out.view(*x.shape[:-1], -1)

        return forward

    def scattered(self, base: Tensor, slots: Tensor) -> Forward:
        """Several sequences: flat indices of the base rows (padding too) and of the slots."""

        def forward(index: int, x: Tensor) -> Tensor:
            flat = x.reshape(-1, x.shape[-1])
            base_rows = self.layers[index].plain(flat[base])
            out = base_rows.new_empty(len(flat), base_rows.shape[1])
            out[base] = base_rows
            out[slots] = self._slots(index, flat[slots])
            return out.view(*x.shape[:-1], -1)

        return forward


class UnmergedWeights:
    """W for all rows, the delta for slots."""

    def __init__(self, deltas: Deltas) -> None:
        """`deltas` in the dtype of the module."""
        self.deltas = deltas
        self.layers = deltas.gated.layers

    def everywhere(self, index: int, x: Tensor) -> Tensor:
        """All rows are slots."""
        y = self.layers[index].plain(x)
        delta = self.deltas.delta(index, x.reshape(-1, x.shape[-1]))
        return y if delta is None else y + delta.view_as(y)

    def tail(self, first: int) -> Forward:
        """One sequence whose rows from `first` on are slots."""

        def forward(index: int, x: Tensor) -> Tensor:
            y = self.layers[index].plain(x)
            delta = self.deltas.delta(index, x.view(-1, x.shape[-1])[first:])
            if delta is not None:
                y.view(-1, y.shape[-1])[first:] += delta
            return y

        return forward

    def scattered(self, base: Tensor, slots: Tensor) -> Forward:
        """Several sequences: flat indices of the base rows (not needed here) and of the slots."""
        del base

        def forward(index: int, x: Tensor) -> Tensor:
            y = self.layers[index].plain(x)
            delta = self.deltas.delta(index, x.reshape(-1, x.shape[-1]).index_select(0, slots))
            if delta is not None:
                y.view(-1, y.shape[-1]).index_add_(0, slots, delta)
            return y

        return forward
