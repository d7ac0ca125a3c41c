"""Attention of few rows after many entries, on a GPU: a Triton kernel that splits the entries.

A kernel of torch with a mask runs a head of few rows on only one of the GPU's processors. Here the
entries of every key-value head are split among several, each with a running maximum, and a second
kernel joins their parts (flash decoding: Dao et al. 2023). Any mask and any number of query heads
of a key-value head are allowed. Blocks of entries that no row sees are not read.

Triton comes with torch for CUDA. Letters: B sequences, K key-value heads, G query heads of each, N
rows of a sequence, R = G N grouped rows, T entries, E width of a head, P parts.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ENTRIES = 64
"""Entries of a block."""
_PROGRAMS, _PARTS = 1056, 128
"""Programs that keep the 132 processors of an H200 busy, and most parts that registers join."""


def split_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Return the attention ``[B, N, K G, E]`` of queries.

    Args:
        query: ``[B, K G, N, E]``.
        key: ``[B, K, T, E]``, entries next to each other in memory; E is a power of two.
        value: like `key`.
        mask: ``[B or 1, 1, N, T]``, additive or bool, 0 or True for seen entries; None: all are.
        scale: factor of the scores.
    """
    batch, num_heads, period, width = query.shape
    heads, entries = key.shape[1:3]
    num_rows = num_heads // heads * period
    query = query.contiguous()
    blocks = triton.cdiv(entries, _ENTRIES)
    parts = max(1, min(blocks, _PROGRAMS // (batch * heads), _PARTS))
    per_part = triton.cdiv(blocks, parts)
    parts = triton.cdiv(blocks, per_part)
    sums = query.new_empty((batch * heads, parts, num_rows, width), dtype=torch.float32)
    peaks = query.new_empty((2, batch * heads, parts, num_rows), dtype=torch.float32)
    out = query.new_empty(batch, period, num_heads, width)
    strides, is_bool = (0, 0), False
    if mask is not None:
        mask = mask.contiguous()  # that of a lone row may be one number
        strides = mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(2)
        is_bool = mask.dtype == torch.bool
        mask = mask.view(torch.uint8) if is_bool else mask
    assert key.stride(3) == value.stride(3) == 1
    padded = max(16, triton.next_power_of_2(num_rows))
    launch: Any = _part_kernel[(batch * heads, parts)]
    launch(
        *(query, key, value, query if mask is None else mask, sums, peaks, peaks[1], scale),
        *(heads, num_rows, entries, period, *key.stride()[:3], *value.stride()[:3], *strides),
        per_part,
        has_mask=mask is not None,
        is_bool=is_bool,
        num_padded=padded,
        width=width,
        block=_ENTRIES,
    )
    join: Any = _join_kernel[(batch * heads, num_rows)]
    join(
        *(sums, peaks, peaks[1], out, heads, num_rows, period, parts),
        width=width,
        num_padded=triton.next_power_of_2(parts),
    )
    return out


@triton.jit(do_not_specialize=["num_rows", "entries", "period", "per_part"])  # type: ignore[untyped-decorator]
def _part_kernel(  # type: ignore[no-untyped-def]
    query, key, value, mask, sums, peaks, totals, scale,
    heads, num_rows, entries, period, k_batch, k_head, k_entry, v_batch, v_head, v_entry,
    m_batch, m_row, per_part, has_mask: tl.constexpr, is_bool: tl.constexpr,
    num_padded: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Attend to the entries of one part, and store the sum of values, the peak and the total."""
    pair, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence, head = (pair // heads).to(tl.int64), pair % heads
    row, column = tl.arange(0, num_padded), tl.arange(0, width)
    is_row = row < num_rows
    q_place = (pair * num_rows + row)[:, None] * width + column[None, :]
    q = tl.load(query + q_place, mask=is_row[:, None], other=0.0)
    peak = tl.full((num_padded,), -1e30, tl.float32)
    total = tl.zeros((num_padded,), tl.float32)
    summed = tl.zeros((num_padded, width), tl.float32)
    for number in range(part * per_part, (part + 1) * per_part):
        entry = number * block + tl.arange(0, block)
        is_entry = entry < entries
        added = tl.where(is_entry[None, :] & is_row[:, None], 0.0, -2e30)
        if has_mask:
            place = sequence * m_batch + (row % period)[:, None] * m_row + entry[None, :]
            inside = is_row[:, None] & is_entry[None, :]
            if is_bool:
                seen = tl.load(mask + place, mask=inside, other=0)
                added = tl.where(seen != 0, 0.0, float("-inf"))
            else:
                added = tl.load(mask + place, mask=inside, other=float("-inf")).to(tl.float32)
        if tl.max(added) > -6e4:  # else no row sees an entry of the block (float16 ends at -65504)
            k_place = sequence * k_batch + head * k_head + entry[:, None] * k_entry
            k = tl.load(key + k_place + column[None, :], mask=is_entry[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + added
            above = tl.maximum(peak, tl.max(scores, 1))
            weights = tl.where(scores > -1e30, tl.exp(scores - above[:, None]), 0.0)
            kept = tl.exp(peak - above)
            v_place = sequence * v_batch + head * v_head + entry[:, None] * v_entry
            v = tl.load(value + v_place + column[None, :], mask=is_entry[:, None], other=0.0)
            mixed = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            summed = summed * kept[:, None] + mixed
            total = total * kept + tl.sum(weights, 1)
            peak = above
    at = (pair * parts + part) * num_rows + row
    tl.store(peaks + at, peak, mask=is_row)
    tl.store(totals + at, total, mask=is_row)
    tl.store(sums + at[:, None] * width + column[None, :], summed, mask=is_row[:, None])


@triton.jit(do_not_specialize=["num_rows", "period", "parts"])  # type: ignore[untyped-decorator]
def _join_kernel(  # type: ignore[no-untyped-def]
    sums, peaks, totals, out, heads, num_rows, period, parts,
    width: tl.constexpr, num_padded: tl.constexpr,
):  # fmt: skip
    """Join the parts of one row."""
    pair, row = tl.program_id(0), tl.program_id(1)
    sequence, groups = pair // heads, num_rows // period
    number = (sequence * period + row % period) * heads * groups
    number += pair % heads * groups + row // period
    part, column = tl.arange(0, num_padded), tl.arange(0, width)
    is_part = part < parts
    at = (pair * parts + part) * num_rows + row
    peak = tl.load(peaks + at, mask=is_part, other=-1e30)
    share = tl.exp(peak - tl.max(peak))
    total = tl.sum(tl.load(totals + at, mask=is_part, other=0.0) * share)
    inside = is_part[:, None]
    summed = tl.load(sums + at[:, None] * width + column[None, :], mask=inside, other=0.0)
    mixed = tl.sum(summed * share[:, None], 0) / total
    tl.store(out + number * width + column, mixed)
