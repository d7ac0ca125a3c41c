"""A preallocated KV cache that calls write in place.

A *plane* holds the keys or the values of one layer, ``[B, H, C, D]``. Planes of equal shape share
one allocation, so that views of all layers take few operations. Letters: B cache rows, H key-value
heads, C entries per row (plus a scrap entry for padding), D head dimension, N rows, T entries read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from decoders.core.upload import upload

PlaneShape = tuple[int, int]
"""(H, D) of a plane."""


class PlaneCache(Cache):
    """A transformers cache on the planes of a graph: writes `entries` and reads the first T."""

    def __init__(self, planes: Sequence[Tensor], entries: Tensor, seen: int) -> None:
        """Take the planes, the entries ``[B, N]`` that the rows are written to, and T (`seen`)."""
        super().__init__(layers=[])
        self._planes, self._seen = planes, seen
        self._call_entries = self._entries = entries
        self._indices: dict[int, Tensor] = {}

    def only(self, rows: Tensor | None) -> None:
        """Let the next layers write `rows` of the entries only, or all (None)."""
        entries = self._call_entries
        self._entries = entries if rows is None else entries.index_select(1, rows)
        self._indices.clear()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new states ``[B, H, N, D]`` and return all it reads, ``[B, H, T, D]``."""
        return (
            self._update(2 * layer_idx, key_states),
            self._update(2 * layer_idx + 1, value_states),
        )

    def _update(self, number: int, states: Tensor) -> Tensor:
        plane = self._planes[number]
        num_rows, num_heads, capacity, dim = plane.shape
        if num_heads not in self._indices:
            rows = torch.arange(num_rows, device=plane.device)[:, None]
            self._indices[num_heads] = flat_entries(rows, self._entries, num_heads, capacity)
        index = self._indices[num_heads]
        plane.view(-1, dim).index_copy_(0, index, states.reshape(-1, dim))
        return plane.narrow(2, 0, self._seen)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0, because masks and positions are passed explicitly."""
        return 0


def flat_entries(rows: Tensor, entries: Tensor, num_heads: int, capacity: int) -> Tensor:
    """Return indices ``[S * K * E]`` of entries in a flat plane ``[B * K * C]``, for K heads.

    `rows` ``[S, 1]`` or ``[S, E]`` are the cache rows of the `entries` ``[S, E]``.
    """
    head = torch.arange(num_heads, device=rows.device)[:, None]
    return ((rows[:, None] * num_heads + head) * capacity + entries[:, None]).view(-1)


class KVStore(Cache):
    """Keys and values of every layer, as a transformers cache.

    A call first announces its entries (`at`, `scattered` or `packed`). Then every layer calls
    `update` once.
    """

    def __init__(
        self,
        planes: Sequence[PlaneShape],
        devices: Sequence[torch.device],
        num_rows: int,
        capacity: int,
        *,
        dtype: torch.dtype,
    ) -> None:
        """Allocate zeros for `planes` (keys of layer 0, its values, …), each on its device."""
        super().__init__(layers=[])
        self.num_rows = num_rows
        self.scrap = capacity
        self.start = self.stop = 0
        groups: list[list[int]] = []
        kinds = list(zip(planes, devices, strict=True))
        for index, kind in enumerate(kinds):
            alike = next((g for g in groups if kinds[g[0]] == kind), None)
            groups.append([index]) if alike is None else alike.append(index)
        with torch.inference_mode(False):  # inference tensors could not be edited outside of it
            self._bases = [
                torch.zeros(
                    len(group), num_rows, heads, capacity + 1, dim, dtype=dtype, device=placed
                )
                for group in groups
                for (heads, dim), placed in (kinds[group[0]],)
            ]
        self._group_of = [0] * len(planes)
        self._order: list[int] | None = None
        if len(groups) > 1:
            flat = [index for group in groups for index in group]
            self._order = sorted(range(len(flat)), key=flat.__getitem__)
            for number, group in enumerate(groups):
                for index in group:
                    self._group_of[index] = number
        self._row_bases = [[base.narrow(1, r, 1) for base in self._bases] for r in range(num_rows)]
        self._planes = self._views(self._bases, lambda base: base)
        self._parts: dict[tuple[int, int], Sequence[Tensor]] = {}
        self._into: Sequence[Tensor] | None = None
        self._reads: Sequence[Tensor] | None = None
        self._whole: Sequence[Tensor] = ()
        self._announced: tuple[Tensor, Tensor] | None = None
        self._indices: list[Tensor] = []
        self._read_rows: list[Tensor] | None = None
        self._span = (0, 0)

    @property
    def num_bytes(self) -> int:
        """Bytes of all planes."""
        return sum(base.nbytes for base in self._bases)

    def _views(self, bases: Sequence[Tensor], view: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
        if self._order is None:
            return view(bases[0]).unbind(0)
        parts = [part for base in bases for part in view(base).unbind(0)]
        return [parts[plane] for plane in self._order]

    def row_planes(self, first: int, count: int) -> Sequence[Tensor]:
        """Return all planes of `count` rows from `first` on, each ``[count, H, C, D]``."""
        if (first, count) not in self._parts:
            parts = self._views(self._bases, lambda base: base.narrow(1, first, count))
            self._parts[first, count] = parts
        return self._parts[first, count]

    def at(self, row: int, start: int, stop: int) -> None:
        """Let the next call write entries `start` to `stop` of one row, and read 0 to `stop`."""
        self.start, self.stop = start, stop
        bases = self._row_bases[row]
        self._into = self._views(bases, lambda base: base.narrow(3, start, stop - start))
        self._reads = self._views(bases, lambda base: base.narrow(3, 0, stop))
        self._whole, self._announced = self._into, None

    def only(self, rows: Tensor | None) -> None:
        """Let the next layers write `rows` of the announced call only, its first ones, or all."""
        if self._announced is not None:
            places, entries = self._announced
            self._index(places, entries if rows is None else entries.index_select(1, rows))
        else:
            views = self._whole
            self._into = views if rows is None else [each.narrow(2, 0, len(rows)) for each in views]

    def scattered(self, rows: Tensor, entries: Tensor, stop: int, first: int | None) -> None:
        """Let the next call write `entries` ``[B', N]`` of `rows` ``[B']``, and read 0 to `stop`.

        If the rows are consecutive from `first` on, they are read as a view. None: as a copy.
        """
        self.start, self.stop = 0, stop
        self._into = None
        self._announced = rows[:, None], entries
        self._index(*self._announced)
        self._read_rows = None
        if first is None:
            self._read_rows = [rows.to(base.device) for base in self._bases]
        self._span = (first or 0, len(rows))
        self._reads = None
        if first is not None:
            count = len(rows)
            self._reads = self._views(
                self._bases, lambda base: base.narrow(1, first, count).narrow(3, 0, stop)
            )

    def packed(self, rows: Tensor, entries: Tensor) -> None:
        """Let the next call write one entry for each of its rows ``[N]``, and read whole planes."""
        self.start, self.stop = 0, self.scrap + 1
        self._into = self._reads = self._read_rows = None
        self._announced = rows[None], entries[None]
        self._index(*self._announced)
        self._span = (0, self.num_rows)

    def _index(self, rows: Tensor, entries: Tensor) -> None:
        """Compute the planes' flat indices of `entries` in `rows` ``[B', 1]`` or ``[1, N]``."""
        by_kind: dict[tuple[int, torch.device], Tensor] = {}
        for base in self._bases:
            heads, num_entries = base.shape[2], base.shape[3]
            if (heads, base.device) not in by_kind:
                index = flat_entries(rows, entries, heads, num_entries)
                by_kind[heads, base.device] = index.to(base.device)
        self._indices = [by_kind[base.shape[2], base.device] for base in self._bases]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new states ``[B', H, N, D]`` and return all it reads."""
        plane = 2 * layer_idx
        into, reads = self._into, self._reads
        if into is not None and reads is not None:
            into[plane].copy_(key_states)
            into[plane + 1].copy_(value_states)
            return reads[plane], reads[plane + 1]
        self._scatter(plane, key_states)
        self._scatter(plane + 1, value_states)
        if reads is not None:
            return reads[plane], reads[plane + 1]
        return self._read(plane), self._read(plane + 1)

    # without a mask, transformers asks the cache for the sizes of the running call

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of entries before the running call."""
        return self.start

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return T and the first entry read."""
        return self.stop, 0

    def _scatter(self, plane: int, states: Tensor) -> None:
        index = self._indices[self._group_of[plane]]
        dim = states.shape[-1]
        self._planes[plane].view(-1, dim).index_copy_(0, index, states.reshape(-1, dim))

    def _read(self, plane: int) -> Tensor:
        entries = self._planes[plane].narrow(2, 0, self.stop)
        if self._read_rows is not None:
            return entries.index_select(0, self._read_rows[self._group_of[plane]])
        return entries.narrow(0, *self._span)

    def move_row(self, source: int, row: int, length: int) -> None:
        """Copy the first `length` entries of row `source` to `row`."""
        for base in self._bases:
            base[:, row, :, :length] = base[:, source, :, :length]

    def gather(self, row: int, sources: Sequence[int], start: int) -> None:
        """Copy entries `sources` of a row to `start`, `start` + 1, … (they may overlap)."""
        for base in self._bases:
            index = upload(sources, base.device)
            line = base.select(1, row)  # [planes, H, C, D]
            line.narrow(2, start, len(sources)).copy_(line.index_select(2, index))
