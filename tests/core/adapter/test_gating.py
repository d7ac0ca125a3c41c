"""Gated layers against gated LoRA written by hand, and what must not change by a single bit.

Letters: B sequences, N rows of a sequence, V vocabulary.
"""

import functools
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.core.adapter.gating import (
    Delta,
    GatedModule,
    join,
    layer_deltas,
    layer_shapes,
    layer_weight,
    linear_layers,
)
from decoders.core.hf import llama
from decoders.core.hf.model import HFModel
from tests.tiny_models import VOCAB, fresh, slot_adapter

TOLERANCE = 2e-5
RANK, HIGH = 3, 32  # factors, and their products, in every layer
MODELS = ("llama", "qwen2", "mistral", "qwen3", "llama-bias", "gpt-neox", "gpt2")
OWN = MODELS[:5]
WAYS = [*[(name, "modules") for name in MODELS], *[(name, "own") for name in OWN]]
IDS = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
FIRST = 5  # of IDS[0], rows from here on are slots
SLOTS = torch.tensor([3, 4, 7, 8, 14, 15, 16, 17])  # flat rows of IDS
TAIL = torch.arange(FIRST, 9)


def factors_of(module, seed=0, rank: int | None = RANK):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    return {
        name: Delta(None, 0.15 * normal(n_out, n_in))
        if rank is None
        else Delta(0.15 * normal(rank, n_in), 0.15 * normal(n_out, rank) * (RANK / rank) ** 0.5)
        for name, (n_in, n_out) in layer_shapes(module).items()
    }


@contextmanager
def by_hand(module, factors, gate: Tensor):
    """Adds ``B A x`` to every layer's rows where `gate` ``[B, N]`` is 1."""

    def adding(delta):
        return lambda _module, args, y: y + gate[..., None] * (args[0] @ delta.whole.T)

    named = dict(module.named_modules())
    hooks = [named[name].register_forward_hook(adding(each)) for name, each in factors.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def logits(module, ids) -> Tensor:
    return module(ids, use_cache=False).logits


def gate_of(flat_slots, shape):
    gate = torch.zeros(shape).flatten()
    gate[flat_slots] = 1
    return gate.view(shape)


class NoCache:
    """The rows of a call see one another only."""

    def cut(self, rows: Tensor) -> "NoCache":
        raise AssertionError("no slots enter late here")

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, /) -> Any:
        return key_states, value_states


class Case:
    """One architecture and an adapter, run by its wrapped modules or by our own forward."""

    def __init__(self, name: str, way: str, seed: int = 0, rank: int | None = RANK) -> None:
        self.plain, self.module = fresh(name), fresh(name)
        self.factors = factors_of(self.plain, seed, rank)
        self.weights = llama.join_weights(self.module) if way == "own" else None
        assert (self.weights is not None) == (way == "own")
        self.gated = GatedModule(self.module)
        self.lay_out()

    def lay_out(self) -> None:
        self.deltas: list[Any]
        if self.weights is not None:
            self.deltas = llama.joined_changes(self.weights, self.factors)
        else:
            self.deltas = layer_deltas(self.gated.layers, self.factors)

    @property
    def flat_deltas(self) -> list[Any]:
        if self.weights is None:
            return self.deltas
        return [delta for layer in self.deltas for delta in layer]

    @torch.inference_mode()
    def run(self, ids, slots: Tensor | None) -> Tensor:
        """Logits ``[B, N, V]`` where flat rows `slots` run through the adapter; None: without."""
        gate = None if slots is None else gate_of(slots, ids.shape)[..., None]
        if self.weights is None:
            if gate is None:
                return logits(self.module, ids)
            with self.gated.gated(self.deltas, gate):
                return logits(self.module, ids)
        states = llama.forward(
            self.weights,
            self.module.get_input_embeddings()(ids),
            torch.arange(ids.shape[1]).expand(ids.shape),
            dict.fromkeys(layer.kind for layer in self.weights.layers),
            cast("Any", NoCache()),
            gate=None if gate is None else llama.SlotGate(self.deltas, gate),
        )
        return self.module.get_output_embeddings()(states)

    def expected(self, ids, flat_slots) -> Tensor:
        with by_hand(self.plain, self.factors, gate_of(flat_slots, ids.shape)):
            return logits(self.plain, ids)


close = functools.partial(torch.testing.assert_close, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture(params=WAYS, ids="-".join)
def case_of(request) -> Callable[..., Case]:
    return functools.partial(Case, *request.param)


@pytest.mark.parametrize("rank", [RANK, HIGH, None])
def test_gated_rows_equal_lora_by_hand(case_of, rank):
    case = case_of(rank=rank)
    wholes = {isinstance(each, Tensor) or each.low is None for each in case.flat_deltas}
    assert wholes == {rank != RANK}, "the factors are multiplied if that costs less"
    base = logits(case.plain, IDS)
    close(case.run(IDS, None), base)
    for first in (FIRST, 0, 9):
        slots = torch.arange(first, 9)
        close(case.run(IDS[:1], slots), case.expected(IDS[:1], slots))
    assert (case.expected(IDS[:1], TAIL) - base[:1])[0, FIRST:].abs().max() > 0.1
    close(case.run(IDS, SLOTS), case.expected(IDS, SLOTS))
    close(case.run(IDS, torch.arange(18)), case.expected(IDS, torch.arange(18)))


@pytest.mark.parametrize("rank", [RANK, HIGH])
def test_base_rows_are_bit_exact_with_the_model_alone(case_of, rank):
    case = case_of(rank=rank)
    tail = case.run(IDS[:1], TAIL)
    assert torch.equal(tail[:, :FIRST], case.run(IDS[:1], None)[:, :FIRST])
    scattered = case.run(IDS, SLOTS)
    unmoved = gate_of(SLOTS, IDS.shape).cumsum(1) == 0  # rows that no slot comes before
    assert unmoved.sum() == 3 + 5
    assert torch.equal(scattered[unmoved], case.run(IDS, None)[unmoved])


@pytest.mark.parametrize("rank", [RANK, HIGH])
def test_base_rows_do_not_change_by_one_bit_with_the_adapter(case_of, rank):
    one, other = case_of(seed=0, rank=rank), case_of(seed=1, rank=rank)
    tails = [case.run(IDS[:1], TAIL) for case in (one, other)]
    assert torch.equal(tails[0][:, :FIRST], tails[1][:, :FIRST])
    assert (tails[0] - tails[1])[:, FIRST:].abs().max() > 0.1
    unmoved = gate_of(SLOTS, IDS.shape).cumsum(1) == 0
    both = [case.run(IDS, SLOTS) for case in (one, other)]
    assert torch.equal(both[0][unmoved], both[1][unmoved])
    assert (both[0] - both[1])[~unmoved].abs().max() > 0.1


def test_base_rows_do_not_change_by_one_bit_with_the_slots_inputs(case_of):
    changed = IDS[:1].clone()
    changed[:, FIRST:] = (changed[:, FIRST:] + 7) % VOCAB
    for rank in (RANK, HIGH):
        case = case_of(rank=rank)
        assert torch.equal(*(case.run(ids, TAIL)[:, :FIRST] for ids in (IDS[:1], changed)))


def test_a_wrapped_module_without_an_active_adapter_gives_the_logits_of_the_plain_module(name):
    case = Case(name, "modules")
    assert torch.equal(logits(case.module, IDS), logits(case.plain, IDS))
    case.run(IDS, SLOTS)
    assert torch.equal(logits(case.module, IDS), logits(case.plain, IDS))


def test_an_adapter_is_deactivated_when_its_forward_fails_and_cannot_be_nested():
    case = Case("llama", "modules")

    class Failing:
        def rows(self, x: Tensor) -> Tensor:
            raise RuntimeError("no memory")

    deltas, gate = [Failing()] * len(case.gated.layers), gate_of(SLOTS, IDS.shape)[..., None]
    with pytest.raises(RuntimeError, match="no memory"), case.gated.gated(deltas, gate):
        logits(case.module, IDS)
    assert torch.equal(logits(case.module, IDS), logits(case.plain, IDS))
    active = case.gated.gated
    with (
        active(case.deltas, gate),
        pytest.raises(AssertionError, match="active already"),
        active(case.deltas, gate),
    ):
        pass
    assert torch.equal(logits(case.module, IDS), logits(case.plain, IDS))


# Layers and deltas.


def test_every_linear_layer_but_the_head_is_gated(name):
    module = fresh(name)
    head = module.get_output_embeddings()
    names = set(linear_layers(module))
    assert len(names) == 2 * (4 if name in ("gpt-neox", "gpt2") else 7)
    matrices = {
        name.removesuffix(".weight")
        for name, parameter in module.named_parameters()
        if parameter.ndim == 2 and parameter is not head.weight and "emb" not in name
    }
    assert names == matrices - {"transformer.wte", "transformer.wpe"}
    assert not any(layer is head for layer in linear_layers(module).values())


@pytest.mark.parametrize("name", OWN)
def test_our_own_forward_contains_each_linear_layer_once(name):
    weights = llama.join_weights(fresh(name))
    assert weights is not None
    names = [name for layer in weights.layers for part in layer.linears for name in part.names]
    assert sorted(names) == sorted(linear_layers(fresh(name)))


def test_layer_shapes_are_inputs_by_outputs_for_linear_and_conv1d_layers():
    assert layer_shapes(fresh("llama"))["model.layers.0.mlp.down_proj"] == (48, 32)
    assert layer_shapes(fresh("llama-gqa"))["model.layers.1.self_attn.k_proj"] == (32, 16)
    module = fresh("gpt2")
    assert module.transformer.h[0].attn.c_attn.weight.shape == (32, 96)  # Conv1D: [in, out]
    assert layer_shapes(module)["transformer.h.0.attn.c_attn"] == (32, 96)
    assert layer_shapes(module)["transformer.h.0.mlp.c_proj"] == (128, 32)


@pytest.mark.parametrize("rank", [RANK, HIGH, None])
def test_deltas_follow_the_base_layers_orientation(name, rank):
    case = Case(name, "modules", rank=rank)
    for index, (layer, delta) in enumerate(zip(case.gated.layers, case.deltas, strict=True)):
        low, high = case.factors[layer].low, case.factors[layer].high
        width = len(layer_weight(case.gated.layers[layer]))
        x = torch.randn(4, width, generator=torch.Generator().manual_seed(index))
        whole = high if low is None else high @ low
        close(delta.rows(x), x @ whole.T)


@pytest.mark.parametrize("kind", ["own", "modules"])
@pytest.mark.parametrize("left_out", ["q_proj", "k_proj", "up_proj", "o_proj"])
@pytest.mark.parametrize("rank", [RANK, HIGH, None])
def test_a_layer_without_factors_stays_a_base_layer(kind, left_out, rank):
    case = Case("llama", kind, rank=rank)
    for layer in [name for name in case.factors if name.endswith(left_out)]:
        del case.factors[layer]
    case.lay_out()
    close(case.run(IDS, SLOTS), case.expected(IDS, SLOTS))
    alone = left_out == "o_proj" or kind == "modules"
    assert case.flat_deltas.count(None) == 2 * alone


@pytest.mark.parametrize("kind", ["own", "modules"])
def test_deltas_may_mix_ranks_and_serve_many_calls(kind):
    case = Case("llama", kind)
    wide = factors_of(case.plain, seed=2, rank=5)
    full = factors_of(case.plain, seed=3, rank=None)
    for layer in case.factors:
        if layer.endswith(("k_proj", "gate_proj")):
            case.factors[layer] = wide[layer]
        elif layer.endswith(("v_proj", "q_proj")) and ".1." in layer:
            case.factors[layer] = full[layer]
    case.lay_out()
    for ids in (IDS, IDS.flip(0), IDS.flip(1)):
        close(case.run(ids, SLOTS), case.expected(ids, SLOTS))


def test_factors_are_multiplied_in_their_precision_before_the_cast():
    factors = factors_of(fresh("llama"), rank=HIGH)
    for name, layer in GatedModule(fresh("llama").to(torch.bfloat16)).layers.items():
        low, high = factors[name].low, factors[name].high
        (delta,) = layer_deltas({name: layer}, {name: Delta(low, high)})
        assert isinstance(delta, Delta)
        assert delta.low is None
        assert torch.equal(delta.high, (high @ low).bfloat16())


@pytest.mark.parametrize("rank", [HIGH, None])
def test_whole_weights_of_our_own_forward_are_added_in_float32_before_the_cast(rank):
    module = fresh("llama").to(torch.bfloat16)
    factors, layers = factors_of(module, rank=rank), linear_layers(module)
    weights = llama.join_weights(module)
    assert weights is not None
    joined = llama.joined_changes(weights, factors)
    for layer, changes in zip(weights.layers, joined, strict=True):
        for part, change in zip(layer.linears, changes, strict=True):
            expected = []
            for path in part.names:
                low, high = factors[path].low, factors[path].high
                weight: Any = layers[path].weight
                expected.append((weight.float() + (high if low is None else high @ low)).bfloat16())
            assert isinstance(change, Tensor)
            assert torch.equal(change, torch.cat(expected))


def test_ranks_of_layers_that_share_an_input_are_joined_and_padded_with_zeros(case_of):
    case = case_of()
    for delta in case.flat_deltas:
        assert delta is not None
        assert delta.low is not None
        assert len(delta.low) == delta.high.shape[1] == 32
    if case.weights is not None:
        q, k, v = (case.factors[name] for name in case.weights.layers[0].attention.names)
        (joined, *_) = case.deltas[0]
        assert torch.equal(joined.low[: 3 * RANK], torch.cat([q.low, k.low, v.low]))
        high = joined.high[:, : 3 * RANK]
        assert torch.equal(high, torch.block_diag(q.high, k.high, v.high))
        assert not joined.low[3 * RANK :].any()
        assert not joined.high[:, 3 * RANK :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_and_joined_weights_have_the_memory_layout_that_is_fastest_for_few_rows_on_a_cpu(
    dtype,
):
    module = fresh("llama").to(dtype)
    factors = factors_of(module)
    weights = llama.join_weights(module)
    assert weights is not None
    deltas: list[Any] = []
    for layer in llama.joined_changes(weights, factors):
        deltas += layer
    parts = [part.weight for layer in weights.layers for part in layer.linears]
    for delta in deltas:
        assert delta is not None
        assert delta.low is not None
        parts += [delta.low, delta.high]
    for part in parts:  # [out, in]
        assert part.dtype == dtype
        assert (part.t() if dtype == torch.float32 else part).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_joined_layers_are_views_of_one_copy(dtype):
    part = fresh("llama").to(dtype).get_submodule("model.layers.0.mlp")
    layers = [part.gate_proj, part.up_proj]
    before = [layer.weight.clone() for layer in layers]
    joined, row = join(layers), 0
    for layer, weight in zip(layers, before, strict=True):
        assert torch.equal(layer.weight, weight)
        same = joined[row : row + len(weight)]
        assert (same.data_ptr(), same.stride()) == (layer.weight.data_ptr(), layer.weight.stride())
        row += len(weight)
    assert row == len(joined)


class Products(TorchDispatchMode):
    """Notes the outputs' widths of products with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.matmul.default and args[1].ndim == 2:
            self.widths.append(args[1].shape[1])
        elif func is torch.ops.aten.linear.default:
            self.widths.append(args[1].shape[0])
        return func(*args, **(kwargs or {}))


def test_a_call_of_one_token_takes_one_product_for_all_layers_of_one_input():
    module = fresh("llama")
    model = HFModel(module)
    model.reserve(1, 16)
    session = model.open()
    with Products() as products:
        model.forward([session.call((5,))])
    shapes = {name.split(".")[-1]: shape[1] for name, shape in layer_shapes(module).items()}
    attention = sum(shapes[part] for part in ("q_proj", "k_proj", "v_proj"))
    network = shapes["gate_proj"] + shapes["up_proj"]
    once = [attention, shapes["o_proj"], network, shapes["down_proj"]]
    num_layers = module.config.num_hidden_layers
    assert products.widths == once * num_layers + [VOCAB]


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2"])
@pytest.mark.parametrize("rank", [RANK, HIGH, 0])
def test_adapter_bytes_are_those_of_the_embedding_and_the_attached_deltas(name, rank):
    model = HFModel(fresh(name))
    adapter = slot_adapter(model.module, rank=rank)
    model.attach("ptp", adapter)
    attached = model._runner.adapters["ptp"]
    deltas: Any = attached.deltas
    flat = [delta for layer in deltas for delta in layer] if name == "llama-gqa" else deltas
    embedding = sum(parameter.nbytes for parameter in adapter.embedding.parameters())
    parts = [
        part for each in flat for part in ([each] if isinstance(each, Tensor) else parts_of(each))
    ]
    assert model.adapter_bytes("ptp") == embedding + sum(part.nbytes for part in parts)


def parts_of(delta: Delta) -> list[Tensor]:
    return [part for part in (delta.low, delta.high) if part is not None]
