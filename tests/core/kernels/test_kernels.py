"""Kernels in Triton: in its interpreter, compiled for a GPU that is not there, and on a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from decoders.core.hf import llama
from decoders.core.hf.cache import PlaneCache
from decoders.core.kernels import fits

ROOT = Path(__file__).parents[3]
ATTENTIONS = [  # B, K, G, N, T, E
    *((1, 2, 3, 1, 40, 32), (2, 2, 3, 5, 300, 64)),
    *((1, 1, 4, 16, 1000, 64), (3, 2, 1, 2, 129, 128)),
]
CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def compare_attention(device: str, dtype: torch.dtype) -> None:
    """Masks differ by row and sequence, hide whole blocks, and may be shared or missing."""
    from decoders.core.kernels.split_attention import split_attention

    on_gpu = device != "cpu"
    shapes = ATTENTIONS[: 2 if on_gpu and dtype == torch.float32 else None]  # compile for long
    for batch, heads, groups, rows, entries, width in shapes:
        generator = torch.Generator().manual_seed(entries)

        def drawn(*shape: int, by: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(shape, generator=by).to(device, dtype)

        query = drawn(batch, heads * groups, rows, width)
        planes = [drawn(batch, heads, entries + 37, width) for _ in range(2)]
        key, value = (plane[:, :, :entries] for plane in planes)
        seen = torch.rand(batch, 1, rows, entries, generator=generator) < 0.3
        seen[..., 0] = True
        seen[..., entries // 2 :] &= entries < 100
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(dtype).min)
        everything = torch.zeros((), dtype=mask.dtype).expand(1, 1, rows, entries)
        for each in (mask, mask[:1], None, seen, everything):
            wide = (part.cpu().double().repeat_interleave(groups, 1) for part in (key, value))
            keys, values = wide
            scores = 0.2 * query.cpu().double() @ keys.mT
            added = torch.zeros(()) if each is None else mask if each is seen else each
            expected = (scores + added.double()).softmax(-1) @ values
            kind = torch.bool if each is seen else dtype
            given = None if each is None else each.to(device, kind)
            if each is everything:  # one number in memory
                given = torch.zeros((), dtype=dtype, device=device).expand(each.shape)
            for programs in (1056, 4):  # few: a part has several blocks, with a running maximum
                with mock.patch("decoders.core.kernels.split_attention._PROGRAMS", programs):
                    found = split_attention(query, key, value, given, 0.2)
                found = found.cpu().double().transpose(1, 2)
                torch.testing.assert_close(found, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def compare_unseen(device: str, dtype: torch.dtype) -> None:
    """Blocks of entries that no row sees are not read, whatever lies there."""
    from decoders.core.kernels.split_attention import split_attention

    query, (key, value) = torch.ones(1, 2, 1, 16), torch.ones(2, 1, 2, 192, 16)
    key[:, :, 64:128], value[:, :, 64:128] = torch.nan, torch.nan
    seen = torch.ones(1, 1, 1, 192, dtype=torch.bool)
    seen[..., 64:128] = False
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(dtype).min)
    query, key, value = (each.to(device, dtype) for each in (query, key, value))
    for given in (seen, mask.to(dtype)):
        found = split_attention(query, key, value, given.to(device), 0.2)
        torch.testing.assert_close(found.cpu(), torch.ones_like(found.cpu()))


LAYERS = [  # B, N, H, K, E, F
    *((1, 1, 4, 2, 64, 96), (2, 5, 9, 3, 16, 1536), (3, 1, 2, 2, 32, 2048), (1, 17, 4, 1, 128, 24)),
    (2, 3, 4, 2, 24, 40),  # a width that is no power of two
]


def compare_fused(device: str, dtype: torch.dtype) -> None:
    """Every kernel gives the numbers of torch's operations, to the last bit but of sums."""
    from decoders.core.kernels import fused

    for batch, num_rows, heads, shared, width, inner in LAYERS:
        generator = torch.Generator().manual_seed(width)

        def drawn(*shape: int, by: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(shape, generator=by).to(device, dtype)

        near: Any = {
            "rtol": {torch.float32: 1e-5, torch.float16: 2e-3}.get(dtype, 1.6e-2),
            "atol": 1e-5,
        }
        rows, added = (drawn(batch, num_rows, heads * width) for _ in range(2))
        weight = drawn(heads * width)
        for extra in (None, added):
            summed, scaled = fused.add_norm(rows, extra, weight, 1e-5)
            expected = rows if extra is None else rows + extra
            assert torch.equal(summed, expected)
            torch.testing.assert_close(scaled, llama.norm(expected, weight, 1e-5), **near)

        states = drawn(batch, num_rows, 2 * inner)
        gate, up = states.chunk(2, -1)
        torch.testing.assert_close(fused.gated(states), F.silu(gate) * up, **near)

        low, high = drawn(batch, num_rows, 80), 0.1 * drawn(inner, 80)
        for factor in (high, high.t().contiguous().t()):
            out = drawn(batch, num_rows, inner)
            gate = (drawn(batch, num_rows, 1) > 0).float()
            whole, shut = out + (low @ high.t()) * gate.to(dtype), gate.squeeze(-1) == 0
            added = fused.add_delta(out.clone(), low, factor, gate)
            assert torch.equal(added[shut], out[shut])
            torch.testing.assert_close(added, whole, rtol=CLOSE[dtype], atol=CLOSE[dtype])

        states = drawn(batch, num_rows, (heads + 2 * shared) * width)
        turn = drawn(batch, 1, num_rows, width), drawn(batch, 1, num_rows, width)
        entries = torch.stack(
            [torch.randperm(num_rows + 3, generator=generator)[:num_rows] for _ in range(batch)]
        ).to(device)
        for norms in (None, (drawn(width), drawn(width))):
            found = [drawn(batch, shared, num_rows + 3, width) for _ in range(2)]
            expected_planes = [each.clone() for each in found]
            cache = PlaneCache(found, entries, num_rows + 3)
            places = cache.places(0)
            assert places is not None
            query = fused.turn_heads(states, turn, norms, 1e-5, *places)
            each = llama._split_heads(states, turn, norms, 1e-5, (heads, shared))
            PlaneCache(expected_planes, entries, num_rows + 3).update(each[1], each[2], 0)
            if norms is not None and device != "cpu":  # torch's norm rounds once, ours as a CPU's
                near = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype]}
            torch.testing.assert_close(query, each[0], **near)
            for plane, expected in zip(found, expected_planes, strict=True):
                torch.testing.assert_close(plane, expected, **near)


@pytest.mark.parametrize(
    ("rows", "width", "itemsize", "expected"),
    [
        *((4 * 16, 64, 2, True), (8 * 16, 128, 2, True), (16, 256, 2, True), (1, 128, 4, True)),
        *((12 * 16, 128, 2, False), (8 * 16, 256, 2, False), (16, 1024, 2, False)),
        *((16, 80, 2, False), (1, 8, 2, False), (4 * 16, 256, 4, False)),
    ],
)
def test_attention_takes_only_blocks_that_fit_in_registers_and_shared_memory(
    rows: int, width: int, itemsize: int, expected: bool
) -> None:
    """A draft layer's few heads may be 1,024 wide: such a block exceeds a GPU's shared memory."""
    assert fits(rows, width, itemsize) is expected


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton comes with torch for CUDA"
)
COMPARISONS = {
    "attention": compare_attention,
    "unseen": compare_unseen,
    "fused": compare_fused,
}


@needs_triton
@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])  # the interpreter has no bfloat16
def test_interpreted_kernels_give_the_numbers_of_torch(kind: str, dtype: str) -> None:
    code = (
        "import torch; from tests.core.kernels.test_kernels import COMPARISONS; "
        f"COMPARISONS['{kind}']('cpu', torch.{dtype})"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("dtype", CLOSE)
def test_on_a_gpu_kernels_give_the_numbers_of_torch(kind: str, dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with torch.no_grad():
        COMPARISONS[kind]("cuda", dtype)


WHOLE = {
    "capacity",
    *("width", "size", "num_rows", "heads", "shared", "entries", "period", "per_part", "parts"),
    *(
        "rank",
        "h_out",
        "h_rank",
        "k_batch",
        "k_head",
        "k_entry",
        "v_batch",
        "v_head",
        "v_entry",
        "m_batch",
        "m_row",
    ),
}
"""Arguments of kernels that are whole numbers."""
MASKS = [{"has_mask": has, "is_bool": by_bool} for has, by_bool in ((1, 0), (1, 1), (0, 0))]
PART = {"num_padded": 16, "width": 64, "block": 64}
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    *(("fused", "_norm_kernel", {"adds": adds, "padded": 1024}) for adds in (True, False)),
    *(
        ("fused", "_turn_kernel", {"has_norms": has, "width": width, "padded": padded})
        for has in (True, False)
        for width, padded in ((64, 64), (80, 128))
    ),
    ("fused", "_gate_kernel", {"block": 1024}),
    *(("fused", "_delta_kernel", {"padded": padded, "block": 64}) for padded in (16, 64)),
    *(("split_attention", "_part_kernel", {**PART, **mask}) for mask in MASKS),
    ("split_attention", "_part_kernel", {**PART, **MASKS[0], "width": 256}),
    ("split_attention", "_join_kernel", {"width": 64, "num_padded": 8}),
]
SHARED = 99 * 1024
"""Bytes of shared memory that a program may use on the smallest of today's GPUs."""


@needs_triton
@pytest.mark.filterwarnings("ignore")  # of Triton, about its defaults
@pytest.mark.parametrize(("module", "name", "fixed"), VARIANTS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_kernels_compile_for_a_gpu_that_is_not_there(
    module: str, name: str, fixed: dict[str, Any], dtype: str
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel: Any = getattr(importlib.import_module(f"decoders.core.kernels.{module}"), name)

    def kind(argument: str) -> str:
        if argument in fixed:
            return "constexpr"
        if argument in ("epsilon", "scale"):
            return "fp32"
        pointers = {"places": "*i64", **dict.fromkeys(("sums", "peaks", "totals", "gate"), "*fp32")}
        return "i32" if argument in WHOLE else pointers.get(argument, f"*{dtype}")

    arguments = {each: kind(each) for each in inspect.signature(kernel.fn).parameters}
    source = ASTSource(kernel, arguments, constexprs=fixed)
    made: Any = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"]
    assert made.metadata.shared <= SHARED
