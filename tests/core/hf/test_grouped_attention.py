"""Attention of shared heads as one product: transformers' own numbers, and how it is computed."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental import _config as _untyped_config
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from decoders.core.products import GROUPED_ROWS, attention
from tests.pretended_cuda import PretendedCuda, place

_config: Any = _untyped_config
SCALE = 0.3
HEADS = [(6, 2), (4, 4), (5, 1)]


class Layer(torch.nn.Module):
    """What transformers asks of an attention layer."""

    is_causal = True

    def __init__(self, num_groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = num_groups


def states(
    heads: tuple[int, int], rows: int, seen: int, batch: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of a number of heads and of shared heads."""
    generator = torch.Generator().manual_seed(rows)
    num_heads, num_shared = heads
    query = torch.randn(batch, num_heads, rows, 8, generator=generator)
    key = torch.randn(batch, num_shared, seen, 8, generator=generator)
    value = torch.randn(batch, num_shared, seen, 8, generator=generator)
    return query, key, value


def expected(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    layer = Layer(query.shape[1] // key.shape[1])
    return sdpa_attention_forward(layer, query, key, value, mask, scaling=SCALE)[0]


def ragged(rows: int, seen: int, batch: int = 2) -> Tensor:
    """Each sequence sees some entries only, each row one more than the row before."""
    columns, row = torch.arange(seen), torch.arange(rows)
    starts = torch.arange(batch)[:, None, None] + seen - rows - batch
    visible = columns <= starts + row[:, None]
    return torch.zeros(batch, 1, rows, seen).masked_fill_(
        ~visible[:, None], torch.finfo(torch.float32).min
    )


@pytest.mark.parametrize("num_masks", [1, 2])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rows", [1, 2, 5, GROUPED_ROWS, GROUPED_ROWS + 1])
def test_grouped_attention_equals_that_of_transformers(
    heads: tuple[int, int], rows: int, num_masks: int
) -> None:
    """Each sequence has a mask of its own, or all have one."""
    fed, mask = states(heads, rows, 40), ragged(rows, 40)[:num_masks]
    got = attention(*fed, mask, SCALE)
    assert got.shape == (2, rows, heads[0], 8)
    assert (got - expected(*fed, mask)).abs().max() < 1e-6


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rows", [1, 4, GROUPED_ROWS + 1])
def test_without_a_mask_rows_are_causal(heads: tuple[int, int], rows: int) -> None:
    fed = states(heads, rows, rows if rows > 1 else 40)
    assert (attention(*fed, None, SCALE) - expected(*fed, None)).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("rows", "has_mask", "shapes"),
    [
        (3, True, ((2, 2, 9, 8), (2, 2, 40, 8))),
        (1, False, ((2, 2, 3, 8), (2, 2, 40, 8))),
        (GROUPED_ROWS + 1, True, ((2, 6, 17, 8), (2, 6, 40, 8))),
    ],
)
def test_a_narrow_call_reads_each_shared_head_once(
    rows: int, has_mask: bool, shapes: tuple[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[object, object]] = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def noted(query: Tensor, key: Tensor, *rest: object, **options: object) -> Tensor:
        found.append((tuple(query.shape), tuple(key.shape)))
        return plain(query, key, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    attention(*states((6, 2), rows, 40), ragged(rows, 40) if has_mask else None, SCALE)
    assert found == [shapes]


@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rows", [1, 2, GROUPED_ROWS, GROUPED_ROWS + 1])
def test_grouped_attention_on_a_gpu_equals_that_of_transformers(
    heads: tuple[int, int], rows: int, has_mask: bool
) -> None:
    fed = states(heads, rows, 40 if has_mask or rows == 1 else rows)
    mask = ragged(rows, 40) if has_mask else None
    with PretendedCuda():
        query, key, value = (place(each) for each in fed)
        got = attention(query, key, value, None if mask is None else place(mask), SCALE)
        assert got.device.type == "cuda"
        assert (got.cpu() - expected(*fed, mask)).abs().max() < 1e-6


def test_results_have_the_memory_layout_of_cudas_kernel_with_a_mask() -> None:
    """Heads are next to each other there; a CPU's result is laid out like the query."""
    fed = [torch.ones(2, 2, rows, 8) for rows in (9, 40, 40)]
    on_meta, mask = [each.to("meta") for each in fed], torch.zeros(2, 1, 9, 40)
    ops: Any = torch.ops.aten
    lying = ops._scaled_dot_product_efficient_attention(*on_meta, None, False)[0].stride()
    with PretendedCuda():
        query, key, value = map(place, fed)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=place(mask))
    assert lying == out.stride() != fed[0].stride()


def test_a_traced_call_and_its_mask_share_one_number_of_rows() -> None:
    """Else a graph of shared heads would be one of two numbers of rows, and is refused."""

    class Attends(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
            return attention(query, key, key, mask, SCALE)

    query, key, _ = states((6, 2), 5, 40, batch=1)
    auto = torch.export.Dim.AUTO
    with _config.patch(use_duck_shape=False):
        program = torch.export.export(
            Attends(),
            (query, key, ragged(5, 40, batch=1)),
            dynamic_shapes={"query": {2: auto}, "key": {2: auto}, "mask": {2: auto, 3: auto}},
            strict=False,
        )
    fed, mask = states((6, 2), 9, 30, batch=1), ragged(9, 30, batch=1)
    found = program.module()(*fed[:2], mask)
    assert (found - expected(fed[0], fed[1], fed[1], mask)).abs().max() < 1e-6
    shapes = [
        tuple(node.meta["val"].shape) for node in program.graph.nodes if node.op == "placeholder"
    ]
    assert str(shapes[0][2]) == str(shapes[2][2]), "rows of the query and of the mask"
    assert str(shapes[1][2]) == str(shapes[2][3]), "entries of the keys and of the mask"
