"""Lay calls out as rows of one pass: ids, positions, masks, and the cache entries they write.

A mask is 0 where a row sees an entry and the lowest finite number elsewhere, because -inf could
turn a row into NaN. Every row, padding included, sees at least one entry.

Letters: B sequences of a pass, N rows (of the widest call), T cache entries seen, C capacity, H
key-value heads, D head dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoders.core.device import first_rows, padded, power_of_two, upload
from decoders.core.hf import tiles
from decoders.core.hf.architecture import Architecture
from decoders.core.hf.cache import KVStore
from decoders.core.masks import causal
from decoders.core.model import Call, Session
from decoders.core.token_reads import TokenRead
from decoders.core.types import MASKED

_LENGTH_BUCKET = 128
"""CUDA graphs round cache lengths up to multiples of this, rows and sequences to powers of 2."""
Masks = Mapping[str, Any]
"""A mask for each kind of layer. None: causal, or a single row."""


class Pass(NamedTuple):
    """One forward pass: ids, positions ``[B, N]``, masks, flat rows to `read` (None: all).

    `hidden` are the flat rows whose states are returned, `firsts` the first flat row of each call.
    `planes`, `entries`, `seen` and `cache_rows` are those of `PlaneCache`. A pass without padding
    has all rows in one line, ``[1, R]``, and says how they are `merged`. A pass for a CUDA graph
    lies on the host, as numbers by name and `blocks` ``[B, N, N]``, which rows of a call see each
    other (None: all are causal): the graph makes all else from them (`Frame`).
    """

    calls: Sequence[Call]
    firsts: Sequence[int]
    ids: Tensor = torch.empty(0)
    positions: Tensor = torch.empty(0)
    masks: Mapping[str, Any] = {}
    read: Sequence[int] | None = None
    planes: Sequence[Tensor] = ()
    entries: Tensor | int = 0
    seen: int = 0
    cache_rows: Tensor | None = None
    hidden: Sequence[int] = ()
    merged: MergedRows | None = None
    numbers: Mapping[str, Sequence[int]] = {}
    blocks: Tensor | None = None
    contexts: Sequence[tiles.ContextBlock] = ()

    @property
    def num_rows(self) -> int:
        """B N, the number of flat rows."""
        return len(self.numbers["ids"]) if self.numbers else self.ids.numel()


class Frame(NamedTuple):
    """The shapes of a padded pass's numbers, by which they are taken apart (`Layout.unpack`).

    `size` is B, N and T. A graph also needs to know its slots' `warps`, and which `reads` it does.
    """

    layout: Layout
    size: tuple[int, int, int]
    lengths: tuple[tuple[str, int], ...]
    warps: tuple[tuple[float, float], ...]
    reads: tuple[TokenRead, ...]

    def fields(self, packed: Tensor) -> dict[str, Tensor]:
        """Return the numbers in a buffer by name, flat."""
        lengths = [length for _, length in self.lengths]
        parts = torch.split(packed[: 8 * sum(lengths)].view(torch.int64), lengths)
        return {name: part for (name, _), part in zip(self.lengths, parts, strict=True)}


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Rows of B sequences in one line ``[1, R]``, without the padding that attention needs.

    `places` ``[B, N]`` are the rows of each sequence (of padding, any row), and `order` ``[R]`` the
    places of the rows among all of these.
    """

    places: Tensor
    order: Tensor

    def attend(self, attend: Callable[..., Tensor], query: Tensor, *rest: Any) -> Tensor:
        """Return attention ``[1, R, H, E]`` of queries ``[1, H, R, E]`` by `attend`."""
        heads, width = query.shape[1], query.shape[3]
        padded = query[0].index_select(1, self.places.flatten())
        padded = padded.view(heads, *self.places.shape, width).transpose(0, 1)
        mixed = attend(padded, *rest).reshape(-1, heads, width)
        return mixed.index_select(0, self.order)[None]


class MaskBuilder:
    """Makes the masks of one cache."""

    def __init__(self, architecture: Architecture, num_entries: int) -> None:
        """Take a model's windows, device and dtype, and the most entries that are seen."""
        self._windows, self._device = architecture.windows, architecture.device
        added = torch.tensor([0.0, torch.finfo(architecture.dtype).min], dtype=architecture.dtype)
        self._seen, self._unseen = added.to(self._device).unbind()
        self.entries = torch.arange(num_entries, device=self._device)

    def additive(self, visible: Tensor) -> Tensor:
        """Turn a bool tensor (True: seen) into an additive mask of the same shape."""
        return torch.where(visible, self._seen, self._unseen)

    def after(self, start: int, num_rows: int, mask: Tensor | None) -> Tensor:
        """Return the mask ``[1, 1, N, T]`` of one call after `start` entries, without windows."""
        if num_rows == 1:  # a lone row sees all
            return self._seen.expand(1, 1, 1, start + 1)
        entries = self.entries[: start + num_rows]
        visible = entries <= entries[start:, None]
        if mask is not None:
            visible[:, start:] = upload(mask, self._device)
        return self.additive(visible)[None, None]

    def visible(self, blocks: Tensor | None, starts: Tensor, width: int, seen: int) -> Tensor:
        """Return which entries each row sees, without windows: bool ``[B, N, T]``.

        Args:
            blocks: those of a `Pass`, on the device; None: all rows are causal.
            starts: committed lengths ``[B]``.
            width: N.
            seen: T.
        """
        columns = self.entries[:seen]
        if blocks is None:
            rows = torch.arange(width, device=self._device)
            return columns <= (starts[:, None] + rows)[:, :, None]
        columns = columns - starts[:, None]  # 0: the first row
        inside = (columns >= 0) & (columns < width)
        index = columns.clamp(0, width - 1)[:, None, :].expand(-1, width, -1)
        return (columns < 0)[:, None, :] | (inside[:, None, :] & blocks.gather(2, index))

    def windowed(self, visible: Tensor, positions: Tensor, entries: Tensor) -> Masks:
        """Add windows to `visible` ``[B, N, T]`` and return ``[B, 1, N, T]`` per kind of layer.

        `positions` ``[B, N]`` are positions of rows, `entries` ``[B, T]`` positions of entries.
        """
        masks = dict[str, Tensor]()
        for kind, window in self._windows.items():
            near = visible
            if window is not None:
                near = visible & (positions[:, :, None] - entries[:, None, :] < window)
            masks[kind] = self.additive(near)[:, None]
        return masks


class Layout:
    """A KV cache, and the layout of calls in it."""

    def __init__(
        self,
        architecture: Architecture,
        num_rows: int,
        capacity: int,
        *,
        bucketed: bool = False,
        merges: bool = False,
        tile: int | None = None,
    ) -> None:
        """Allocate the cache, `bucketed` for CUDA graphs, in tiles of `tile` rows unless None.

        A layout that `merges` calls leaves out their padding, which transformers' modules need.
        """
        self._device = architecture.device
        self._max_length, self._sdpa = architecture.max_length, architecture.sdpa
        self._kinds, self._tile = [*architecture.windows], tile
        step = _LENGTH_BUCKET if bucketed else 1 if tile is None else tiles.BLOCK
        entries = _round_up(capacity + 1, step) - 1
        self.store = KVStore(architecture, num_rows, entries)
        self._bucketed, self._merges = bucketed, merges
        self.window = min(filter(None, architecture.windows.values()), default=0)
        with torch.inference_mode(False):
            self.masks = MaskBuilder(architecture, entries + 1)

    def fits_views(self, call: Call) -> bool:
        """Tell whether a single call can read views: no sliding window hides an entry from it."""
        reach = call.session.length + call.num_rows
        return not self.window or (call.positions is None and reach <= self.window)

    def plain(self, calls: Sequence[Call]) -> Pass:
        """Lay calls out for a pass without a graph."""
        if self._tile is not None:
            return self.tiled(calls, self._tile)
        if len(calls) == 1 and self.fits_views(calls[0]):
            return self._lone(calls[0])
        return self._several(calls, self._ordered(calls))

    def _lone(self, call: Call, in_graph: bool = False) -> Pass:
        """Lay one call out on views of the cache, with a mask only if a graph or a row needs it."""
        start, num_rows = call.session.length, call.num_rows
        stop, mask = start + num_rows, None
        is_plain = not start and call.mask is None and call.slots is None and self._sdpa
        if in_graph or (num_rows > 1 and not is_plain):
            mask = self.masks.after(start, num_rows, call.mask)
        ids = upload([_row_ids(call)], self._device)
        entries = positions = self.masks.entries[None, start:stop]
        if call.positions is not None or call.slots is not None:
            positions = upload([call.row_positions()], self._device)
        positions = self.existing(positions, stop)
        read = None if len(call.read) == num_rows and not in_graph else read_rows(call)
        into = self.store.row_planes(call.session.row, 1), entries if in_graph else start, stop
        masks = dict.fromkeys(self._kinds, mask)  # no window matters
        return Pass([call], [0], ids, positions, masks, read, *into, hidden=call.hidden)

    def _several(self, calls: Sequence[Call], ordered: Sequence[Call], min_rows: int = 1) -> Pass:
        """Pad `ordered` calls to the widest call, with one mask for all of them."""
        width = max(min_rows, *[call.num_rows for call in ordered])
        seen = max([call.session.length + call.num_rows for call in ordered])
        rows = self._padded(ordered, width, seen)
        frame, packed = self.pack(rows)
        fields, masks = self.unpack(frame, upload(packed, self._device))
        del fields["starts"]
        places = [call.session.row for call in ordered]
        is_view = places[-1] - places[0] + 1 == len(places)  # consecutive rows
        if is_view:
            fields["planes"] = self.store.row_planes(places[0], len(places))
        else:
            fields["planes"] = self.store.row_planes(0, self.store.num_rows)
            fields["cache_rows"] = upload(places, self._device)
        rows = rows._replace(masks=masks, numbers={}, blocks=None, **fields)
        if self._merges and is_view and len(calls) > 1:
            rows = self._merged(rows)
        return _reading(calls, rows)

    def _merged(self, rows: Pass) -> Pass:
        """Leave out the padding of a pass, all whose cache rows are read."""
        sizes, shape = [call.num_rows for call in rows.calls], rows.ids.shape
        cells = [
            (row, first + n)
            for row, (first, size) in enumerate(zip(rows.firsts, sizes, strict=True))
            for n in range(size)
        ]
        cache_rows, order = upload([*zip(*cells, strict=True)], self._device)
        places = torch.zeros_like(rows.ids).view(-1)
        places[order] = torch.arange(len(order), device=self._device)
        lines = {
            name: getattr(rows, name).view(-1)[order][None]
            for name in ("ids", "positions", "entries")
        }
        merged = MergedRows(places.view(shape), order)
        firsts = [*itertools.accumulate(sizes[:-1], initial=0)]
        return rows._replace(merged=merged, firsts=firsts, cache_rows=cache_rows[None], **lines)

    def framed(self, calls: Sequence[Call], min_rows: int = 1, steps: int = 0) -> Pass:
        """Lay calls out for a graph, on the host or as tensors, in consecutive cache rows.

        A graph of fixed shapes has at least `min_rows` rows for each call, and may run so many
        further `steps` of one row.
        """
        (call, *rest), bucketed = calls, self._bucketed
        lone_slot = call.slots is not None and call.num_rows == 1  # one row needs another graph
        if not (rest or bucketed or lone_slot) and self.fits_views(call):
            return self._lone(call, in_graph=True)
        ordered = self._ordered(calls, in_graph=True)
        if not bucketed:
            return self._several(calls, ordered, 1 + lone_slot)
        width = power_of_two(max(1 + lone_slot, min_rows, *[call.num_rows for call in calls]))
        seen = max([call.session.length + call.num_rows for call in calls])
        rows = self._padded(ordered, width, self._rounded(seen + steps))
        return _reading(calls, rows, planes=self.store.row_planes(0, len(ordered)))

    def _ordered(self, calls: Sequence[Call], in_graph: bool = False) -> list[Call]:
        """Return calls by their cache rows, which must differ, with empty ones for rows between.

        Only a pass without a graph and not merged leaves such rows out.
        """
        by_row = {call.session.row: call for call in calls}
        assert len(by_row) == len(calls), f"rows {[*by_row]}: two calls of one session"
        used: Sequence[int] = sorted(by_row)
        if self._merges:
            used = range(used[0], used[-1] + 1)
        elif in_graph:
            used = first_rows(used, self.store.num_rows)
        empty: Any = {"tokens": (), "read": (), "output": "logits"}
        model = calls[0].session.model
        return [by_row.get(row) or Call(session=Session(model, row, 0), **empty) for row in used]

    def _padded(self, ordered: Sequence[Call], width: int, seen: int) -> Pass:
        """Pad calls to N = `width` rows that see T = `seen`, on the host."""
        ids, positions, entries = list[int](), list[int](), list[int]()
        for call in ordered:
            start, num_rows = call.session.length, call.num_rows
            padding = [0] * (width - num_rows)
            ids += (*_row_ids(call), *padding)
            positions += (*(call.positions or call.row_positions()), *padding)
            entries += (*range(start, start + num_rows), *[self.store.scrap] * len(padding))
        numbers = {"ids": ids, "positions": positions, "entries": entries}
        numbers["starts"] = [call.session.length for call in ordered]
        firsts, blocks = range(0, len(ids), width), None
        if [call for call in ordered if call.mask is not None]:
            blocks = causal(width).repeat(len(ordered), 1, 1)  # padding rows are causal, too
            for block, call in zip(blocks, ordered, strict=True):
                if call.mask is not None:
                    block[: call.num_rows, : call.num_rows] = call.mask
        return Pass(ordered, firsts, numbers=numbers, blocks=blocks, seen=seen)

    def following(self, rows: Pass) -> Pass | None:
        """Lay out the calls that feed the one row picked by each call of a framed pass of one row.

        Their ids are still unknown. None: a cache has no room.
        """
        numbers = {name: [*values] for name, values in rows.numbers.items()}
        for place, (first, call) in enumerate(zip(rows.firsts, rows.calls, strict=True)):
            if call.tokens:  # not an empty call
                numbers["starts"][place] += 1
                numbers["positions"][first] += 1
                numbers["entries"][first] += 1
                if numbers["entries"][first] >= call.session.capacity:
                    return None
        return rows._replace(numbers=numbers, seen=self._rounded(max(numbers["starts"]) + 1))

    def _rounded(self, seen: int) -> int:
        """Round the entries that a graph sees up to those of its bucket."""
        return min(_round_up(seen, _LENGTH_BUCKET), self.store.scrap + 1)

    def pack(
        self, rows: Pass, warps: Sequence[Any] = (), reads: Sequence[TokenRead] = ()
    ) -> tuple[Frame, Tensor]:
        """Return the frame of a pass on the host, and its numbers and masks in one buffer."""
        numbers, blocks = rows.numbers, rows.blocks
        packed = torch.tensor([*itertools.chain.from_iterable(numbers.values())]).view(torch.uint8)
        if blocks is not None:
            packed = torch.cat((packed, blocks.view(torch.uint8).flatten()))
        lengths = (*zip(numbers, map(len, numbers.values()), strict=True),)
        size = len(rows.calls), len(numbers["ids"]) // len(rows.calls), rows.seen
        return Frame(self, size, lengths, (*warps,), (*reads,)), packed

    def unpack(self, frame: Frame, packed: Tensor) -> tuple[dict[str, Any], Masks]:
        """Return numbers by name, those of rows as ``[B, N]``, and masks of the rows."""
        (_, width, seen), fields = frame.size, frame.fields(packed)
        stop = 8 * sum(map(len, fields.values()))
        fields |= {name: fields[name].view(-1, width) for name in ("ids", "positions", "entries")}
        positions, starts = self.existing(fields["positions"], seen), fields["starts"]
        left = packed[stop:].view(torch.bool)
        blocks = left.view(-1, width, width) if len(left) else None
        visible = places = self.masks.visible(blocks, starts, width, seen)
        if self.window:  # by positions of entries: committed ones lie in order of the text
            entries = self.masks.entries[:seen]
            columns = entries - starts[:, None]  # 0: the first row
            rows = positions.gather(1, columns.clamp(0, width - 1))
            places = torch.where(columns < 0, entries, rows)
        masks = self.masks.windowed(visible, positions, places)
        return {**fields, "positions": positions}, masks

    def tiled(self, calls: Sequence[Call], tile: int) -> Pass:
        """Concatenate the rows of all calls, padded to whole tiles (`tiles`)."""
        firsts, blocks = tiles.pack(calls, tile)
        padding = -sum(call.num_rows for call in calls) % tile
        cells: list[tuple[int, int, int, int]] = []  # id, position, cache row, entry
        for call in calls:
            pairs = zip(_row_ids(call), call.row_positions(), strict=True)
            for entry, (token, position) in enumerate(pairs, call.session.length):
                cells.append((token, position, call.session.row, entry))
        filler = [(0, 0, 0, self.store.scrap)] * padding
        numbers = upload(list(zip(*cells, *filler, strict=True)), self._device)
        ids, positions, row_index, entries = numbers
        positions = self.existing(positions, 1 + max(position for _, position, _, _ in cells))
        counts = [counts for block in blocks for counts in block.contexts.values()]
        visible = self.masks.entries[: tiles.BLOCK] < upload(counts, self._device)[..., None]
        near, places, seen = positions.view(-1, tile), visible, self.store.scrap + 1
        if self.window:
            of_tile = [block.tile for block in blocks for _ in block.contexts]
            near = near[upload(of_tile, self._device)]
            places = self.masks.entries.repeat(self.store.num_rows, 1)
            places[row_index, entries] = positions
            parts = [block.select(places[:, None, :, None]) for block in blocks]
            places = torch.cat(parts).view(-1, tiles.BLOCK)
        masks = self.masks.windowed(visible, near, places)
        into = self.store.row_planes(0, self.store.num_rows), entries[None], seen, row_index[None]
        rows = Pass(calls, firsts, ids[None], positions[None], masks, None, *into, contexts=blocks)
        return _reading(calls, rows)

    def existing(self, positions: Tensor, stop: int) -> Tensor:
        """Clamp positions to the model's last position, which drafts may overshoot.

        A table of positions ends there, and a rope that depends on length would change all rows.
        """
        return positions if stop <= self._max_length else positions.clamp(max=self._max_length - 1)


def _row_ids(call: Call) -> list[int]:
    """Return the ids of a call's tokens, and those that its slots show (0: none)."""
    if call.slots is None:
        return [*call.tokens]
    shown = call.slots.slot_tokens or (MASKED,) * (call.num_rows - len(call.tokens))
    return [*call.tokens, *[0 if token == MASKED else token for token in shown]]


def read_rows(call: Call) -> Sequence[int]:
    """Return the rows of a call whose logits are read: tokens, then slots."""
    if call.slots is None:
        return call.read
    return [*call.read, *[len(call.tokens) + slot for slot in call.slots.read]]


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _reading(calls: Sequence[Call], rows: Pass, **fields: Any) -> Pass:
    """Set the flat rows whose logits or hidden states the calls need, in call order."""
    first_of = dict(zip(map(id, rows.calls), rows.firsts, strict=True))
    read = [first_of[id(call)] + row for call in calls for row in read_rows(call)]
    hidden = [first_of[id(call)] + row for call in calls for row in call.hidden]
    if rows.numbers:
        numbers = {"read": padded(read or [0]), "hidden": padded(hidden)}
        fields["numbers"] = {**rows.numbers, **numbers}
    return rows._replace(read=read, hidden=hidden, **fields)
