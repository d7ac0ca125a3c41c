"""Kernels in Triton that join a layer's small operations on a GPU, around its products.

A captured call of torch's own operations launches some 25 of them a layer; three of these kernels,
the attention of `split_attention` and the products are ten. The fourth saves three of the six of
each product that an adapter changes. They round where torch's operations round, and compute each
row by itself, so that a row has the same bits in calls of any size.

Triton comes with torch for CUDA. Letters: B sequences, N rows of a sequence, D hidden width, F
inner width, H query heads, K key-value heads, E width of a head, R rank of an adapter.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024
"""Columns of a block of an activation."""
_BLOCK = 64
"""Outputs and ranks of a block of a delta."""


def add_norm(
    rows: Tensor, added: Tensor | None, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return the sum of rows and what is added, and that sum scaled as by `llama.norm`.

    Args:
        rows: ``[B, N, D]``.
        added: like `rows`; None: nothing.
        weight: of the norm, ``[D]``.
        epsilon: of the norm.
    """
    rows, added = rows.contiguous(), None if added is None else added.contiguous()
    summed, out = torch.empty_like(rows) if added is not None else rows, torch.empty_like(rows)
    width = rows.shape[-1]
    launch: Any = _norm_kernel[(rows.numel() // width,)]
    launch(
        *(rows, rows if added is None else added, weight, summed, out, width, epsilon),
        adds=added is not None,
        padded=triton.next_power_of_2(width),
        num_warps=8 if width > _COLUMNS else 4,
    )
    return summed, out


def turn_heads(
    states: Tensor,
    turn: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    planes: tuple[Tensor, Tensor],
    entries: Tensor,
) -> Tensor:
    """Return rotated queries ``[B, H, N, E]``, and write rotated keys, and values, to planes.

    Args:
        states: queries, keys and values ``[B, N, (H + 2 K) E]``, next to each other in memory.
        turn: cosines and sines ``[B, 1, N, E]``.
        norms: weights ``[E]`` that scale queries and keys before they are rotated.
        epsilon: of the norms.
        planes: keys and values ``[B, K, C, E]`` of a cache.
        entries: those of the rows, ``[B, N]``.
    """
    batch, num_rows = states.shape[:2]
    shared, capacity, width = planes[0].shape[1:]
    heads = states.shape[2] // width - 2 * shared
    query = states.new_empty(batch, heads, num_rows, width)
    turn, entries = (turn[0].contiguous(), turn[1].contiguous()), entries.contiguous()
    weights = (states, states) if norms is None else norms
    launch: Any = _turn_kernel[(batch * num_rows, heads + 2 * shared)]
    launch(
        *(states, *turn, *weights, epsilon, query, *planes, entries),
        *(num_rows, heads, shared, capacity),
        has_norms=norms is not None,
        width=width,
        padded=triton.next_power_of_2(width),
        num_warps=1,
    )
    return query


def gated(states: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` ``[B, N, F]`` of `states` ``[B, N, 2 F]``, gate before up."""
    size = states.shape[-1] // 2
    out = states.new_empty(*states.shape[:-1], size)
    launch: Any = _gate_kernel[(out.numel() // size, triton.cdiv(size, _COLUMNS))]
    launch(states, out, size, block=_COLUMNS)
    return out


def add_delta(out: Tensor, low: Tensor, high: Tensor, gate: Tensor) -> Tensor:
    """Add to `out` ``[B, N, O]``, in place, the products of `low` with B times a gate.

    Args:
        out: rows times the weight, next to each other in memory.
        low: ``[B, N, R]``, rows times A.
        high: B ``[O, R]``.
        gate: float32 ``[B, N, 1]``, 1 or 0.
    """
    size, rank = high.shape
    low, num_rows = low.contiguous(), low.numel() // rank
    padded = min(_BLOCK, max(16, triton.next_power_of_2(num_rows)))
    launch: Any = _delta_kernel[(triton.cdiv(num_rows, padded), triton.cdiv(size, _BLOCK))]
    launch(
        *(out, low, high, gate.contiguous(), num_rows, size, rank, *high.stride()),
        padded=padded,
        block=_BLOCK,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    rows, added, weight, summed, out, width, epsilon, adds: tl.constexpr, padded: tl.constexpr
):
    """Add and scale one row."""
    column = tl.arange(0, padded)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    row = tl.load(rows + at, mask=inside, other=0.0)
    if adds:
        row = (row.to(tl.float32) + tl.load(added + at, mask=inside, other=0.0)).to(row.dtype)
        tl.store(summed + at, row, mask=inside)
    wide = row.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide) / width + epsilon)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, factor * scaled.to(row.dtype), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _turn_kernel(  # type: ignore[no-untyped-def]
    states, cosines, sines, query_norm, key_norm, epsilon, query, keys, values, places,
    num_rows, heads, shared, capacity,
    has_norms: tl.constexpr, width: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """Turn one head of one row, or copy its value."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, number = row // num_rows, row % num_rows
    column = tl.arange(0, padded)
    inside = column < width
    other = (column + width // 2) % width  # the column that it is turned with
    states += (row * (heads + 2 * shared) + head) * width
    x = tl.load(states + column, mask=inside, other=0.0)
    y = tl.load(states + other)
    if head < heads + shared:
        if has_norms:
            norm = query_norm if head < heads else key_norm
            wide = x.to(tl.float32)
            scale = tl.rsqrt(tl.sum(wide * wide) / width + epsilon)
            first = tl.load(norm + column, mask=inside, other=0.0)
            second = tl.load(norm + other)
            second = second.to(tl.float32) * (y.to(tl.float32) * scale).to(x.dtype)
            y = second.to(x.dtype)
            x = (first.to(tl.float32) * (wide * scale).to(x.dtype)).to(x.dtype)
        cosine = tl.load(cosines + row * width + column, mask=inside, other=0.0).to(tl.float32)
        sine = tl.load(sines + row * width + column, mask=inside, other=0.0).to(tl.float32)
        y = tl.where(column < width // 2, -y, y)
        straight, turned = (x * cosine).to(x.dtype), (y * sine).to(x.dtype)
        x = (straight.to(tl.float32) + turned).to(x.dtype)
    if head < heads:
        place = (sequence * heads + head) * num_rows + number
        tl.store(query + place * width + column, x, mask=inside)
    else:
        place = (sequence * shared + (head - heads) % shared) * capacity + tl.load(places + row)
        plane = keys if head < heads + shared else values
        tl.store(plane + place * width + column, x, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gate_kernel(states, out, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute some columns of one row."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    gate = tl.load(states + 2 * row * size + column, mask=inside, other=0.0)
    up = tl.load(states + (2 * row + 1) * size + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    swish = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out + row * size + column, swish.to(tl.float32) * up, mask=inside)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _delta_kernel(  # type: ignore[no-untyped-def]
    out, low, high, gate, num_rows, size, rank, h_out, h_rank,
    padded: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Add the delta of some outputs of some rows."""
    row = tl.program_id(0) * padded + tl.arange(0, padded)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_row, is_column = row < num_rows, column < size
    delta = tl.zeros((padded, block), tl.float32)
    for first in range(0, rank, block):
        at = first + tl.arange(0, block)
        inside = is_row[:, None] & (at < rank)[None, :]
        a = tl.load(low + row[:, None] * rank + at[None, :], mask=inside, other=0.0)
        inside = is_column[:, None] & (at < rank)[None, :]
        b = tl.load(high + column[:, None] * h_out + at[None, :] * h_rank, mask=inside, other=0.0)
        delta += tl.dot(a, tl.trans(b), input_precision="ieee")
    place = row[:, None].to(tl.int64) * size + column[None, :]
    inside = is_row[:, None] & is_column[None, :]
    before = tl.load(out + place, mask=inside, other=0.0)
    delta = delta.to(before.dtype).to(tl.float32)
    delta *= tl.load(gate + row, mask=is_row, other=0.0)[:, None]
    tl.store(out + place, before.to(tl.float32) + delta, mask=inside)
