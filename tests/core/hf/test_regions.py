"""Parts of layers that torch's compiler joins into few kernels, on the CPU, against plain parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from transformers import LlamaConfig, LlamaForCausalLM

from decoders.core.device import switches
from decoders.core.hf import llama, regions
from decoders.core.hf.model import HFModel
from tests.core.hf import test_llama
from tests.core.hf.test_llama import OWN, Pair, ids
from tests.core.hf.test_slots import slots_of
from tests.tiny_models import GQA, SIZES, fresh, slot_adapter, tiny

KERNELS = 5
"""Most kernels that join all between a layer's products but its attention and its cache."""


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile parts, of which none are compiled yet."""
    torch._dynamo.reset()
    regions._compiled.cache_clear()
    monkeypatch.setattr(switches, "regions", True)
    with torch._dynamo.config.patch(disable=False):
        yield
    torch._dynamo.reset()


def num_compiled() -> int:
    return counters["stats"]["unique_graphs"]


def deep(num_layers: int) -> HFModel:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES, **GQA, "num_hidden_layers": num_layers}
    model = HFModel(LlamaForCausalLM(LlamaConfig(**sizes)).eval(), compile=True, backend="eager")
    model.reserve(1, 64)
    return model


def test_three_compilations_serve_all_layers_and_few_serve_all_sizes() -> None:
    before = num_compiled()
    counts, model = [], deep(5)
    session = model.open()
    for num_rows in (1, 1, 4, 2, 6, 1, 3):
        model.forward([session.call(ids(1, num_rows))])
        counts.append(num_compiled() - before)
    assert counts[:2] == [3, 3]
    assert counts[3] == counts[-1] <= 9


@torch.inference_mode()
def test_a_layer_is_four_products_and_few_kernels_besides_attention_and_cache() -> None:
    weights = llama.join_weights(deep(2).module)
    assert weights is not None
    layers = [llama.GatedLayer.at(number, weights, None) for number in range(2)]
    rows, mixed = torch.randn(1, 4, SIZES["hidden_size"]), torch.randn(1, 4, 4, 8)
    turn = [part[:, None] for part in weights.turn(rows, torch.arange(4)[None])]
    part: Any = torch.compile(llama._cross, fullgraph=True)
    run: Any = run_and_get_code
    _, (code,) = run(part, *layers, rows, mixed, turn)
    called = code[code.index("def call(") :]
    assert called.count("extern_kernels.mm(") == 4
    assert called.count("cpp_fused_") <= KERNELS


CHECKS: list[Callable[[Pair], None]] = [
    test_llama.test_prompts_and_chains_after_a_prefix,
    partial(test_llama.test_rows_of_a_tree_see_their_own_path, num_tokens=4),
    test_llama.test_batches_of_unequal_lengths,
    test_llama.test_a_second_turn_after_what_was_kept_of_the_first,
]


@pytest.mark.parametrize(
    "name",
    [name if name == "qwen3" else pytest.param(name, marks=pytest.mark.slow) for name in OWN],
)
def test_rows_equal_those_of_transformers(name: str) -> None:
    before = num_compiled()
    for check in CHECKS if name != "qwen3" else CHECKS[1:3]:
        check(Pair(name, torch.float32))
    assert num_compiled() > before


@pytest.mark.slow
@pytest.mark.parametrize("enter", [0, 1])
def test_slots_equal_those_of_plain_parts(enter: int, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = slot_adapter(tiny("llama-gqa"), enter=enter)

    def states() -> list[Tensor]:
        model = HFModel(fresh("llama-gqa"))
        model.attach("ptp", adapter)
        model.reserve(2, 100)
        one, other = model.open(), model.open()
        slots = slots_of(3, (5,), (4,))
        return [
            model.forward([one.call(ids(1, 9), slots=slots)]),
            model.forward([one.call(ids(2, 1), slots=slots), other.call(ids(2, 2))]),
        ]

    found = states()
    monkeypatch.setattr(switches, "regions", False)
    for each, expected in zip(found, states(), strict=True):
        torch.testing.assert_close(each, expected, atol=2e-5, rtol=1e-4)


def test_training_and_traces_use_plain_parts() -> None:
    parts = (llama._enter, llama._leave)
    assert regions.compiled(*parts) == parts, "gradients are on"
    with torch.inference_mode():
        assert regions.compiled(*parts) != parts


@pytest.mark.gpu
def test_captured_parts_give_what_plain_parts_give(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for way in (True, False):
        monkeypatch.setattr(switches, "regions", way)
        model = HFModel(fresh("llama-gqa", "sdpa").to("cuda"))
        model.reserve(1, 64)
        session = model.open()
        found.append([model.forward([session.call(ids(1, rows))]) for rows in (1, 4, 1)])
    for each, expected in zip(*found, strict=True):
        torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)
