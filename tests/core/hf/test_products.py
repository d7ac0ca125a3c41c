"""Products and attention of graphs on a CPU: near float64, and of the same bits in every call."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from decoders.core import masks, products
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter_config import AdapterConfig
from decoders.core.hf import compiled, graph_children, graph_files
from decoders.core.hf.model import HFModel
from decoders.core.types import DraftShape, Sampling, Slots
from tests.tiny_models import SIZES, WIDTH, fresh, slot_adapter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(graph_files.missing_compiler() is not None, reason="no C++ compiler"),
]
CLOSE = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-5}
SHAPES = [(576, 1536), (40, 64), (7, 128), (5, 48)]
LINES = [*SHAPES, (1581, 160), (33, 7), (160, 1)]
FEW = {torch.bfloat16: 64, torch.float16: 64, torch.float32: 64}
LOWEST = torch.finfo(torch.bfloat16).min
needs_bfloat16 = pytest.mark.skipif(
    "avx512_bf16" not in graph_files._cpu_flags(), reason="the processor multiplies no bfloat16"
)


@pytest.fixture(scope="module", autouse=True)
def _loaded(
    library: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    made = library(tmp_path_factory.mktemp("cache"))
    made.with_suffix(".rows").unlink()
    few = products.load(made)
    assert set(few) == set(CLOSE)
    assert set(few.values()) <= {0, *products.ROWS}
    made.with_suffix(".rows").write_text("5 7 0.02 0.0")  # measured once
    assert products.load(made) == {torch.bfloat16: 5, torch.float16: 5, torch.float32: 7}
    assert products.rows_and_price(torch.bfloat16) == (5, 0.02)
    assert products.rows_and_price(torch.float32) == (7, 0.0)
    yield
    products._max_rows.clear()
    products._prices.clear()


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.skipif("avx2" not in graph_files._cpu_flags(), reason="the processor has no AVX2")
def test_code_uses_the_processors_vectors_if_the_compilers_probe_fails(tmp_path: Path) -> None:
    """In a process of its own, because the compiler remembers what it found."""
    code = """
import sys
from pathlib import Path
from torch._inductor import cpp_builder, cpu_vec_isa
from decoders.core import products
cpu_vec_isa.VecISA._probe_load = lambda *_: False
ours = cpp_builder.CppTorchOptions
def options(vec_isa, **others):
    if not others:  # the compiler's own probes have more
        sys.exit(str(vec_isa))
    return ours(vec_isa=vec_isa, **others)
cpp_builder.CppTorchOptions = options
products.make(Path(sys.argv[1]))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "rows.so")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stderr.split()[0] in ("avx2", "avx512")


def measured(
    spent: dict[int, float], monkeypatch: pytest.MonkeyPatch, disturbed: int = 0
) -> tuple[int, float]:
    """Measure with a clock by which a product takes `spent` by its limit.

    Other work makes readings longer: every third, and all of the first `disturbed` of our code.
    """
    clock, runs = [0.0], {"all": 0, "ours": 0}

    def product(_x: Tensor, _weight: Tensor, limit: int) -> None:
        runs["all"] += 1
        runs["ours"] += limit > 1
        busy = runs["all"] % 3 == 0 or (limit > 1 and runs["ours"] <= disturbed)
        clock[0] += spent[limit] + busy * 9

    monkeypatch.setattr(products, "_MATRICES", 1)
    monkeypatch.setattr(torch.ops.decoders, "product", product)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    return products._measure(torch.bfloat16)


@pytest.mark.parametrize("disturbed", [0, 15])
def test_our_code_serves_rows_until_the_library_is_clearly_faster(
    disturbed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = {0: 1.0, 1: 0.5, 2: 1.045, 4: 1.2}
    few, price = measured(spent, monkeypatch, disturbed)
    assert (few, round(price, 9)) == (2, 0.09)


def test_our_code_serves_rows_while_it_loses_at_most_a_tenth_of_a_one_row_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, price = measured({0: 1.0, 1: 0.9, 2: 1.08, 4: 1.085, 8: 1.095}, monkeypatch)
    assert few == 4
    assert price == pytest.approx(0.085 / 0.9)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 13, 64, 65, 200])
def test_products_are_close_to_exact_ones(
    dtype: torch.dtype, shape: tuple[int, int], num_rows: int
) -> None:
    weight, x = drawn(*shape, dtype=dtype), drawn(num_rows, shape[1], dtype=dtype)
    found = torch.ops.decoders.product(x[None], weight, 200)
    exact = x.double() @ weight.double().t()
    assert found.dtype == dtype
    assert found.shape == (1, num_rows, shape[0])
    torch.testing.assert_close(found[0].double(), exact, rtol=CLOSE[dtype], atol=1e-4)


@pytest.mark.parametrize("shape", LINES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 13, 18, 64, 65])
def test_products_with_column_major_weights_are_close_to_exact_ones(
    shape: tuple[int, int], num_rows: int
) -> None:
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


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, marks=needs_bfloat16), torch.float32]
)
def test_calls_with_more_rows_than_the_limit_use_the_librarys_product(dtype: torch.dtype) -> None:
    """Without instructions for bfloat16, both sum it alike; float32 they never do."""
    weight, x = drawn(576, 1536, dtype=dtype), drawn(8, 1536, dtype=dtype)
    library = nn.functional.linear(x, weight)
    assert torch.equal(torch.ops.decoders.product(x, weight, 7), library)
    assert not torch.equal(torch.ops.decoders.product(x, weight, 8), library), "other sums"


@needs_bfloat16
@pytest.mark.parametrize("num_tokens", [24, 64, 65])
@pytest.mark.parametrize("num_slots", [1, 40])
def test_slots_do_not_change_the_bits_of_tokens_beside_them(
    num_tokens: int, num_slots: int
) -> None:
    """Up to 64 tokens are multiplied by our code, and more by the library."""
    x, weight = (drawn(*shape, dtype=torch.bfloat16) for shape in ((105, 1536), (576, 1536)))
    low, high = (drawn(*shape, dtype=torch.bfloat16) for shape in ((32, 1536), (576, 32)))
    alone = torch.ops.decoders.product(x[:num_tokens], weight, 64)
    library = nn.functional.linear(x[:num_tokens], weight)
    assert torch.equal(alone, library) == (num_tokens > 64), "the two codes round differently"
    rows = x[: num_tokens + num_slots]
    gate = (torch.arange(len(rows)) >= num_tokens).float()[:, None]
    for found in (
        torch.ops.decoders.product(rows, weight, 64, gate),
        torch.ops.decoders.gated_product(rows, weight, low, high, gate, 64),
        torch.ops.decoders.switched_product(rows, weight, weight, gate, 64),
    ):
        assert torch.equal(found[:num_tokens], alone)


def test_slots_count_as_rows_for_the_limit_above_which_the_library_multiplies() -> None:
    x, weight = drawn(9, 96, dtype=torch.float32), drawn(7, 96, dtype=torch.float32)
    library, gate = nn.functional.linear(x, weight), torch.ones(9, 1)
    assert torch.equal(torch.ops.decoders.product(x, weight, 8, gate), library)


def test_rows_that_are_not_contiguous_give_the_same_product() -> None:
    weight, wide = drawn(8, 64, dtype=torch.bfloat16), drawn(3, 128, dtype=torch.bfloat16)
    found = torch.ops.decoders.product(wide[:, ::2], weight, 64)
    assert torch.equal(found, torch.ops.decoders.product(wide[:, ::2].contiguous(), weight, 64))


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(
    ("sizes", "open_rows"),
    [
        ((9, 64, 33, 32), range(3, 9)),
        ((1, 96, 8, 32), range(1)),
        ((4, 64, 9, 64), range(0)),
        ((20, 64, 30, 32), (2, 9, 10, 15)),
        ((130, 64, 40, 64), range(95, 98)),
        ((6, 40, 8, 24), range(6)),
    ],
)
def test_open_rows_also_get_a_low_rank_delta(
    dtype: torch.dtype, sizes: tuple[int, int, int, int], open_rows: Sequence[int]
) -> None:
    num_rows, width, count, rank = sizes
    x, weight = drawn(1, num_rows, width, dtype=dtype), drawn(count, width, dtype=dtype)
    low, high = drawn(rank, width, dtype=dtype), drawn(count, rank, dtype=dtype)
    gate = torch.zeros(num_rows, 1)
    gate[list(open_rows)] = 1
    found = torch.ops.decoders.gated_product(x, weight, low, high, gate, 256)
    plain = torch.ops.decoders.product(x, weight, 256)
    closed = gate[:, 0] == 0
    assert torch.equal(found[:, closed], plain[:, closed])
    inner = (x.double() @ low.double().t()).to(dtype).double()
    exact = x.double() @ weight.double().t() + inner @ high.double().t() * gate
    error = (found.double() - exact).abs().max() / exact.abs().max()
    assert error < 2 * CLOSE[dtype]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(
    ("num_rows", "open_rows"),
    [(9, range(3, 9)), (1, range(1)), (4, range(0)), (6, range(6)), (30, (2, 9, 10, 15))],
)
def test_rows_with_an_open_gate_are_multiplied_by_the_second_weight(
    dtype: torch.dtype, num_rows: int, open_rows: Sequence[int]
) -> None:
    x, weight = drawn(1, num_rows, 64, dtype=dtype), drawn(48, 64, dtype=dtype)
    other, gate = drawn(48, 65, dtype=dtype)[:, 1:].contiguous(), torch.zeros(num_rows, 1)
    gate[list(open_rows)] = 1
    found = torch.ops.decoders.switched_product(x, weight, other, gate, 256)
    plain, away = (torch.ops.decoders.product(x, each, 256) for each in (weight, other))
    assert torch.equal(found, torch.where(gate != 0, away, plain))


class Several(nn.Module):
    """Products of all kinds: those that are not asked for by name stay as they are.

    In float16: chains of them in bfloat16 differ by more than 5 % between two libraries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 32, dtype=torch.float16)
        self.bare = nn.Linear(32, 64, bias=False, dtype=torch.float16)
        self.single = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = products.product(x, self.linear.weight, self.linear.bias)
        y = products.product(y, self.bare.weight) + self.bare(self.linear(x))
        scores = (y @ x.transpose(1, 2)) @ y
        return products.product(scores.float(), self.single.weight, self.single.bias)


def exported(module: nn.Module, given: tuple[Tensor, ...], *dims: int | None) -> Any:
    """Trace a module in which one dimension of some arguments is free."""
    rows = torch.export.Dim("rows", min=2)
    free = tuple({} if dim is None else {dim: rows} for dim in dims)
    return torch.export.export(module, given, dynamic_shapes=free, strict=False)


@pytest.mark.parametrize("few", [FEW, FEW | {torch.float32: 0}, {}])
def test_traced_graphs_use_our_products(
    few: dict[torch.dtype, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_max_rows", few)
    torch.manual_seed(0)  # of the layers' weights: errors of a chain have a long tail
    module, x = Several().requires_grad_(False), drawn(1, 5, 64, dtype=torch.float16)
    program = exported(module, (x,), 1)
    targets = [str(node.target) for node in program.graph.nodes]
    num_ours = 2 * (torch.float16 in few) + (few.get(torch.float32, 0) > 0)
    assert targets.count("decoders.product.default") == num_ours
    assert targets.count("aten.linear.default") == 2 + 3 - num_ours
    assert targets.count("aten.matmul.default") == 2
    for count in (5, 9):
        x = drawn(1, count, 64, dtype=torch.float16) / 8
        torch.testing.assert_close(program.module()(x), module(x), rtol=0.05, atol=0.05)


class Gated(nn.Module):
    """A product with a delta where a gate is open."""

    def __init__(self, dtype: torch.dtype, rank: int | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(drawn(48, 64, dtype=dtype))
        self.low = None if rank is None else nn.Parameter(drawn(rank, 64, dtype=dtype))
        self.high = nn.Parameter(drawn(48, rank or 64, dtype=dtype))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return products.gated_product(x, self.weight, self.low, self.high, gate)


@pytest.mark.parametrize(
    ("dtype", "rank", "ours"),
    [
        (torch.bfloat16, 32, {"gated_product": 1}),
        (torch.bfloat16, None, {"product": 2}),
        (torch.float32, 32, {"product": 3}),
        (torch.float16, 32, {"product": 3}),
    ],
)
def test_a_traced_delta_in_bfloat16_is_part_of_its_product(
    dtype: torch.dtype, rank: int | None, ours: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_max_rows", FEW)
    module, gate = Gated(dtype, rank).requires_grad_(False), torch.zeros(1, 5, 1)
    program = exported(module, (drawn(1, 5, 64, dtype=dtype), gate), 1, 1)
    text = str(program.graph)
    for name in ("gated_product", "product"):
        assert text.count(f"decoders.{name}.default") == ours.get(name, 0)
    for count in (5, 9):
        x, gate = drawn(1, count, 64, dtype=dtype), torch.zeros(1, count, 1)
        gate[:, 3:] = 1
        found, plain = program.module()(x, gate), nn.functional.linear(x, module.weight)
        torch.testing.assert_close(found, module(x, gate), rtol=0.05, atol=0.5)
        away = (found - plain).abs().amax(-1)[0]
        assert away[:3].max() < 0.5 < away[3:].min()


@pytest.mark.parametrize("calls", ["gated_product", "switched_product"])
def test_a_traced_product_and_its_gate_share_one_number_of_rows(
    calls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_max_rows", FEW)
    module = Gated(torch.bfloat16, 32).requires_grad_(False)
    if calls == "switched_product":
        module.forward = lambda x, gate: products.switched_product(  # type: ignore[method-assign]
            x, module.weight, module.weight + 1, gate
        )
    x, gate = drawn(1, 5, 64, dtype=torch.bfloat16), torch.zeros(1, 7, 1)[:, :5]
    dynamic = {1: torch.export.Dim.AUTO}
    with compiled._config.patch(use_duck_shape=False):
        program: Any = torch.export.export(
            module, (x, gate), dynamic_shapes=(dynamic, dynamic), strict=False
        )
    assert calls in str(program.graph)
    sizes = {
        str(each.meta["val"].shape[1]) for each in program.graph.nodes if each.name in ("x", "gate")
    }
    assert len(sizes) == 1


def seen_by(kind: str, num_rows: int, entries: int, generator: torch.Generator) -> Tensor:
    """Draw which of the `entries` each row of a call sees: bool ``[1, 1, N, T]``."""
    seen = torch.zeros(1, 1, num_rows, entries, dtype=torch.bool)
    seen[..., : entries - num_rows] = True
    for row in range(num_rows):
        ancestor = row
        while ancestor >= 0:
            seen[0, 0, row, entries - num_rows + ancestor] = True
            drawn = int(torch.randint(-1, ancestor, (1,), generator=generator)) if ancestor else -1
            ancestor = drawn if kind == "tree" else ancestor - 1
        if kind == "window":
            seen[0, 0, row, : max(0, entries - num_rows + row - 20)] = False
    return seen


def attended(*given: Tensor) -> Tensor:
    out: Tensor = torch.ops.decoders.attend(*given, 0.125)
    return out


ATTENTION = [
    *[(1, 3, 3, 13, 300, 64), (2, 2, 1, 5, 64, 128), (1, 1, 4, 7, 65, 64)],
    (1, 2, 3, 90, 230, 64),  # branches of several units
]
LONG = (1, 2, 3, 200, 210, 64)
"""Sequences, key-value heads, query heads of one, rows, entries, head dimension."""


@pytest.mark.parametrize("kind", ["causal", "tree", "window"])
@pytest.mark.parametrize("sizes", [*ATTENTION, LONG, (1, 2, 2, 9, 40, 24)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_is_near_float64(dtype: torch.dtype, sizes: Any, kind: str) -> None:
    batch, heads, share, num_rows, entries, depth = sizes
    # a product's output: heads beside rows
    query = drawn(batch, share * num_rows, heads, depth, dtype=dtype).transpose(1, 2)
    planes = [drawn(batch, heads, entries + n, depth, dtype=dtype) for n in (7, 9)]
    key, value = (plane[:, :, :entries] for plane in planes)
    seen = seen_by(kind, num_rows, entries, torch.Generator().manual_seed(entries))
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    repeated = mask.double().repeat(1, 1, share, 1)
    exact = nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), attn_mask=repeated, scale=0.125
    )
    found = attended(query, key, value, mask)
    assert found.dtype == dtype
    assert found.is_contiguous(), "graphs read it in the layout of its sizes"
    atol = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), exact, rtol=2 * CLOSE[dtype], atol=atol)


@needs_bfloat16
@pytest.mark.parametrize("kind", ["causal", "tree"])
@pytest.mark.parametrize("sizes", ATTENTION)
def test_attention_of_a_row_does_not_depend_on_its_call(sizes: Any, kind: str) -> None:
    """A row of a tree attends as it does where its branch is all that the cache holds."""
    batch, heads, share, num_rows, entries, depth = sizes
    query, key, value = (
        drawn(batch, heads, n, depth, dtype=torch.bfloat16)
        for n in (share * num_rows, entries, entries + 1)
    )
    value = value[:, :, 1:]
    seen = seen_by(kind, num_rows, entries, torch.Generator().manual_seed(entries))
    mask = torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill(~seen, LOWEST)
    together = attended(query, key, value, mask)
    for row in range(num_rows):
        branch = seen[0, 0, row].nonzero().flatten()
        rows = torch.arange(share) * num_rows + row
        nothing_hidden = torch.zeros(1, 1, 1, len(branch), dtype=torch.bfloat16)
        alone = attended(
            query[:, :, rows],
            key[:, :, branch].contiguous(),
            value[:, :, branch].contiguous(),
            nothing_hidden,
        )
        assert torch.equal(alone, together[:, :, rows])


@needs_bfloat16
def test_attention_of_a_long_prompt_is_that_of_its_rows() -> None:
    _, heads, share, num_rows, entries, depth = LONG
    query = drawn(1, heads, share * num_rows, depth, dtype=torch.bfloat16)
    key, value = (drawn(1, heads, entries, depth, dtype=torch.bfloat16) for _ in range(2))
    seen = seen_by("causal", num_rows, entries, torch.Generator())
    mask = torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill(~seen, LOWEST)
    together = attended(query, key, value, mask)
    for row in (0, 100, 199):
        rows = torch.arange(share) * num_rows + row
        alone = attended(query[:, :, rows], key, value, mask[:, :, row : row + 1])
        assert torch.equal(alone, together[:, :, rows])


class Attends(nn.Module):
    """Attention of grouped rows."""

    def __init__(self, scale: float | None = None, width: int = 64) -> None:
        super().__init__()
        self.scale, self.width = scale, width

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        value = key[..., : self.width]
        return products.attention(query, key, value, mask, self.scale)


@pytest.mark.parametrize(
    ("module", "share", "dtype", "is_ours"),
    [
        (Attends(scale=0.3), 2, torch.bfloat16, True),
        (Attends(), 1, torch.bfloat16, True),
        (Attends(), 2, torch.float32, False),
        (Attends(), 2, torch.float16, False),
        (Attends(width=32), 2, torch.bfloat16, False),
    ],
)
def test_traced_graphs_use_our_attention_for_masks_in_bfloat16(
    module: Attends,
    share: int,
    dtype: torch.dtype,
    is_ours: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "_max_rows", FEW)
    query, key = drawn(1, 2 * share, 5, 64, dtype=dtype), drawn(1, 2, 30, 64, dtype=dtype)
    mask = torch.zeros(1, 1, 5, 30, dtype=dtype)
    mask[..., 20:] = torch.finfo(dtype).min
    program: Any = torch.export.export(module, (query, key, mask), strict=False)
    ours = [node for node in program.graph.nodes if "decoders.attend" in str(node.target)]
    assert len(ours) == is_ours
    if is_ours:
        assert ours[0].args[3].meta["val"].shape[2] == 5, "the mask is not repeated"
    found = program.module()(query, key, mask)
    torch.testing.assert_close(found, module(query, key, mask), rtol=0.02, atol=0.01)
    exact = nn.functional.scaled_dot_product_attention(
        query.double(),
        key.double(),
        key[..., : module.width].double(),
        attn_mask=mask.double(),
        scale=module.scale,
        enable_gqa=True,
    )
    torch.testing.assert_close(found.double(), exact.transpose(1, 2), rtol=0.02, atol=0.02)


def test_exported_attention_with_a_mask_equals_the_plain_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "_max_rows", FEW)
    module, dtype = Attends(), torch.bfloat16
    query, key = drawn(1, 2, 5, 64, dtype=dtype), drawn(1, 2, 30, 64, dtype=dtype)
    seen = seen_by("tree", 5, 30, torch.Generator().manual_seed(5))
    program: Any = torch.export.export(module, (query, key, seen), strict=False)
    assert "decoders.attend" in str(program.graph)
    found = program.module()(query, key, seen)
    torch.testing.assert_close(found, module(query, key, seen), rtol=0.02, atol=0.01)


@pytest.fixture
def graphs(
    tmp_path: Path, library: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Make graphs in a folder without any; hold each traced program."""
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path))
    library(tmp_path)
    found: list[str] = []
    trace = compiled._export

    def noted(*given: Any) -> Any:
        program = trace(*given)
        found.append(str(program.graph))
        return program

    monkeypatch.setattr(compiled, "_export", noted)
    monkeypatch.setattr(graph_children, "apart", lambda make: make())  # here, where it is noted
    return found


@needs_bfloat16
@pytest.mark.usefixtures("graphs")
def test_graphs_give_a_row_the_same_bits_in_every_call() -> None:
    """A row alone, in a chain, beside another sequence, and in a tree, whose entries lie apart."""
    wider = {"hidden_size": 576, "intermediate_size": 1536}
    wider |= {"num_attention_heads": 9, "num_key_value_heads": 3}
    torch.manual_seed(0)
    module: Any = LlamaForCausalLM(LlamaConfig(**SIZES | wider))
    model = HFModel(module.to(torch.bfloat16), compile=True)
    model.reserve(2, 128)
    session = model.open()
    prompt, answer = list(range(5, 65)), [3, 1, 4, 15, 9, 26]

    def logits(tokens: Sequence[int], **options: Any) -> Tensor:
        call = session.call(tokens, output="logits", read=range(len(tokens)), **options)
        return model.forward([call]).clone()

    session.truncate(0)
    model.forward([session.call(prompt, read=())])
    alone = torch.cat([logits([token]) for token in answer])
    for count in (2, 4, 6):
        session.truncate(len(prompt))
        assert torch.equal(logits(answer[:count]), alone[:count])
    session.truncate(len(prompt))
    other = model.open()
    model.forward([other.call(prompt[:20], read=())])
    calls = [each.call(answer[:3], output="logits", read=range(3)) for each in (other, session)]
    assert torch.equal(model.forward(calls)[3:], alone[:3])
    session.truncate(len(prompt))
    branches = [3, 7, 1, 8, 4, 15]  # the answer is rows 0, 2, 4 and 5
    parents = [-1, 0, 0, 1, 2, 4]
    depths = [0, 1, 1, 2, 2, 3]
    in_tree = logits(
        branches,
        mask=masks.tree(parents),
        positions=[len(prompt) + depth for depth in depths],
    )
    assert torch.equal(in_tree[[0, 2, 4, 5]], alone[:4])


@needs_bfloat16
@pytest.mark.usefixtures("graphs")
def test_rows_of_a_large_batch_have_the_same_bits_as_alone() -> None:
    """Prompts and chains of 16 sequences: more rows than the library gets of one sequence."""
    wider = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 997}
    wider |= {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 1}
    assert graph_files.load_products() == FEW
    torch.manual_seed(0)
    module: Any = LlamaForCausalLM(LlamaConfig(**SIZES | wider))
    model = HFModel(module.to(torch.bfloat16), compile=True, backend="export")
    model.reserve(16, 96)
    sessions = [model.open() for _ in range(16)]
    texts = [[3 + (7 * n + row * row) % 990 for row in range(n + 9)] for n in range(20, 52, 2)]
    for fed in (slice(0, -9), slice(-9, None)):
        calls = [
            session.call(text[fed], output="logits", read=range(-9, 0))
            for session, text in zip(sessions, texts, strict=True)
        ]
        assert sum(call.num_rows for call in calls) > 2 * FEW[torch.bfloat16]
        before = [session.length for session in sessions]
        alone = torch.cat([model.forward([call]) for call in calls])
        for session, length in zip(sessions, before, strict=True):
            session.truncate(length)
        assert torch.equal(model.forward(calls), alone)


@needs_bfloat16
@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("num_tokens", [62, 66])
@pytest.mark.parametrize("enter", [0, 1])
def test_tokens_of_a_prompt_have_the_same_bits_beside_slots(num_tokens: int, enter: int) -> None:
    """With the slots, 62 tokens are more rows than our code takes; 66 are so alone."""
    wider = {"hidden_size": 576, "intermediate_size": 1536, "head_dim": 64}
    wider |= {"num_attention_heads": 9, "num_key_value_heads": 3}
    assert graph_files.load_products() == FEW
    torch.manual_seed(0)
    module: Any = LlamaForCausalLM(LlamaConfig(**SIZES | wider))
    model = HFModel(module.to(torch.bfloat16), compile=True, backend="export")
    model.attach("slots", slot_adapter(model.module, rank=4, enter=enter, width=576))
    model.reserve(1, 96)
    session = model.open()
    text = [3 + 7 * n % 40 for n in range(num_tokens)]
    given: dict[str, Any] = {"output": "logits", "read": range(num_tokens)}
    plain = model.forward([session.call(text, **given)])
    session.truncate(0)
    slots = Slots(adapter="slots", uniforms=(0.3,) * 5, sizes=(5,), anchors=(5,), read=(0,))
    beside = model.forward([session.call(text, slots=slots, **given)])
    assert torch.equal(beside[:num_tokens], plain)


@needs_bfloat16
def test_graphs_add_the_delta_of_slots_within_the_product(graphs: list[str]) -> None:
    found: list[tuple[Tensor, Tensor]] = []
    for compile in (False, True):
        torch.manual_seed(0)
        sizes = SIZES | {"intermediate_size": 64, "head_dim": 64}
        module: Any = LlamaForCausalLM(LlamaConfig(**sizes))
        model = HFModel(module.to(torch.bfloat16), compile=compile)
        model.attach("slots", slot_adapter(model.module, rank=4))
        model.reserve(1, 32)
        session = model.open()
        model.forward([session.call(list(range(12)), read=())])
        slots = Slots(adapter="slots", uniforms=(0.3, 0.6), sizes=(2,), anchors=(5,), read=(0, 1))
        given: dict[str, Any] = {"output": "logits", "read": range(2)}
        plain = model.forward([session.call([4, 5], **given)])
        session.truncate(12)
        result = model.forward([session.call([4, 5], slots=slots, **given)])
        found.append((plain, result))
    (graph,) = [each for each in graphs if "gated_product" in each]
    num_groups = 4 * SIZES["num_hidden_layers"]
    assert graph.count("decoders.gated_product.default") == num_groups
    assert graph.count("decoders.product.default") == 1, "the head"
    assert "aten.matmul.default" not in graph
    (_, eager), (plain, in_graph) = found
    assert torch.equal(in_graph[:2], plain), "rows of tokens keep their bits"
    torch.testing.assert_close(in_graph, eager, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_compiled_graphs_use_our_products(
    dtype: torch.dtype, graphs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    casts: list[bool] = []
    compile_one = torch._inductor.aoti_compile_and_package

    def compile_noting(*given: Any, inductor_configs: dict[str, Any], **options: Any) -> Any:
        casts.append(inductor_configs["emulate_precision_casts"])
        return compile_one(*given, inductor_configs=inductor_configs, **options)

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_noting)
    logits = []
    for compile in (False, True):
        model = HFModel(fresh("llama-gqa").to(dtype), compile=compile)
        model.reserve(1, 32)
        session = model.open()
        model.forward([session.call(list(range(12)), read=())])
        logits.append(model.forward([session.call([3], output="logits", read=[0])]))
    assert len(graphs) == 2, "a graph of rows, and one of one row"
    assert casts == [dtype == torch.bfloat16] * 2, "SmolLM2's rows differed by 0.4 without them"
    for graph in graphs:
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

from decoders.core import products

name, folder = sys.argv[1:]
(chosen,) = [isa for isa in cpu_vec_isa.valid_vec_isa_list() if str(isa) == name]
cpu_vec_isa.pick_vec_isa = lambda: chosen
torch.manual_seed(0)
products._measure = lambda dtype: (64, 0.0)
library = Path(folder) / f"{name}.so"
products.make(library)
products.load(library)
for dtype, atol in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
    weight, x = torch.randn(577, 96, dtype=dtype), torch.randn(13, 96, dtype=dtype)
    exact = x.double() @ weight.double().t()
    for laid_out in (weight, weight.t().contiguous().t()):
        found = torch.ops.decoders.product(x, laid_out, 64).double()
        torch.testing.assert_close(found, exact, rtol=0, atol=atol)
    query, key = torch.randn(1, 2, 6, 64, dtype=dtype), torch.randn(1, 2, 70, 64, dtype=dtype)
    mask = torch.zeros(1, 1, 3, 70, dtype=dtype)
    found = torch.ops.decoders.attend(query, key, key, mask, 0.125).double()
    given = [each.double() for each in (query, key, key)]
    exact = torch.nn.functional.scaled_dot_product_attention(*given)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-2)
"""
    for name in narrower:
        subprocess.run([sys.executable, "-c", code, name, str(tmp_path)], check=True)


@needs_bfloat16
@pytest.mark.usefixtures("graphs")
def test_heads_draft_for_any_number_of_sequences_by_one_graph() -> None:
    assert graph_files.load_products() == FEW
    torch.manual_seed(0)
    module: Any = LlamaForCausalLM(LlamaConfig(**SIZES))
    model = HFModel(module.to(torch.bfloat16), compile=True, backend="export")
    sizes: dict[str, Any] = {"num_slots": 3, "width": WIDTH, "rank": 8, "layers": {}}
    heads = DraftHeads(AdapterConfig(variant="medusa", code="constant", **sizes))
    model.attach("medusa", heads.requires_grad_(False))
    model.reserve(5, 32)
    sessions = [model.open() for _ in range(5)]
    states = torch.randn(5, 1, WIDTH).to(torch.bfloat16)
    before, shape = model.num_graphs, DraftShape(depth=3, width=2, nodes=4)

    def drafts(numbers: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        calls = [
            sessions[n].draft("medusa", states[n], [n], shape, Sampling(), max_depth=3)
            for n in numbers
        ]
        return [(result.picks, result.confidences) for result in model.draft(calls)]

    alone = [drafts([number])[0] for number in range(5)]
    for count in (2, 5, 3):
        assert drafts(range(count)) == alone[:count]
    assert model.num_graphs == before + 2, "one of one sequence, and one of several"
