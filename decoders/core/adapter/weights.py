"""The weights of gated linear layers: base rows use only the base, slot rows base + adapter.

``y = W x + b + g (alpha / r) B A x`` with g = 0 for base rows and 1 for slots (gated LoRA):

* *merged*: slot rows run through ``W + (alpha / r) B A``. Fastest for small weights, at twice the
  weight memory.
* *unmerged*: W for all rows, then the delta on slot rows. Layers that share an input share one
  product with their stacked A.
* `low_rank.LowRankWeights`: as unmerged, with joined W as well; for large weights on a CPU.

Letters: B sequences, N rows of a sequence, S slot rows of a call, r rank.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from decoders.core.adapter.gating import Forward, GatedModule, Layer, by_tiles


class Deltas:
    """An adapter's factors laid out for a module: stacked A per group, scaled B per layer.

    A pair ``(None, D)`` is a full-rank delta ``[out, in]``.
    """

    def __init__(
        self, gated: GatedModule, factors: Mapping[str, tuple[Tensor | None, Tensor]]
    ) -> None:
        """Stack A ``[r, in]`` and B ``[out, r]``, which alpha / r has already scaled."""
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
        """Bytes of the factors and of their stacks."""
        pairs = [pair for pair in self._factors if pair is not None]
        factors = [part for pair in pairs for part in pair if part is not None]
        stacks = [stack for stack in self._stacks if stack is not None]
        return sum(tensor.nbytes for tensor in (*factors, *stacks))

    def __contains__(self, index: int) -> bool:
        """Tell whether a layer has a delta."""
        return self._factors[index] is not None

    def merged(self, index: int) -> Tensor:
        """Return ``W + B A`` of a layer as ``[in, out]``, in the factors' precision."""
        layer, pair = self.gated.layers[index], self._factors[index]
        if pair is None:
            return layer.weight
        low, high = pair
        delta = high if low is None else high @ low
        return layer.weight.to(delta.dtype) + delta.t()

    def delta(self, index: int, x: Tensor) -> Tensor:
        """Return ``B A x`` ``[S, out]`` of rows ``[S, in]`` with one product with A per group."""
        pair = self._factors[index]
        assert pair is not None
        if pair[0] is None:
            return by_tiles(lambda tile: tile @ pair[1].t(), x)
        number, start = self._group_of[index]
        if start == 0 or self._last is None or self._last[0] != number:
            stack = self._stacks[number]
            assert stack is not None
            self._last = (number, by_tiles(lambda tile: tile @ stack, x))
        high, product = pair[1], self._last[1]
        if start + high.shape[1] == product.shape[1]:
            self._last = None  # otherwise it would be an output of a compiled graph
        return by_tiles(lambda tile: tile @ high.t(), product[:, start : start + high.shape[1]])


class GroupedWeights:
    """One weight per layer, or joined weights and one product for layers that share an input."""

    def __init__(self, gated: GatedModule, weight: Callable[[list[int]], Tensor]) -> None:
        """Take `weight`, which returns the joined weights ``[in, sum out]`` of layers by index."""
        self._groups: list[Group] = []
        self._member: dict[int, tuple[Group, int]] = {}
        for indices in gated.groups:
            members = [gated.layers[index] for index in indices]
            group = Group(
                members=members,
                slots=weight(indices),
                bias=_joined_bias(members),
                sizes=[layer.shape[1] for layer in members],
            )
            self._groups.append(group)
            self._member |= {index: (group, member) for member, index in enumerate(indices)}

    @classmethod
    def base(cls, gated: GatedModule) -> Self:
        """View a model's own weights, which must be joined in memory."""
        return cls(gated, lambda indices: _side_by_side([gated.layers[i] for i in indices]))

    def weight(self, index: int) -> Tensor:
        """Return a layer's weight ``[in, out]``."""
        group, member = self._member[index]
        return group.slots.split(group.sizes, 1)[member]  # type: ignore[no-untyped-call,no-any-return]

    def everywhere(self, index: int, x: Tensor) -> Tensor:
        """Run all rows through these weights."""
        return self.part(index, lambda group: group.everywhere(x))

    def part(self, index: int, run: Callable[[Group], Tensor]) -> Tensor:
        """Return a layer's part of its group's output, after a `run` at its first layer."""
        group, member = self._member[index]
        if len(group.sizes) == 1:
            return run(group)
        if not member:
            group.parts = run(group).split(group.sizes, -1)  # type: ignore[no-untyped-call]
        part = group.parts[member]
        if member == len(group.sizes) - 1:
            group.parts = ()  # otherwise they would be outputs of a compiled graph
        return part


class MergedWeights(GroupedWeights):
    """``W + B A`` of every layer, merged once for decoding or for training with an open gate."""

    def __init__(self, deltas: Deltas, dtype: torch.dtype) -> None:
        """Merge in the factors' precision, then cast to `dtype`."""
        super().__init__(
            deltas.gated,
            lambda indices: torch.cat([deltas.merged(index).to(dtype) for index in indices], 1),
        )
        joined = deltas.gated.side_by_side
        for group, indices in zip(self._groups, deltas.gated.groups, strict=True):
            group.plain = not any(index in deltas for index in indices)
            weights = [layer.weight for layer in group.members]
            group.base = [_side_by_side(group.members)] if joined else weights

    @property
    def num_bytes(self) -> int:
        """Bytes of the merged weights, without the module's own base weights."""
        return sum(group.slots.nbytes for group in self._groups)

    def tail(self, first: int, num_rows: int) -> Forward:
        """Gate one sequence of `num_rows` rows, of which rows from `first` on are slots."""
        rows = _tail(first, num_rows, self._groups[0].slots.device)
        return self._gated(rows)

    def scattered(self, base: Tensor, slots: Tensor) -> Forward:
        """Gate several sequences by flat indices of base rows (padding too) and slots."""
        return self._gated(_GatedRows.of(base, slots))

    def _gated(self, rows: _GatedRows) -> Forward:
        return lambda index, x: self.part(index, lambda group: group.gated(x, rows))

    def gate(self, base: Tensor, slots: Tensor, *, bucketed: bool) -> dict[str, Tensor]:
        """Return the inputs of `through`, padded to powers of two of rows if `bucketed`."""
        fed = (_filled_up(base, bucketed), _filled_up(slots, bucketed))
        index = torch.arange(len(fed[0]) + len(slots), device=base.device)
        back = base.new_empty(len(base) + len(slots))
        back[base], back[slots] = index[: len(base)], index[len(fed[0]) :]
        return {"gate.base": fed[0], "gate.slots": fed[1], "gate.back": back}

    def through(self, gate: Mapping[str, Tensor]) -> Forward:
        """Gate rows by a `gate`, with shapes that depend only on those of its tensors."""
        base, slots, back = (gate[f"gate.{part}"] for part in ("base", "slots", "back"))
        return self._gated(_GatedRows(torch.cat((base, slots)), back.flatten(), base.shape[0]))


@dataclass(frozen=True, slots=True)
class _GatedRows:
    """A call's rows: base rows, then slots in `index`, and each row's place there in `back`."""

    index: Tensor
    back: Tensor
    num_base: int

    @classmethod
    def of(cls, base: Tensor, slots: Tensor) -> _GatedRows:
        index = torch.cat((base, slots))
        return cls(index, index.argsort(), len(base))


def _filled_up(rows: Tensor, bucketed: bool) -> Tensor:
    """Pad with row 0 up to `graph_size`."""
    return nn.functional.pad(rows, (0, graph_size(len(rows), bucketed) - len(rows)))


@functools.lru_cache(maxsize=1024)
def _tail(first: int, num_rows: int, device: torch.device) -> _GatedRows:
    rows = torch.arange(num_rows, device=device)
    return _GatedRows.of(rows[:first], rows[first:])


@dataclass(slots=True)
class Group:
    """Layers that share an input.

    A `plain` group has no delta. `base` are the module's weights, one tensor if they are joined.
    """

    members: Sequence[Layer]
    slots: Tensor
    bias: Tensor | None
    sizes: list[int]
    plain: bool = False
    parts: Sequence[Tensor] = ()
    base: Sequence[Tensor] = ()

    def everywhere(self, x: Tensor) -> Tensor:
        """Run every row ``[B, N, in]`` through `slots`."""
        y = by_tiles(lambda tile: tile @ self.slots, x)
        return y if self.bias is None else y + self.bias

    def gated(self, x: Tensor, rows: _GatedRows) -> Tensor:
        """Run base rows through `base` and slot rows through `slots`, given all ``[B, N, in]``."""
        if self.plain:
            return self.everywhere(x)
        inputs = x.reshape(-1, x.shape[-1]).index_select(0, rows.index)
        base, slots = inputs[: rows.num_base], inputs[rows.num_base :]
        products = [base @ weight for weight in self.base]
        y = products[0] if len(products) == 1 else torch.cat(products, 1)
        y = torch.cat((y, slots @ self.slots))
        y = y.index_select(0, rows.back).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def _side_by_side(layers: Sequence[Layer]) -> Tensor:
    first, width = layers[0].weight, sum(layer.shape[1] for layer in layers)
    joined = first.as_strided((first.shape[0], width), first.stride())
    dense = joined.is_contiguous() or joined.t().is_contiguous()
    assert dense, "the weights are not stored side by side"
    return joined


def _joined_bias(layers: Sequence[Layer]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    parts = [
        layer.weight.new_zeros(layer.shape[1]) if layer.bias is None else layer.bias
        for layer in layers
    ]
    return torch.cat(parts)


class Delta(ABC):
    """The delta of a layer, or of layers that share an input."""

    @abstractmethod
    def delta_rows(self, x: Tensor) -> Tensor:
        """Return ``B A x`` ``[S, out]`` of rows ``[S, in]``."""

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add the delta of rows ``[S, in]`` to their outputs ``[S, out]``, in place."""
        y += self.delta_rows(x)


class AddedWeights:
    """W for all rows plus the delta for slots, with a rule by the subclass of how a layer runs."""

    def run(self, index: int, x: Tensor, add: Callable[[Delta, Tensor, Tensor], object]) -> Tensor:
        """Return a layer's output ``[B, N, out]`` after `add` of deltas to rows ``[B N, in]``."""
        raise NotImplementedError

    def everywhere(self, index: int, x: Tensor) -> Tensor:
        """Treat all rows as slots."""
        return self.run(index, x, lambda delta, x, y: delta.add(x, y))

    def tail(self, first: int, num_rows: int) -> Forward:
        """Gate as `MergedWeights.tail`, without need of `num_rows`."""
        del num_rows
        return lambda index, x: self.run(
            index, x, lambda delta, x, y: delta.add(x[first:], y[first:])
        )

    def scattered(self, base: Tensor, slots: Tensor) -> Forward:
        """See `MergedWeights.scattered`."""
        del base
        return lambda index, x: self.run(
            index, x, lambda delta, x, y: y.index_add_(0, slots, delta.delta_rows(x[slots]))
        )

    def gate(self, base: Tensor, slots: Tensor, *, bucketed: bool) -> dict[str, Tensor]:
        """Gate as `MergedWeights.gate`, with gate 1 for slot rows and 0 for base rows."""
        del bucketed
        gate = torch.zeros(len(base) + len(slots), 1, device=slots.device)
        gate[slots] = 1.0
        return {"gate": gate}

    def through(self, gate: Mapping[str, Tensor]) -> Forward:
        """See `MergedWeights.through`: the delta of all rows, multiplied by the gate."""
        return lambda index, x: self.run(
            index,
            x,
            lambda delta, x, y: y.add_(delta.delta_rows(x) * gate["gate"].view(-1, 1).to(y.dtype)),
        )


class UnmergedWeights(AddedWeights):
    """Weights run layer by layer, also in training, with deltas in the module's dtype."""

    def __init__(self, deltas: Deltas) -> None:
        """Take the deltas of a module's layers."""
        self.deltas, self.layers = deltas, deltas.gated.layers
        self.num_bytes = deltas.num_bytes
        self._layer_deltas = [_LayerDelta(deltas, index) for index in range(len(self.layers))]

    def run(self, index: int, x: Tensor, add: Callable[[Delta, Tensor, Tensor], object]) -> Tensor:
        """See `AddedWeights.run`."""
        y = self.layers[index].plain(x)
        if index in self.deltas:
            add(self._layer_deltas[index], x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1]))
        return y


@dataclass(frozen=True, slots=True)
class _LayerDelta(Delta):
    deltas: Deltas
    index: int

    def delta_rows(self, x: Tensor) -> Tensor:
        return self.deltas.delta(self.index, x)


def graph_size(number: int, bucketed: bool) -> int:
    """Round a size up: to a power of two if `bucketed`, else to 2, as 1 needs another graph."""
    return power_of_two(max(1, number)) if bucketed else max(2, number)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least a number."""
    return 1 << (number - 1).bit_length()
