"""Products of few rows: sums of float32, rounded once, whatever rows and sizes are."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decoders.core.hf import graph_files, products
from decoders.core.hf.model import HFModel
from tests.tiny_models import fresh

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(graph_files.missing_compiler() is not None, reason="no C++ compiler"),
]
CLOSE = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-5}
SHAPES = [(576, 1536), (40, 64), (7, 128), (5, 48)]
LINES = [*SHAPES, (1581, 160), (33, 7), (160, 1)]
FEW = {torch.bfloat16: 64, torch.float16: 64, torch.float32: 64}


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    library = tmp_path_factory.mktemp("graphs") / "rows.so"
    few = products.load(library)
    assert set(few) == set(CLOSE)
    assert set(few.values()) <= {0, *products.ROWS}
    library.with_suffix(".rows").write_text("5 7")  # measured once
    assert products.load(library) == {torch.bfloat16: 5, torch.float16: 5, torch.float32: 7}


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 13, 64, 65])
def test_rows_are_multiplied(dtype: torch.dtype, shape: tuple[int, int], num_rows: int) -> None:
    weight, x = drawn(*shape, dtype=dtype), drawn(num_rows, shape[1], dtype=dtype)
    found = torch.ops.decoders.product(x[None], weight, 64)
    exact = x.double() @ weight.double().t()
    assert found.dtype == dtype
    assert found.shape == (1, num_rows, shape[0])
    torch.testing.assert_close(found[0].double(), exact, rtol=CLOSE[dtype], atol=1e-4)


@pytest.mark.parametrize("shape", LINES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 13, 18, 64, 65])
def test_rows_are_multiplied_with_weights_by_lines(shape: tuple[int, int], num_rows: int) -> None:
    weight, x = drawn(*shape, dtype=torch.float32), drawn(num_rows, shape[1], dtype=torch.float32)
    found = torch.ops.decoders.product(x[None], weight.t().contiguous().t(), 64)
    exact = x.double() @ weight.double().t()
    assert found.shape == (1, num_rows, shape[0])
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "by_lines"), [(torch.bfloat16, False), (torch.float32, False), (torch.float32, True)]
)
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype, by_lines: bool) -> None:
    weight, x = drawn(577, 96, dtype=dtype), drawn(64, 96, dtype=dtype)
    weight = weight.t().contiguous().t() if by_lines else weight
    alone = [torch.ops.decoders.product(row[None], weight, 64) for row in x]
    for count in (2, 5, 17, 63):
        together = torch.ops.decoders.product(x[:count], weight, 64)
        assert torch.equal(together, torch.cat(alone[:count]))


def test_more_rows_than_few_are_the_librarys() -> None:
    weight, x = drawn(576, 1536, dtype=torch.bfloat16), drawn(8, 1536, dtype=torch.bfloat16)
    library = nn.functional.linear(x, weight)
    assert torch.equal(torch.ops.decoders.product(x, weight, 7), library)
    assert not torch.equal(torch.ops.decoders.product(x, weight, 8), library), "other sums"


def test_rows_that_are_not_contiguous() -> None:
    weight, wide = drawn(8, 64, dtype=torch.bfloat16), drawn(3, 128, dtype=torch.bfloat16)
    found = torch.ops.decoders.product(wide[:, ::2], weight, 64)
    assert torch.equal(found, torch.ops.decoders.product(wide[:, ::2].contiguous(), weight, 64))


class Several(nn.Module):
    """Products of all kinds: those of activations stay as they are.

    In float16: chains of them in bfloat16 differ by more than 5 % between two libraries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 32, dtype=torch.float16)
        self.bare = nn.Linear(32, 64, bias=False, dtype=torch.float16)
        self.single = nn.Linear(64, 64)
        self.weight = nn.Parameter(drawn(32, 64, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bare(self.linear(x)) + (x @ self.weight.t()) @ self.weight
        y = y + torch.mm(x[0], self.weight.t()) @ self.weight
        scores = (y @ x.transpose(1, 2)) @ y
        out: Tensor = self.single(scores.float())
        return out


@pytest.mark.parametrize("few", [FEW, FEW | {torch.float32: 0}])
def test_products_of_weights_are_replaced(few: dict[torch.dtype, int]) -> None:
    torch.manual_seed(0)  # of the layers' weights: errors of a chain have a long tail
    module, x = Several().requires_grad_(False), drawn(1, 5, 64, dtype=torch.float16)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {1: rows}}, strict=False)
    products.use_in(program, few)
    targets = [str(node.target) for node in program.graph.nodes]
    is_replaced = few[torch.float32] > 0
    assert targets.count("decoders.product.default") == 6 + is_replaced
    assert targets.count("aten.linear.default") == 1 - is_replaced
    assert targets.count("aten.matmul.default") == 2
    for count in (5, 9):
        x = drawn(1, count, 64, dtype=torch.float16) / 8
        torch.testing.assert_close(program.module()(x), module(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_graphs_multiply_by_them(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path))
    used: list[str] = []
    replaced = products.use_in

    def use_in(program: Any, few: dict[torch.dtype, int]) -> None:
        replaced(program, few)
        used.append(str(program.graph))

    monkeypatch.setattr(products, "use_in", use_in)
    monkeypatch.setattr(products, "_measure_few", lambda _: 64)
    logits = []
    for compile in (False, True):
        model = HFModel(fresh("llama-gqa").to(dtype), compile=compile)
        model.reserve(1, 32)
        session = model.open()
        model.forward([session.call(list(range(12)), read=())])
        logits.append(model.forward([session.call([3], output="logits", read=[0])]))
    assert len(used) == 2, "a graph of rows, and one of one row"
    for graph in used:
        assert "decoders.product.default" in graph
        assert "aten.linear.default" not in graph
    close = 1e-4 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(logits[1], logits[0], rtol=close, atol=close)


def test_narrower_vectors_of_the_processor_give_the_same_products(tmp_path: Path) -> None:
    from torch._inductor import cpu_vec_isa

    narrower = [str(isa) for isa in cpu_vec_isa.valid_vec_isa_list()[1:]]
    if not narrower:
        pytest.skip("the processor has vectors of one width")
    code = """
import sys
from pathlib import Path

import torch
from torch._inductor import cpu_vec_isa

from decoders.core.hf import products

name, folder = sys.argv[1:]
(chosen,) = [isa for isa in cpu_vec_isa.valid_vec_isa_list() if str(isa) == name]
cpu_vec_isa.pick_vec_isa = lambda: chosen
torch.manual_seed(0)
products._measure_few = lambda dtype: 64
products.load(Path(folder) / f"{name}.so")
for dtype, atol in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
    weight, x = torch.randn(577, 96, dtype=dtype), torch.randn(13, 96, dtype=dtype)
    exact = x.double() @ weight.double().t()
    for laid_out in (weight, weight.t().contiguous().t()):
        found = torch.ops.decoders.product(x, laid_out, 64).double()
        torch.testing.assert_close(found, exact, rtol=0, atol=atol)
"""
    for name in narrower:
        subprocess.run([sys.executable, "-c", code, name, str(tmp_path)], check=True)
