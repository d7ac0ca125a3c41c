"""Row-invariant numerics: a row's result depends only on the row's own content and context.

In half precision another shape means another kernel, which rounds differently. Here every product
has one shape, whatever the calls look like:

* the rows of all calls are concatenated and padded to a multiple of N (the tile); linear layers,
  norms and the head run on N rows at a time (`adapter.gating.by_tiles`);
* attention runs over blocks of `BLOCK` cache entries with a running maximum (online softmax:
  Milakov & Gimelshein 2018, arXiv 1805.02867). A block that a row does not see changes no bit of
  the row, so neither the cache's fill nor the rows of other sequences matter;
* the entries that a row of a tree sees are put in the order that they would have without the tree.

Letters: N rows of a tile, S contexts of a block, H query heads, K key-value heads, D head
dimension, E entries of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from decoders.core.adapter import gating
from decoders.core.device import upload
from decoders.core.hf.cache import flat_entries
from decoders.core.model import Call

NAME = "tiles"
"""Name of tiled attention in a module's configuration."""
BLOCK = 256
"""E: cache entries that one attention product reads."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """E cache entries from each of the S contexts that the rows of one tile have.

    A key of `contexts` is a cache row and E of its entries, in text order. The value lists how many
    of these entries each of the N rows sees (none if below 1). A row sees only one context.
    """

    tile: int
    contexts: dict[tuple[int, Sequence[int]], list[int]] = field(default_factory=dict)
    _index: dict[object, Tensor] = field(default_factory=dict)

    def select(self, plane: Tensor) -> Tensor:
        """Select the block's states ``[S, K, E, D]`` from a plane ``[B, K, C, D]``."""
        row, entries = next(iter(self.contexts))
        if len(self.contexts) == 1 and isinstance(entries, range):
            return plane[row : row + 1].narrow(2, entries.start, BLOCK)
        _, num_heads, capacity, width = plane.shape
        kind = num_heads, capacity, plane.device
        if kind not in self._index:
            rows = torch.tensor([row for row, _ in self.contexts])[:, None]
            index = torch.tensor([list(entries) for _, entries in self.contexts])
            self._index[kind] = upload(flat_entries(rows, index, plane), plane.device)
        states = plane.reshape(-1, width).index_select(0, self._index[kind])
        return states.view(-1, num_heads, BLOCK, width)


def pack(calls: Sequence[Call], tile: int) -> tuple[list[int], list[ContextBlock]]:
    """Concatenate calls, and return their first rows and the ordered blocks of each tile."""
    firsts: list[int] = []
    blocks: dict[tuple[int, int], ContextBlock] = {}
    num_rows = 0
    for call in calls:
        firsts.append(num_rows)
        start = call.session.length
        for row, (order, count) in enumerate(_orders(call), num_rows):
            number, offset = divmod(row, tile)
            for first in range(0, start + count, BLOCK):
                block = blocks.setdefault((number, first), ContextBlock(number))
                # rows of one text share the blocks that they have in common
                context = (call.session.row, _entries(first, start, order))
                counts = block.contexts.setdefault(context, [-first] * tile)
                counts[offset] = start + count - first
        num_rows += call.num_rows
    return firsts, [blocks[key] for key in sorted(blocks)]


def _orders(call: Call) -> Iterator[tuple[Sequence[int], int]]:
    """Yield an order of a call's rows for each row, and how many rows of the order it sees."""
    every = range(call.num_rows)
    if call.mask is None:
        yield from ((every, row + 1) for row in every)
        return
    seen = [row.nonzero().flatten().tolist() for row in call.mask]
    for each in seen:
        order: Sequence[int] = every
        if each != [*range(len(each))]:  # the deepest branch that begins with these rows
            order = max((rows for rows in seen if rows[: len(each)] == each), key=len)
        yield order, len(each)


def _entries(first: int, start: int, order: Sequence[int]) -> Sequence[int]:
    """Return entries `first` to `first` + E: `start` of text, rows in `order`, then unseen ones."""
    every = range(first, first + BLOCK)
    if every.stop <= start or isinstance(order, range):
        return every
    entries = range(start, start + len(order))
    return tuple(start + order[e - start] if e in entries else e for e in every)


_running: Sequence[ContextBlock] = ()


@contextmanager
def running(configs: Sequence[Any], tile: int, blocks: Sequence[ContextBlock]) -> Iterator[None]:
    """Run a module (after `prepare`) in tiles of N rows, with attention over these blocks."""
    global _running
    plain = [config._attn_implementation for config in configs]
    _running, gating.tile_rows = blocks, tile
    try:
        for config in configs:
            config._attn_implementation = NAME
        yield
    finally:
        _running, gating.tile_rows = (), None
        for config, name in zip(configs, plain, strict=True):
            config._attn_implementation = name


def _tiled_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention of the running calls, tile by tile and block by block.

    `query` is ``[1, H, R, D]`` (R a multiple of N), `key` and `value` are planes ``[B, K, C, D]``,
    the additive mask is ``[contexts, 1, N, E]``. Returns ``[1, R, H, D]``, and no weights.
    """
    unfit = [name for name in ("position_bias", "s_aux") if options.get(name) is not None]
    if unfit:
        raise ValueError(
            f"{type(module).__name__} attends with {unfit[0]}, which has no row-invariant "
            "numerics; use --numerics fast"
        )
    tile, num_shared = attention_mask.shape[2], key.shape[1]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    tiles: list[_Attended | None] = [None] * (query.shape[2] // tile)
    first = 0
    for block in _running:
        rows = query[:, :, block.tile * tile : (block.tile + 1) * tile]
        grouped = rows.reshape(1, num_shared, -1, query.shape[-1])
        scores = (grouped @ block.select(key).transpose(2, 3)).float() * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        mask = attention_mask[first : first + len(block.contexts), None]
        first += len(block.contexts)
        scores = (scores.view(*scores.shape[:2], -1, tile, BLOCK) + mask).flatten(2, 3)
        tiles[block.tile] = _attend(scores, block.select(value), tiles[block.tile])
    out = []
    for attended in tiles:
        assert attended is not None, "a tile without rows"
        mean = attended[2] / attended[1]
        out.append(mean.view(query.shape[1], tile, -1).transpose(0, 1))
    return torch.cat(out).to(query.dtype)[None], None


_Attended = tuple[Tensor, Tensor, Tensor]
"""Largest score and sum of weights so far, ``[K, H / K * N, 1]``, and sum of weighted values."""


def _attend(scores: Tensor, values: Tensor, before: _Attended | None) -> _Attended:
    """Add one block's scores ``[S, K, H / K * N, E]`` and values ``[S, K, E, D]``.

    A row's weights are exactly 0 in contexts of other rows.
    """
    peak = scores.amax((0, 3)).unsqueeze(-1)
    if before is not None:
        peak = torch.maximum(peak, before[0])
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True).sum(0)
    mixed = (weights.to(values.dtype) @ values).float().sum(0)
    if before is not None:
        kept = torch.exp(before[0] - peak)
        total, mixed = before[1] * kept + total, before[2] * kept + mixed
    return peak, total, mixed


def prepare(module: Any) -> list[Any]:
    """Let a module's norms and head run in tiles and return the configurations of its layers.

    Raises:
        ValueError: in one line, if a row depends on other rows.
    """
    config = module.config.get_text_config()
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    why = None
    if any((getattr(config, each, None) or 0) > 1 for each in _EXPERTS):
        why = "routes rows to experts, whose products have as many rows as were routed there"
    elif not module._supports_attention_backend:
        why = "has its own attention code, which takes no tiles"
    elif kind in ("dynamic", "longrope"):
        why = f"rotates by the length of the call (rope {kind})"
    if why is not None:
        raise ValueError(
            f"{type(module).__name__} {why}: it has no row-invariant numerics; use --numerics fast"
        )
    head = module.get_output_embeddings()
    for part in module.modules():
        if (part is head or "Norm" in type(part).__name__) and not hasattr(part, "in_tiles"):
            part.forward = partial(gating.by_tiles, part.forward)
            part.in_tiles = True
    configs = {id(part.config): part.config for part in module.modules() if hasattr(part, "config")}
    return [each for each in configs.values() if hasattr(each, "_attn_implementation")]


AttentionInterface.register(NAME, _tiled_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
