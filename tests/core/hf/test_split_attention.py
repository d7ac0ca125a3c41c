"""The kernel of `split_attention` against float64, in Triton's interpreter and on a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
SHAPES = [  # B, K, G, N, T, E
    *((1, 2, 3, 1, 40, 32), (2, 2, 3, 5, 300, 64)),
    *((1, 1, 4, 16, 1000, 64), (3, 2, 1, 2, 129, 128)),
]
CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def compare(device: str, dtype: torch.dtype) -> None:
    """Masks differ by row and sequence, hide whole blocks, and may be shared or missing."""
    from decoders.core.hf.split_attention import split_attention

    for batch, heads, groups, rows, entries, width in SHAPES:
        generator = torch.Generator().manual_seed(entries)

        def drawn(*shape: int, by: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(shape, generator=by).to(device, dtype)

        query = drawn(batch, heads, groups * rows, width)
        planes = [drawn(batch, heads, entries + 37, width) for _ in range(2)]
        key, value = (plane[:, :, :entries] for plane in planes)
        seen = torch.rand(batch, 1, rows, entries, generator=generator) < 0.3
        seen[..., 0] = True
        seen[..., entries // 2 :] &= entries < 100
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(dtype).min)
        for each in (mask, mask[:1], None):
            added = 0 if each is None else each.double().repeat(1, 1, groups, 1)
            scores = 0.2 * query.cpu().double() @ key.cpu().double().mT + added
            expected = scores.softmax(-1) @ value.cpu().double()
            given = None if each is None else each.to(device, dtype)
            found = split_attention(query, key, value, given, 0.2).cpu().double()
            torch.testing.assert_close(found, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton comes with torch for CUDA"
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])  # the interpreter has no bfloat16
def test_interpreted_it_gives_the_numbers_of_float64(dtype: str) -> None:
    code = (
        "import torch; from tests.core.hf.test_split_attention import compare; "
        f"compare('cpu', torch.{dtype})"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CLOSE)
def test_on_a_gpu_it_gives_the_numbers_of_float64(dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    compare("cuda", dtype)
