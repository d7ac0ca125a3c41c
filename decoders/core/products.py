"""Multiply rows with weights, and attend: by torch, and in graphs on a CPU by our own C++ code.

The libraries read weights at half the bandwidth of some memories and caches (docs/log.md), but
some multiply many rows faster. Up to how many rows our code is faster is measured per machine.

Grouping joins the query heads of a key-value head as rows of one product, which reads each entry
once; torch's kernels repeat the entries (docs/log.md). On a GPU, calls of few rows use our own
kernel: torch's kernels with a mask run a head of few rows on only one of the GPU's processors.

Letters: B sequences, N rows, T entries seen, H query heads, K key-value heads, E width of a head, R
rank.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.core.kernels import attention_kernel, fused_kernels

_SOURCE = Path(__file__).with_suffix(".cpp")
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ROUNDS, _MATRICES, _SHAPE = 7, 8, (2048, 1024)
_max_rows: dict[torch.dtype, int] = {}
"""Maximum number of rows for our code, by dtype, once the code is loaded."""
_prices: dict[torch.dtype, float] = {}

VECTORS = {"cpp.vec_isa_ok": True}
"""Setting of torch's compiler: use all vector instructions of the processor. Torch probes them
itself, but silently uses none if the probing process fails or takes a minute."""
_TIE, _PRICE = 1.05, 0.1
"""Our code computes N rows if it takes at most `_TIE` times as long as the library, or longer by at
most `_PRICE` products of one row: if one code computes all, a row has the same bits in any call."""
_TRIES, _MANY, _MERGED = 3, 64, 1 << 40
_merges = False
"""Whether the rows of a traced pass belong to several sequences of few rows each."""
GROUPED_ROWS = 16
"""Maximum number of rows of a grouped call; each head of a wider call fills its own product."""
_PROCESSORS, _WIDE = 128, 32
"""This many key-value heads over all sequences keep a GPU busy; with this many rows per head too,
torch's kernel is faster (results/reference/h100/attention.csv)."""


def make(library: Path) -> None:
    """Compile our code."""
    from torch._inductor import config
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    library.parent.mkdir(parents=True, exist_ok=True)
    # torch's builder takes no folder with a space
    with config.patch(VECTORS), tempfile.TemporaryDirectory() as scratch:
        source, options = shlex.quote(str(_SOURCE)), CppTorchOptions(vec_isa=pick_vec_isa())
        builder = CppBuilder(library.stem, source, options, output_dir=scratch)
        builder.build()
        partial = library.with_suffix(f".{os.getpid()}")
        shutil.copyfile(builder.get_target_file_path(), partial)
        partial.replace(library)


def load(library: Path) -> dict[torch.dtype, int]:
    """Load our code, and return its row limits by dtype, which are measured once and stored."""
    if not hasattr(torch.ops.decoders, "product"):
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        torch.library.register_fake("decoders::product", _unfilled)
        torch.library.register_fake("decoders::gated_product", _unfilled)
        torch.library.register_fake("decoders::switched_product", _unfilled)
        torch.library.register_fake("decoders::attend", lambda q, *_: q.new_empty(q.shape))
    measured, dtypes = library.with_suffix(".rows"), (torch.bfloat16, torch.float32)
    try:
        numbers = measured.read_text(encoding="utf-8").split()
        half, whole = map(int, numbers[:2])
        if len(numbers) != 4 or not all(math.isfinite(float(price)) for price in numbers[2:]):
            raise ValueError
    except (OSError, ValueError):  # not measured yet, or damaged
        (half, half_price), (whole, whole_price) = map(_measure, dtypes)
        numbers = [str(half), str(whole), f"{half_price:.3f}", f"{whole_price:.3f}"]
        partial = measured.with_suffix(f".{os.getpid()}")
        partial.write_text(" ".join(numbers), encoding="utf-8")
        partial.replace(measured)
    _prices.update(zip(dtypes, map(float, numbers[2:]), strict=True))
    _max_rows.update({torch.bfloat16: half, torch.float16: min(half, 256), torch.float32: whole})
    return dict(_max_rows)


def rows_and_price(dtype: torch.dtype) -> tuple[int, float] | None:
    """Return the row limit of our loaded code, and its largest loss, in products of one row."""
    return (_max_rows[dtype], _prices[dtype]) if dtype in _prices else None


def _unfilled(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def _measure(dtype: torch.dtype) -> tuple[int, float]:
    """Measure the row limit of our code and its largest loss (`rows_and_price`)."""
    few, price, one_row_s = 0, 0.0, 0.0
    weights = torch.ones(_MATRICES, *_SHAPE, dtype=dtype)  # larger than a core's cache
    if dtype == torch.float32:  # stored as in `gating.laid_out`
        weights = weights.mT.contiguous().mT
    for num_rows in ROWS:
        x = torch.ones(num_rows, _SHAPE[1], dtype=dtype)
        times_s = {0: math.inf, num_rows: math.inf}  # by limit; 0: the library
        for _ in range(_TRIES):  # other work only makes times longer, sometimes for a while
            for _, limit in itertools.product(range(_ROUNDS), times_s):
                start_s = time.perf_counter()
                for weight in weights:
                    torch.ops.decoders.product(x, weight, limit)
                times_s[limit] = min(times_s[limit], time.perf_counter() - start_s)
            library_s, our_s = times_s.values()
            one_row_s = one_row_s or our_s
            if our_s <= max(_TIE * library_s, library_s + _PRICE * one_row_s):
                break
        else:
            break
        few, price = num_rows, max(price, (our_s - library_s) / one_row_s)
    return few, price


def _is_traced() -> bool:
    """Return whether a graph for a CPU is traced that may call our code."""
    return torch.compiler.is_exporting() and bool(_max_rows)


@contextmanager
def merging(is_merged: bool) -> Iterator[None]:
    """Trace the products inside as those of rows ``[1, R, in]`` of many sequences if `merged`."""
    global _merges
    _merges = is_merged
    try:
        yield
    finally:
        _merges = False


def _limit(rows: Tensor, sequences: int = 1) -> int:
    """Return the row limit of our code while a graph for a CPU is traced, else 0.

    In bfloat16 the limit applies per sequence, so that a row has the same bits in a batch, if our
    code keeps up with the library at `_MANY` rows, and thus at more. A graph may serve any number.
    """
    limit = _max_rows.get(rows.dtype, 0) if _is_traced() else 0
    if rows.dtype != torch.bfloat16 or limit < _MANY:
        return limit
    num = rows.shape[0] if rows.dim() > 2 else sequences
    return limit * num if type(num) is int and not _merges else _MERGED


def product(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    sequences: int = 1,
    gate: Tensor | None = None,
) -> Tensor:
    """Return rows times a weight, plus a bias.

    Args:
        rows: ``[B, N, in]``, or flat ``[R, in]``.
        weight: ``[out, in]``.
        bias: ``[out]``.
        sequences: number of sequences that flat rows belong to.
        gate: ``[B, N, 1]``, 1 for slots, which do not change what code multiplies token rows.
    """
    if not (limit := _limit(rows, sequences)):
        return F.linear(rows, weight, bias)
    gates = [] if gate is None or rows.dtype != torch.bfloat16 else [gate.flatten(0, 1)]
    out: Tensor = torch.ops.decoders.product(rows, weight, limit, *gates)
    return out if bias is None else out + bias


def gated_product(
    rows: Tensor, weight: Tensor, low: Tensor | None, high: Tensor, gate: Tensor
) -> Tensor:
    """Return rows times a weight ``[out, in]``, plus the rows' low-rank delta times a gate.

    Args:
        rows: ``[B, N, in]``.
        weight: ``[out, in]``.
        low: A ``[R, in]`` of the delta B A; None: `high` is the whole delta.
        high: B ``[out, R]``.
        gate: float32 ``[B, N, 1]``, 1 or 0.
    """
    torch._check(rows.shape[1] == gate.shape[1])  # type: ignore[no-untyped-call]  # for a trace
    if _is_traced() and low is not None and rows.dtype == torch.bfloat16:
        operands = (rows, weight, low, high, gate.flatten(0, 1), _limit(rows))
        out: Tensor = torch.ops.decoders.gated_product(*operands)
        return out
    if low is not None and (kernels := fused_kernels(rows)):
        out = kernels.add_delta(product(rows, weight), product(rows, low), high, gate)
        return out
    delta = product(rows if low is None else product(rows, low), high)
    return product(rows, weight, gate=gate) + delta * gate.to(delta.dtype)


def switched_product(rows: Tensor, weight: Tensor, other: Tensor, gate: Tensor) -> Tensor:
    """Return rows times a weight, or times the `other` weight where the gate is 1.

    Args:
        rows: ``[B, N, in]``.
        weight: ``[out, in]``.
        other: like `weight`.
        gate: float32 ``[B, N, 1]``, 1 or 0.
    """
    torch._check(rows.shape[1] == gate.shape[1])  # type: ignore[no-untyped-call]  # for a trace
    if _is_traced():
        operands = (rows, weight, other, gate.flatten(0, 1), _limit(rows))
        out: Tensor = torch.ops.decoders.switched_product(*operands)
        return out
    if rows.is_cuda or torch.compiler.is_exporting():  # an index would wait for the device
        return torch.where(gate != 0, product(rows, other), product(rows, weight))
    flat, is_open = rows.flatten(0, 1), gate.flatten() != 0
    out = flat.new_empty(len(flat), len(weight))
    for used, places in ((weight, ~is_open), (other, is_open)):
        index = places.nonzero().squeeze(1)
        out.index_copy_(0, index, product(flat.index_select(0, index), used))
    return out.view(*rows.shape[:-1], -1)


def gated(states: Tensor, activation: Callable[[Tensor], Tensor] = F.silu) -> Tensor:
    """Return ``activation(gate) * up`` ``[…, F]`` of `states` ``[…, 2 F]``, gate before up."""
    if activation is F.silu and (kernels := fused_kernels(states)):
        out: Tensor = kernels.gated(states)
        return out
    gate, up = states.chunk(2, -1)
    return activation(gate) * up


def rotated(states: Tensor, turn: Sequence[Tensor]) -> Tensor:
    """Rotate states ``[…, heads, N, E]`` by the cosines and sines `turn` of their positions."""
    low, high = states.chunk(2, -1)
    return states * turn[0] + torch.cat((-high, low), -1) * turn[1]


def leave_out_cudnn(device: torch.device) -> None:
    """Switch cuDNN's attention off in this process, if `device` is a GPU, before its models open.

    vLLM does likewise: cuDNN makes a new plan for every shape.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Return attention ``[B, N, H, E]``, with grouped query heads if the rows are few.

    Args:
        query: ``[B, H, N, E]``.
        key: ``[B, K, T, E]``.
        value: like `key`.
        mask: ``[B or 1, 1, N, T]``, additive, or bool, True: seen; None: causal.
        scale: factor of the scores; None: 1 / sqrt(E).
    """
    batch, num_heads, num_rows, width = query.shape
    shared, scale = key.shape[1], width**-0.5 if scale is None else scale
    num_groups = num_heads // shared
    wide = not torch.compiler.is_exporting() and num_rows > GROUPED_ROWS  # a graph has any width
    is_causal = mask is None and num_rows > 1  # the kernel masks itself
    if num_groups > 1 and (is_causal or wide):
        repeated = (each[:, :, None].expand(-1, -1, num_groups, -1, -1) for each in (key, value))
        key, value = (each.flatten(1, 2) for each in repeated)
        num_groups = 1
    if is_causal:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        return out.transpose(1, 2)
    if query.is_cuda and (
        num_groups == 1 or batch * shared < _PROCESSORS or num_groups * num_rows < _WIDE
    ):
        attend = attention_kernel(query, key)
        if attend is not None:
            return attend(query, key, value, mask, scale)
    if num_groups > 1:
        query = query.reshape(batch, shared, num_groups * num_rows, width)
    if mask is not None:  # a trace then knows that both have as many rows
        torch._check(mask.shape[2] * num_groups == query.shape[2])  # type: ignore[no-untyped-call]
    is_half = query.dtype == torch.bfloat16 and value.shape[-1] == width
    if mask is not None and is_half and _is_traced():
        out = torch.ops.decoders.attend(query, key, value, mask, scale)
    else:
        if mask is not None and num_groups > 1:
            mask = mask.repeat(1, 1, num_groups, 1)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        if num_groups > 1 and query.is_cuda:  # with a mask, [B, G N, K, E] lies in memory
            out = out.contiguous()
    return out.view(batch, num_heads, num_rows, value.shape[-1]).transpose(1, 2)
