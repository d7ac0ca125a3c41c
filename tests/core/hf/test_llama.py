"""Our own forward of Llama's family against transformers' forward of an unwrapped copy.

Every row of a call is compared with a cold forward of its whole text, without cache, mask or
positions, of a copy that nothing has touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from decoders.core import masks, products
from decoders.core.adapter.gating import Delta, linear_layers
from decoders.core.hf import llama
from decoders.core.hf.cache import flat_entries
from decoders.core.hf.layout import Layout
from decoders.core.hf.model import HFModel
from decoders.core.hf.self_check import self_check
from tests.pretended_cuda import PretendedCuda, place, place_module
from tests.tiny_models import GQA, MODELS, SIZES, VOCAB, WINDOW, fresh

OWN = (
    *("llama", "llama-gqa", "llama-bias", "qwen2", "qwen2-window", "qwen3"),
    *("mistral", "mistral-window"),
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = 2e-5
PARENTS = (masks.ROOT, 0, 0, 2, 1, 3)


def ids(seed: int, count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


class Pair:
    """A model that runs our forward, and an unwrapped copy of its module."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.dtype, self.copy = dtype, fresh(name).to(dtype)
        self.model = HFModel(fresh(name).to(dtype))
        assert self.model.facts["forward"] == "own"
        self.model.reserve(4, 120)
        exact = fresh(name).double()
        text = torch.tensor([ids(0, 40)])
        with torch.inference_mode():
            away = self.copy(text).logits.double() - exact(text).logits
        self.rounding = away.square().mean().sqrt().item()

    @torch.inference_mode()
    def cold(self, tokens: Sequence[int]) -> Tensor:
        logits: Tensor = self.copy(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits.float()

    def check(self, got: Tensor, expected: Tensor) -> None:
        """In bfloat16, both differ as much as transformers' own logits from exact ones."""
        assert got.shape == expected.shape
        if self.dtype == torch.float32:
            assert (got - expected).abs().max() < TOLERANCE
        else:
            assert (got - expected).square().mean().sqrt() < 2 * self.rounding


@pytest.fixture(params=[(name, dtype) for name in OWN for dtype in DTYPES], ids="-".join)
def pair(request: pytest.FixtureRequest) -> Pair:
    name, dtype = request.param
    return Pair(name, DTYPES[dtype])


def every_row(session: Any, tokens: Sequence[int], **options: Any) -> Any:
    return session.call(tokens, read=range(len(tokens)), **options)


def test_prompts_and_chains_after_a_prefix_equal_a_cold_forward(pair: Pair) -> None:
    text, session = ids(1, 60), pair.model.open()
    expected = pair.cold(text)
    for start, stop in [(0, 11), (11, 12), (12, 15), (15, 31), (31, 48), (48, 49), (49, 60)]:
        got = pair.model.forward([every_row(session, text[start:stop])])
        pair.check(got, expected[start:stop])


@pytest.mark.parametrize("num_tokens", [4, WINDOW + 6])
def test_rows_of_a_tree_see_their_own_path(pair: Pair, num_tokens: int) -> None:
    prompt, fed = ids(2, num_tokens), ids(3, len(PARENTS))
    session = pair.model.open()
    pair.model.forward([session.call(prompt)])
    places = [num_tokens + depth for depth in masks.depths(PARENTS)]
    call = every_row(session, fed, mask=masks.tree(PARENTS), positions=places)
    expected = []
    for row in range(len(fed)):
        path, place = [], row
        while place != masks.ROOT:
            path.append(fed[place])
            place = PARENTS[place]
        expected.append(pair.cold([*prompt, *path[::-1]])[-1])
    pair.check(pair.model.forward([call]), torch.stack(expected))
    session.select_rows((0, 2, 3))
    kept = [*prompt, fed[0], *fed[2:4], 7]
    pair.check(pair.model.forward([every_row(session, [7])]), pair.cold(kept)[-1:])


def test_batches_of_unequal_lengths_equal_cold_forwards(pair: Pair) -> None:
    texts, starts = [ids(4, 30), ids(5, 9), ids(6, 18)], (21, 8, 13)
    sessions = [pair.model.open() for _ in texts]
    firsts = [text[:start] for text, start in zip(texts, starts, strict=True)]
    calls = [every_row(s, first) for s, first in zip(sessions, firsts, strict=True)]
    whole = [pair.cold(text) for text in texts]
    expected = [logits[:start] for logits, start in zip(whole, starts, strict=True)]
    pair.check(pair.model.forward(calls), torch.cat(expected))
    order = (2, 0, 1)
    calls = [every_row(sessions[i], texts[i][starts[i] :]) for i in order]
    expected = [whole[i][starts[i] :] for i in order]
    pair.check(pair.model.forward(calls), torch.cat(expected))


class Kernels:
    """The kernels of a GPU in torch's operations, two of which are counted."""

    num_turned = num_gated = 0

    @staticmethod
    def add_norm(rows: Tensor, added: Tensor | None, weight: Tensor, epsilon: float) -> Any:
        rows = rows if added is None else rows + added
        return rows, llama.norm(rows, weight, epsilon)

    def gated(self, states: Tensor) -> Tensor:
        self.num_gated += 1
        gate, up = states.chunk(2, -1)
        return nn.functional.silu(gate) * up

    def turn_heads(
        self, states: Tensor, turn: Any, norms: Any, epsilon: float, planes: Any, entries: Tensor
    ) -> Tensor:
        self.num_turned += 1
        shared, width = planes[0].shape[1], planes[0].shape[3]
        sizes = states.shape[2] // width - 2 * shared, shared
        query, *parts = llama._split_heads(states, turn, norms, epsilon, sizes)
        rows = torch.arange(len(entries))[:, None]
        index = flat_entries(rows, entries, planes[0])
        for plane, part in zip(planes, parts, strict=True):
            plane.view(-1, width).index_copy_(0, index, part.reshape(-1, width))
        return query


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3"])
def test_kernels_write_the_cache_that_the_pass_reads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Layout, "_merged", lambda _, rows: rows)  # padded as on a GPU
    pair, kernels = Pair(name, torch.float32), Kernels()
    for module in (llama, products):
        monkeypatch.setattr(module, "fused_kernels", lambda _: kernels)
    texts, sessions = [ids(seed, 21) for seed in (1, 2, 3)], [pair.model.open() for _ in range(3)]
    for start, stop in ((0, 13), (13, 17), (17, 21)):
        calls = [
            every_row(each, text[start:stop]) for each, text in zip(sessions, texts, strict=True)
        ]
        got = pair.model.forward(calls).split(stop - start)
        for each, text in zip(got, texts, strict=True):
            pair.check(each, pair.cold(text)[start:stop])
    assert kernels.num_turned == kernels.num_gated > 0


@pytest.mark.parametrize(
    ("kind", "is_table"),
    [("default", True), ("linear", True), ("yarn", True), ("llama3", True), ("dynamic", False)],
)
def test_on_a_gpu_rotations_that_depend_only_on_the_position_come_from_a_table(
    kind: str, is_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    if kind == "llama3":
        bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= {**bands, "original_max_position_embeddings": 64}
    sizes: dict[str, Any] = {**SIZES, **GQA, "max_position_embeddings": 128}
    module = LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope)).bfloat16()
    on_cpu = llama.join_weights(module)
    assert on_cpu is not None
    assert on_cpu.turn is module.model.rotary_emb
    with PretendedCuda():
        weights = llama.join_weights(place_module(module))
        assert weights is not None
        assert (weights.turn is not module.model.rotary_emb) is is_table
        rows = place(torch.zeros(2, 3, 8).bfloat16())
        positions = place(torch.tensor([[0, 5, 127], [9, 2, 64]]))
        expected = module.model.rotary_emb(rows, positions)
        for found, wanted in zip(weights.turn(rows, positions), expected, strict=True):
            assert torch.equal(found, wanted)
            assert found.dtype == torch.bfloat16
        monkeypatch.setattr(llama, "_MAX_TURNS", 100)
        large = llama.join_weights(module)
        assert large is not None
        assert large.turn is module.model.rotary_emb


@torch.inference_mode()
def test_a_kernel_adds_the_delta_of_slots_to_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high, rows = torch.randn(4, 6), torch.randn(5, 4), torch.randn(2, 3, 6)
    part = llama.Linear(("x",), (5,), torch.randn(5, 6), torch.randn(5))
    gate, gates = torch.tensor([0.0, 1, 1, 0, 0, 1]).view(2, 3, 1), list[Tensor]()

    class Adding:
        def add_delta(self, out: Tensor, low: Tensor, high: Tensor, gate: Tensor) -> Tensor:
            gates.append(gate)
            return out + low @ high.t() * gate

    expected = llama.linear(rows, part, Delta(low, high), gate)
    monkeypatch.setattr(products, "fused_kernels", lambda _: Adding())
    torch.testing.assert_close(llama.linear(rows, part, Delta(low, high), gate), expected)
    llama.linear(rows, part, Delta(None, high @ low), gate)
    llama.linear(rows, part, Delta(low, high), None)
    assert len(gates) == 1


def test_a_second_turn_after_a_truncated_first_turn_equals_a_cold_forward(pair: Pair) -> None:
    first, second = ids(7, 26), ids(8, 20)
    session = pair.model.open()
    pair.model.forward([session.call(first)])
    for kept in (19, 12, 0):
        session.truncate(kept)
        expected = pair.cold([*first[:kept], *second])[kept:]
        pair.check(pair.model.forward([every_row(session, second)]), expected)
        session.truncate(kept)
        pair.model.forward([session.call(first[kept:])])


def variant(name: str) -> Any:
    """A module of sizes or parts that the zoo of tiny models does not have."""
    sizes: dict[str, Any] = {**SIZES, **GQA, "head_dim": 20}
    scaled: Any = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    made: dict[str, Any] = {
        "wide heads": lambda: LlamaForCausalLM(LlamaConfig(**sizes)),
        "relu": lambda: LlamaForCausalLM(LlamaConfig(**sizes, hidden_act="relu")),
        "one key head": lambda: LlamaForCausalLM(
            LlamaConfig(**{**sizes, "num_key_value_heads": 1})
        ),
        "scaled rope": lambda: LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=scaled)),
        "epsilon": lambda: LlamaForCausalLM(LlamaConfig(**sizes, rms_norm_eps=0.3)),
        "biased qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**sizes, attention_bias=True)),
    }
    torch.manual_seed(0)
    module = made[name]().eval()
    for parameter in module.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return module


@pytest.mark.parametrize(
    "name", ["wide heads", "relu", "one key head", "scaled rope", "epsilon", "biased qwen3"]
)
def test_sizes_and_parts_of_related_architectures_run_in_our_own_forward(name: str) -> None:
    module, text = variant(name), ids(9, 30)
    with torch.inference_mode():
        expected = module(torch.tensor([text])).logits[0]
    model = HFModel(module)
    model.reserve(1, 40)
    assert model.facts["forward"] == "own"
    session = model.open()
    found = [model.forward([every_row(session, text[a:b])]) for a, b in [(0, 20), (20, 30)]]
    assert (torch.cat(found) - expected).abs().max() < TOLERANCE
    model.close(session)
    assert self_check(model) == []


@pytest.mark.parametrize("name", MODELS)
def test_only_architectures_of_the_family_with_sdpa_run_our_own_forward(name: str) -> None:
    way = "own" if name in OWN else "transformers"
    assert HFModel(fresh(name)).facts["forward"] == way
    assert HFModel(fresh(name, "eager")).facts["forward"] == "transformers"


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2"])
def test_facts_keep_the_attention_that_transformers_names(name: str) -> None:
    assert HFModel(fresh(name)).facts["attention"] == "sdpa"
    assert HFModel(fresh(name, "eager")).facts["attention"] == "eager"


def test_models_with_packed_tiled_or_unmoved_weights_run_the_modules_of_transformers() -> None:
    module = fresh("llama-gqa")
    before = {name: each.data_ptr() for name, each in module.named_parameters()}
    assert HFModel(module, in_place=False).facts["forward"] == "transformers"
    assert {name: each.data_ptr() for name, each in module.named_parameters()} == before
    packed = HFModel(fresh("llama-gqa"), quantized="int8")
    assert packed.facts["forward"] == "transformers"
    assert HFModel(fresh("llama-gqa")).in_tiles(8).facts["forward"] == "transformers"


def test_models_with_modified_linear_layers_run_the_modules_of_transformers() -> None:
    class Doubling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module = fresh("llama")
    module.model.layers[1].mlp.up_proj.__class__ = Doubling
    with torch.inference_mode():
        expected = module(torch.tensor([ids(1, 9)])).logits[0]
    model = HFModel(module)
    model.reserve(1, 20)
    assert model.facts["forward"] == "transformers"
    got = model.forward([every_row(model.open(), ids(1, 9))])
    assert (got - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OWN)
def test_weights_are_not_copied_and_the_module_computes_the_same_logits_as_before(
    name: str, dtype: str
) -> None:
    module, untouched = fresh(name).to(DTYPES[dtype]), fresh(name).to(DTYPES[dtype])
    model = HFModel(module)
    weights = model._runner.weights
    assert weights is not None
    for (path, one), (_, other) in zip(
        module.named_parameters(), untouched.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), path
        assert one.nbytes == other.nbytes
    layers = linear_layers(module)
    storages = {each.untyped_storage().data_ptr(): each for each in module.parameters()}
    held = sum(each.untyped_storage().nbytes() for each in storages.values())
    assert held == sum(each.nbytes for each in untouched.parameters())
    for layer in weights.layers:
        for part in layer.linears:
            members: list[Any] = [layers[path] for path in part.names]
            assert sum(part.sizes) == len(part.weight)
            for member, own in zip(members, part.weight.split(part.sizes), strict=True):  # type: ignore[no-untyped-call]
                assert own.data_ptr() == member.weight.data_ptr()
                assert own.stride() == member.weight.stride()
                assert torch.equal(own, member.weight)
    text = torch.tensor([ids(10, 30)])
    with torch.inference_mode():
        found, expected = module(text).logits.float(), untouched(text).logits.float()
    close = TOLERANCE if dtype == "float32" else 4 * 2**-8 * float(expected.abs().max())
    assert (found - expected).abs().max() < close
    assert (model.own_logits(ids(10, 30), 30) - expected[0]).abs().max() < close


def test_the_norm_equals_that_of_torch_and_computes_half_precision_in_float32() -> None:
    rows = 100 * torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(-1, 2, 64)
    expected = nn.functional.rms_norm(rows, (64,), weight, 1e-5)
    torch.testing.assert_close(llama.norm(rows, weight, 1e-5), expected)
    half = llama.norm(rows.half(), weight.half(), 1e-5)  # squares overflow in float16
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), expected, rtol=4e-3, atol=4e-3)
