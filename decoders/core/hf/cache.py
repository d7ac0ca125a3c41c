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

from decoders.core.device import upload

PlaneShape = tuple[int, int]
"""(H, D) of a plane."""


class PlaneCache(Cache):
    """The cache of one pass: it writes `entries`, and reads the first T (`seen`).

    Every layer calls `update` once.
    """

    def __init__(
        self,
        planes: Sequence[Tensor],
        entries: Tensor,
        seen: int,
        rows: Tensor | None = None,
        reads: Sequence[Tensor] | Tensor | None = None,
    ) -> None:
        """Take the planes, and where and what the pass writes and reads.

        Args:
            planes: all planes, ``[B, H, C, D]``.
            entries: entries ``[B', N]`` that the rows are written to.
            seen: T.
            rows: cache rows ``[B', 1]`` or ``[1, N]`` of the entries; None: all.
            reads: views ``[B', H, T, D]`` that are read, or cache rows ``[B']``; None: all rows.
        """
        super().__init__(layers=[])
        self._planes, self._seen, self._rows, self._reads = planes, seen, rows, reads
        self._entries = entries
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def cut(self, rows: Tensor) -> PlaneCache:
        """Return a cache that writes `rows` of the entries only."""
        entries = self._entries.index_select(1, rows)
        return PlaneCache(self._planes, entries, self._seen, self._rows, self._reads)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new states ``[B', H, N, D]`` and return all it reads, of T entries."""
        return (
            self._update(2 * layer_idx, key_states),
            self._update(2 * layer_idx + 1, value_states),
        )

    def _update(self, number: int, states: Tensor) -> Tensor:
        plane, rows = self._planes[number], self._rows
        num_rows, num_heads, capacity, dim = plane.shape
        kind = num_heads, plane.device
        if kind not in self._indices:
            if rows is None:
                rows = torch.arange(num_rows, device=plane.device)[:, None]
            index = flat_entries(rows, self._entries, num_heads, capacity)
            self._indices[kind] = index if index.device == plane.device else index.to(plane.device)
        plane.view(-1, dim).index_copy_(0, self._indices[kind], states.reshape(-1, dim))
        reads = self._reads
        if reads is not None and not isinstance(reads, Tensor):
            return reads[number]
        seen = plane.narrow(2, 0, self._seen)
        return seen if reads is None else seen.index_select(0, reads.to(plane.device))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0, because masks and positions are passed explicitly."""
        return 0


class ViewCache(Cache):
    """The cache of a pass of one sequence, which writes and reads views of all planes.

    The views are ``[1, H, N, D]`` and ``[1, H, T, D]``: the last N of T entries are written.
    """

    def __init__(self, writes: Sequence[Tensor], reads: Sequence[Tensor]) -> None:
        """Take views of all planes."""
        super().__init__(layers=[])
        self._writes, self._reads = writes, reads

    def cut(self, rows: Tensor) -> ViewCache:
        """Return a cache that writes the first `rows` only."""
        return ViewCache([each.narrow(2, 0, len(rows)) for each in self._writes], self._reads)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """See `PlaneCache.update`."""
        plane = 2 * layer_idx
        self._writes[plane].copy_(key_states)
        self._writes[plane + 1].copy_(value_states)
        return self._reads[plane], self._reads[plane + 1]

    # without a mask, transformers asks the cache for the sizes of the running call

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of entries before the running call."""
        return self._reads[0].shape[2] - self._writes[0].shape[2]

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return T and the first entry read."""
        return self._reads[0].shape[2], 0


def flat_entries(rows: Tensor, entries: Tensor, num_heads: int, capacity: int) -> Tensor:
    """Return indices ``[S * K * E]`` of entries in a flat plane ``[B * K * C]``, for K heads.

    `rows` ``[S, 1]`` or ``[S, E]`` are the cache rows of the `entries` ``[S, E]``.
    """
    head = torch.arange(num_heads, device=rows.device)[:, None]
    return ((rows[:, None] * num_heads + head) * capacity + entries[:, None]).view(-1)


class KVStore:
    """Keys and values of every layer, from which each pass gets its cache."""

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
        self.num_rows, self.scrap = num_rows, capacity
        kinds = list(zip(planes, devices, strict=True))
        self._groups = [
            [n for n, other in enumerate(kinds) if other == k] for k in dict.fromkeys(kinds)
        ]
        with torch.inference_mode(False):  # inference tensors could not be edited outside of it
            self._bases = [
                torch.zeros(len(group), num_rows, heads, capacity + 1, dim, dtype=dtype, device=at)
                for group, ((heads, dim), at) in zip(
                    self._groups, dict.fromkeys(kinds), strict=True
                )
            ]
        self._row_bases = [[base.narrow(1, r, 1) for base in self._bases] for r in range(num_rows)]
        self._planes = self._views(self._bases, lambda base: base)
        self._parts: dict[tuple[int, int], Sequence[Tensor]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all planes."""
        return sum(base.nbytes for base in self._bases)

    def _views(self, bases: Sequence[Tensor], view: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
        if len(bases) == 1:
            return view(bases[0]).unbind(0)
        parts: dict[int, Tensor] = {}
        for group, base in zip(self._groups, bases, strict=True):
            parts |= zip(group, view(base).unbind(0), strict=True)
        return [parts[plane] for plane in sorted(parts)]

    def row_planes(self, first: int, count: int) -> Sequence[Tensor]:
        """Return all planes of `count` rows from `first` on, each ``[count, H, C, D]``."""
        if (first, count) not in self._parts:
            parts = self._views(self._bases, lambda base: base.narrow(1, first, count))
            self._parts[first, count] = parts
        return self._parts[first, count]

    def at(self, row: int, start: int, stop: int) -> ViewCache:
        """Return a cache that writes `start` to `stop` of one row, and reads 0 to `stop`."""
        bases = self._row_bases[row]
        writes = self._views(bases, lambda base: base.narrow(3, start, stop - start))
        return ViewCache(writes, self._views(bases, lambda base: base.narrow(3, 0, stop)))

    def scattered(self, rows: Tensor, entries: Tensor, stop: int, first: int | None) -> PlaneCache:
        """Return a cache that writes `entries` ``[B', N]`` of `rows` ``[B']``, reading 0 to `stop`.

        If the rows are consecutive from `first` on, they are read as a view. None: as a copy.
        """
        reads: Sequence[Tensor] | Tensor = rows
        if first is not None:
            count = len(rows)
            reads = self._views(
                self._bases, lambda base: base.narrow(1, first, count).narrow(3, 0, stop)
            )
        return PlaneCache(self._planes, entries, stop, rows[:, None], reads)

    def packed(self, rows: Tensor, entries: Tensor) -> PlaneCache:
        """Return a cache that writes an entry for each of `rows` ``[N]``, reading whole planes."""
        return PlaneCache(self._planes, entries[None], self.scrap + 1, rows[None], self._planes)

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
