"""Attention of shared heads as one product: transformers' own numbers, and who runs it."""

import copy

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from decoders.core.hf import attention
from decoders.core.hf.attention import GROUPED_ROWS, NAME
from decoders.core.hf.model import HFModel
from tests.pretended_cuda import PretendedCuda, place
from tests.tiny_models import fresh


class Layer(torch.nn.Module):
    """What transformers asks of an attention layer."""

    is_causal = True

    def __init__(self, num_groups):
        super().__init__()
        self.num_key_value_groups = num_groups


def states(heads, rows, seen, batch=2) -> tuple[Layer, Tensor, Tensor, Tensor]:
    """A layer, query, key and value, of a pair of heads and shared heads."""
    generator = torch.Generator().manual_seed(rows)
    num_heads, num_shared = heads
    query = torch.randn(batch, num_heads, rows, 8, generator=generator)
    key = torch.randn(batch, num_shared, seen, 8, generator=generator)
    value = torch.randn(batch, num_shared, seen, 8, generator=generator)
    return Layer(num_heads // num_shared), query, key, value


def ragged(rows, seen, batch=2):
    """Each sequence sees some entries only, each row one more than the row before."""
    columns, row = torch.arange(seen), torch.arange(rows)
    starts = torch.arange(batch)[:, None, None] + seen - rows - batch
    visible = columns <= starts + row[:, None]
    return torch.zeros(batch, 1, rows, seen).masked_fill_(
        ~visible[:, None], torch.finfo(torch.float32).min
    )


@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("rows", [1, 2, 5, GROUPED_ROWS, GROUPED_ROWS + 1])
def test_numbers_are_those_of_transformers(heads, rows):
    given = states(heads, rows, 40)
    mask = ragged(rows, 40)
    expected = sdpa_attention_forward(*given, mask, scaling=0.3)[0]
    got, weights = attention.grouped_attention(*given, mask, scaling=0.3)
    assert weights is None
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < 1e-6


@pytest.mark.parametrize("rows", [1, 4])
def test_without_a_mask_rows_are_causal(rows):
    given = states((6, 2), rows, rows if rows > 1 else 40)
    expected = sdpa_attention_forward(*given, None, scaling=None)[0]
    assert (attention.grouped_attention(*given, None)[0] - expected).abs().max() < 1e-6


def test_a_narrow_call_reads_each_shared_head_once(monkeypatch):
    shapes = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def noted(query, key, *arguments, **options):
        shapes.append((tuple(query.shape), tuple(key.shape)))
        return plain(query, key, *arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    attention.grouped_attention(*states((6, 2), 3, 40), ragged(3, 40))
    assert shapes == [((2, 2, 9, 8), (2, 2, 40, 8))]


def test_models_with_shared_heads_run_it_and_transformers_own_loops_do_not():
    module = fresh("llama-gqa", "sdpa")
    plain = copy.deepcopy(module)
    model = HFModel(module)
    assert model.facts["attention"] == NAME
    library = model.library_module
    assert library.config._attn_implementation == "sdpa"
    ids = torch.arange(3, 12)[None]
    torch.testing.assert_close(library(ids).logits, plain(ids).logits, atol=1e-6, rtol=0)
    assert HFModel(fresh("llama-gqa", "eager")).facts["attention"] == "eager"
    assert HFModel(fresh("llama", "sdpa")).facts["attention"] == "sdpa"
    assert HFModel(fresh("llama-gqa", "sdpa"), grouped=False).facts["attention"] == "sdpa"


@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("rows", [1, 2, GROUPED_ROWS])
def test_on_a_gpu_two_products_give_the_same_numbers(heads, rows):
    layer, query, key, value = states(heads, rows, 40)
    mask = ragged(rows, 40)
    expected = sdpa_attention_forward(layer, query, key, value, mask, scaling=0.3)[0]
    with PretendedCuda():
        q, k, v = (place(each) for each in (query, key, value))
        got, _ = attention.grouped_attention(layer, q, k, v, place(mask), scaling=0.3)
        assert got.device.type == "cuda"
        assert (got.cpu() - expected).abs().max() < 1e-6
        wider = place(torch.cat([mask, mask], -1))  # a bucket of entries, of which fewer are there
        again, _ = attention.grouped_attention(layer, q, k, v, wider, scaling=0.3)
        assert torch.equal(again.cpu(), got.cpu())
