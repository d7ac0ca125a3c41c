"""A preallocated KV cache that calls write in place.

A *plane* holds the keys or the values of one layer, ``[B, H, C, D]``. Planes of equal shape share
one allocation, so that moving entries of all layers takes few operations. Letters: B cache rows, H
key-value heads, C entries per row (plus a scrap entry for padding), D head dimension, N rows, T
entries read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from decoders.core.device import upload
from decoders.core.hf.architecture import Architecture


class PlaneCache(Cache):
    """The cache of one pass: it writes `entries`, and reads the first T (`seen`).

    Every layer calls `update` once.
    """

    def __init__(
        self, planes: Sequence[Tensor], entries: Tensor | int, seen: int, rows: Tensor | None = None
    ) -> None:
        """Take the planes, and where and what the pass writes and reads.

        Args:
            planes: all planes, ``[B, H, C, D]``.
            entries: entries ``[B', N]`` that the rows are written to, or of a pass of one cache row
                the first of them.
            seen: T.
            rows: cache rows ``[B']``, of which copies are read, or ``[1, N]``, one for each entry,
                which read all cache rows; None: all cache rows.
        """
        super().__init__(layers=[])
        self._planes, self._entries, self._seen, self._rows = planes, entries, seen, rows
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def cut(self, rows: Tensor) -> PlaneCache:
        """Return a cache that writes `rows`, the first ones, of the entries only."""
        if isinstance(self._entries, int):
            return self
        entries = self._entries.index_select(1, rows)
        return PlaneCache(self._planes, entries, self._seen, self._rows)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new states ``[B', H, N, D]`` and return all it reads, of T entries."""
        key, value = self._planes[2 * layer_idx], self._planes[2 * layer_idx + 1]
        self._write(key, key_states)
        self._write(value, value_states)
        return self.seen(key), self.seen(value)

    def places(self, layer: int) -> tuple[tuple[Tensor, Tensor], Tensor] | None:
        """Return a layer's planes, and the entries ``[B', N]`` of their rows that the pass writes.

        None: the entries are consecutive, or those of other rows.
        """
        if isinstance(self._entries, int) or self._rows is not None:
            return None
        return (self._planes[2 * layer], self._planes[2 * layer + 1]), self._entries

    def seen(self, plane: Tensor) -> Tensor:
        """Return what the pass reads of a plane, ``[B', H, T, D]``."""
        rows, seen = self._rows, plane.narrow(2, 0, self._seen)
        if rows is None or rows.dim() == 2:
            return seen
        return seen.index_select(0, rows.to(plane.device))

    def _write(self, plane: Tensor, states: Tensor) -> None:
        if isinstance(entries := self._entries, int):
            plane.narrow(2, entries, states.shape[2]).copy_(states)
            return
        (num_rows, num_heads, _, dim), rows = plane.shape, self._rows
        kind = num_heads, plane.device
        if kind not in self._indices:
            places = torch.arange(num_rows, device=entries.device) if rows is None else rows
            places = places if places.dim() == 2 else places[:, None]
            index = flat_entries(places, entries, plane)
            self._indices[kind] = index if index.device == plane.device else index.to(plane.device)
        plane.view(-1, dim).index_copy_(0, self._indices[kind], states.reshape(-1, dim))

    # without a mask, transformers asks the cache for the sizes of the running call

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of entries before the running call, if that call has no mask."""
        return self._entries if isinstance(self._entries, int) else 0

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return T and the first entry read."""
        return self._seen, 0


def flat_entries(rows: Tensor, entries: Tensor, plane: Tensor) -> Tensor:
    """Return indices ``[S * K * E]`` of entries in a plane ``[B, K, C, D]`` whose rows are flat.

    `rows` ``[S, 1]`` or ``[S, E]`` are the cache rows of the `entries` ``[S, E]``.
    """
    _, num_heads, capacity, _ = plane.shape
    head = torch.arange(num_heads, device=rows.device)[:, None]
    return ((rows[:, None] * num_heads + head) * capacity + entries[:, None]).view(-1)


class KVStore:
    """Keys and values of every layer."""

    def __init__(self, model: Architecture, num_rows: int, capacity: int) -> None:
        """Allocate zeros for a model's planes, each on its device."""
        self.num_rows, self.scrap = num_rows, capacity
        kinds, bases = [*zip(model.planes, model.devices, strict=True)], dict[Any, Tensor]()
        with torch.inference_mode(False):  # inference tensors could not be edited outside of it
            for kind, num in Counter(kinds).items():
                (heads, dim), device = kind
                shape = num, num_rows, heads, capacity + 1, dim
                bases[kind] = torch.zeros(shape, dtype=model.dtype, device=device)
        parts = {kind: iter(base.unbind(0)) for kind, base in bases.items()}
        self.planes, self._bases = [next(parts[kind]) for kind in kinds], [*bases.values()]
        self._parts: dict[tuple[int, int], Sequence[Tensor]] = {}

    def row_planes(self, first: int, count: int) -> Sequence[Tensor]:
        """Return all planes of `count` rows from `first` on, each ``[count, H, C, D]``."""
        if (first, count) not in self._parts:
            self._parts[first, count] = [each.narrow(0, first, count) for each in self.planes]
        return self._parts[first, count]

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
