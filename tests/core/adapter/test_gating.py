"""Gated layers against gated LoRA written by hand, and what must not change by a single bit.

Letters: B sequences, N rows of a sequence, V vocabulary.
"""

import functools
import itertools
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.core.adapter.gating import GatedModule, layer_shapes, linear_layers
from decoders.core.adapter.low_rank import LowRankWeights
from decoders.core.adapter.weights import Deltas, GroupedWeights, MergedWeights, UnmergedWeights
from decoders.core.hf.model import HFModel
from tests.tiny_models import VOCAB, fresh

TOLERANCE = 2e-5
RANK = 3
WAYS = ["merged", "unmerged", "low-rank"]
MODELS = ("llama", "qwen2", "mistral", "gpt-neox", "gpt2")
IDS = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
FIRST = 5  # of IDS[0], rows from here on are slots
SLOTS = torch.tensor([3, 4, 7, 8, 14, 15, 16, 17])  # flat rows of IDS
BASE = torch.tensor([r for r in range(18) if r not in SLOTS])


def factors_of(module, seed=0, rank: int | None = RANK):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return 0.15 * torch.randn(shape, generator=generator)

    return {
        name: (None, normal(n_out, n_in))
        if rank is None
        else (normal(rank, n_in), normal(n_out, rank))
        for name, (n_in, n_out) in layer_shapes(module).items()
    }


@contextmanager
def by_hand(module, factors, gate: Tensor):
    """Adds ``B A x`` to every layer's rows where `gate` ``[B, N]`` is 1."""

    def adding(low, high):
        delta = high if low is None else high @ low
        return lambda _module, args, y: y + gate[..., None] * (args[0] @ delta.T)

    named = dict(module.named_modules())
    hooks = [named[name].register_forward_hook(adding(*pair)) for name, pair in factors.items()]
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


class Case:
    """One architecture, wrapped side by side or not; its adapter each way that this allows."""

    def __init__(self, name: str, seed: int = 0, rank: int | None = RANK) -> None:
        self.plain, self.module = fresh(name), fresh(name)
        self.factors = factors_of(self.plain, seed, rank)
        self.gated = GatedModule(self.module)
        self.joined_module = fresh(name)
        self.joined = GatedModule(self.joined_module, side_by_side=True)
        self.joined.rest(GroupedWeights.base(self.joined).everywhere)
        self.lay_out()

    def lay_out(self) -> None:
        deltas = Deltas(self.gated, self.factors)
        self.ways: dict[str, MergedWeights | UnmergedWeights | LowRankWeights] = {
            "merged": MergedWeights(deltas, torch.float32),
            "unmerged": UnmergedWeights(deltas),
            "low-rank": LowRankWeights(self.joined, self.factors),
        }

    def logits(self, ids, way, active) -> Tensor:
        joined = way == "low-rank"
        with (self.joined if joined else self.gated).active(active):
            return logits(self.joined_module if joined else self.module, ids)

    def run(self, ids, way, kind, *where) -> Tensor:
        return self.logits(ids, way, getattr(self.ways[way], kind)(*where))

    def expected(self, ids, flat_slots) -> Tensor:
        with by_hand(self.plain, self.factors, gate_of(flat_slots, ids.shape)):
            return logits(self.plain, ids)


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.mark.parametrize("rank", [RANK, None])
@pytest.mark.parametrize("way", WAYS)
def test_gated_rows_equal_lora_by_hand(name, way, rank):
    case = Case(name, rank=rank)
    base = logits(case.plain, IDS)
    close = functools.partial(torch.testing.assert_close, atol=TOLERANCE, rtol=TOLERANCE)
    for first in (FIRST, 0, 9):
        expected = case.expected(IDS[:1], torch.arange(first, 9))
        close(case.run(IDS[:1], way, "tail", first, 9), expected)
    assert (case.expected(IDS[:1], torch.arange(FIRST, 9)) - base[:1])[0, FIRST:].abs().max() > 0.1
    close(case.run(IDS, way, "scattered", BASE, SLOTS), case.expected(IDS, SLOTS))
    # `everywhere` is a method of the layer, not a maker of one
    close(case.logits(IDS, way, case.ways[way].everywhere), case.expected(IDS, torch.arange(18)))


@pytest.mark.parametrize("way", ["unmerged", "low-rank"])
def test_base_rows_are_bit_exact_with_the_model_alone_where_nothing_is_merged(name, way):
    case = Case(name)
    alone = case.joined_module if way == "low-rank" else case.plain
    tail = case.run(IDS[:1], way, "tail", FIRST, 9)
    assert torch.equal(tail[:, :FIRST], logits(alone, IDS[:1])[:, :FIRST])
    scattered = case.run(IDS, way, "scattered", BASE, SLOTS)
    unmoved = gate_of(SLOTS, IDS.shape).cumsum(1) == 0  # rows that no slot comes before
    assert unmoved.sum() == 3 + 5
    assert torch.equal(scattered[unmoved], logits(alone, IDS)[unmoved])


@pytest.mark.parametrize("way", WAYS)
def test_base_rows_do_not_change_by_one_bit_with_the_adapter(name, way):
    one, other = Case(name, seed=0), Case(name, seed=1)
    tails = [case.run(IDS[:1], way, "tail", FIRST, 9) for case in (one, other)]
    assert torch.equal(tails[0][:, :FIRST], tails[1][:, :FIRST])
    assert (tails[0] - tails[1])[:, FIRST:].abs().max() > 0.1
    unmoved = gate_of(SLOTS, IDS.shape).cumsum(1) == 0
    both = [case.run(IDS, way, "scattered", BASE, SLOTS) for case in (one, other)]
    assert torch.equal(both[0][unmoved], both[1][unmoved])
    assert (both[0] - both[1])[~unmoved].abs().max() > 0.1


def test_base_rows_do_not_change_by_one_bit_with_the_slots_inputs(name):
    case = Case(name)
    changed = IDS[:1].clone()
    changed[:, FIRST:] = (changed[:, FIRST:] + 7) % VOCAB
    for way in case.ways:
        rows = [case.run(ids, way, "tail", FIRST, 9)[:, :FIRST] for ids in (IDS[:1], changed)]
        assert torch.equal(*rows)


def test_a_wrapped_but_inactive_module_is_the_module(name):
    case = Case(name)
    assert torch.equal(logits(case.module, IDS), logits(case.plain, IDS))
    case.run(IDS, "merged", "scattered", BASE, SLOTS)
    assert torch.equal(logits(case.module, IDS), logits(case.plain, IDS))


def test_an_adapter_goes_out_of_force_when_its_forward_fails_and_never_nests():
    case = Case("llama")

    def failing(index: int, x: Tensor) -> Tensor:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"), case.gated.active(failing):
        logits(case.module, IDS)
    assert torch.equal(logits(case.module, IDS), logits(case.plain, IDS))
    active = case.gated.active
    with active(failing), pytest.raises(AssertionError, match="active already"), active(failing):
        pass


# Layers and groups.

GROUPS = {
    "llama": [{"q_proj", "k_proj", "v_proj"}, {"o_proj"}, {"gate_proj", "up_proj"}, {"down_proj"}],
    "gpt-neox": [{"query_key_value"}, {"dense"}, {"dense_h_to_4h"}, {"dense_4h_to_h"}],
    "gpt2": [{"c_attn"}, {"c_proj"}, {"c_fc"}, {"c_proj"}],
}


def test_layers_that_read_the_same_input_are_grouped(name):
    case = Case(name)
    groups = [{case.gated.layers[i].name.split(".")[-1] for i in g} for g in case.gated.groups]
    assert groups == 2 * GROUPS.get(name, GROUPS["llama"])
    indices = [i for group in case.gated.groups for i in group]
    assert sorted(indices) == list(range(len(case.gated.layers)))


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


def test_shapes_are_in_and_out_whatever_way_the_weight_is_stored():
    assert layer_shapes(fresh("llama"))["model.layers.0.mlp.down_proj"] == (48, 32)
    assert layer_shapes(fresh("llama-gqa"))["model.layers.1.self_attn.k_proj"] == (32, 16)
    module = fresh("gpt2")
    assert module.transformer.h[0].attn.c_attn.weight.shape == (32, 96)  # Conv1D: [in, out]
    assert layer_shapes(module)["transformer.h.0.attn.c_attn"] == (32, 96)
    assert layer_shapes(module)["transformer.h.0.mlp.c_proj"] == (128, 32)


def test_merged_weights_follow_the_base_layers_orientation(name):
    case = Case(name)
    unmerged, merged = case.ways["unmerged"], case.ways["merged"]
    assert isinstance(unmerged, UnmergedWeights)
    assert isinstance(merged, MergedWeights)
    deltas = unmerged.deltas
    for index, layer in enumerate(case.gated.layers):
        low, high = case.factors[layer.name]
        x = torch.randn(4, layer.shape[0], generator=torch.Generator().manual_seed(index))
        expected = linear_layers(case.plain)[layer.name](x) + x @ (high @ low).T
        bias = 0 if layer.bias is None else layer.bias
        torch.testing.assert_close(x @ deltas.merged(index) + bias, expected, atol=2e-5, rtol=1e-5)
        assert torch.equal(merged.weight(index), deltas.merged(index))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("left_out", ["q_proj", "k_proj", "up_proj", "o_proj"])
def test_a_layer_without_factors_stays_a_base_layer(way, left_out):
    case = Case("llama")
    for layer in [name for name in case.factors if name.endswith(left_out)]:
        del case.factors[layer]
    case.lay_out()
    got = case.run(IDS, way, "scattered", BASE, SLOTS)
    torch.testing.assert_close(got, case.expected(IDS, SLOTS), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("way", ["unmerged", "low-rank"])
def test_deltas_may_mix_ranks_and_serve_many_calls(way):
    case = Case("llama")
    wide = factors_of(case.plain, seed=2, rank=5)
    full = factors_of(case.plain, seed=3, rank=None)
    for layer in case.factors:
        if layer.endswith(("k_proj", "gate_proj")):
            case.factors[layer] = wide[layer]
        elif layer.endswith(("v_proj", "q_proj")) and ".1." in layer:
            case.factors[layer] = full[layer]
    case.lay_out()
    for ids in (IDS, IDS.flip(0), IDS.flip(1)):
        got = case.run(ids, way, "scattered", BASE, SLOTS)
        torch.testing.assert_close(got, case.expected(ids, SLOTS), atol=TOLERANCE, rtol=TOLERANCE)


def test_merging_is_done_in_the_factors_precision_before_the_cast():
    case = Case("llama")
    gated = GatedModule(fresh("llama").to(torch.bfloat16))
    weights = MergedWeights(Deltas(gated, case.factors), torch.bfloat16)
    for index, layer in enumerate(gated.layers):
        merged = weights.weight(index)
        low, high = case.factors[layer.name]
        assert merged.dtype == torch.bfloat16
        assert torch.equal(merged, (layer.weight.float() + (high @ low).T).bfloat16())


@pytest.mark.parametrize(("num_base", "num_slots"), [(1, 3), (3, 1), (7, 7), (70, 3), (3, 70)])
@torch.inference_mode()
def test_each_row_is_given_the_layer_of_its_kind(name: str, num_base: int, num_slots: int) -> None:
    """One sequence's rows and rows that lie anywhere."""
    case = Case(name)
    merged = case.ways["merged"]
    num_rows = num_base + num_slots
    generator = torch.Generator().manual_seed(num_rows)
    order = torch.randperm(num_rows, generator=generator)
    base, slots = order[:num_base].sort().values, order[num_base:].sort().values
    cases = [
        (merged.tail(num_base, num_rows), torch.arange(num_rows) >= num_base),
        (merged.scattered(base, slots), torch.isin(torch.arange(num_rows), slots)),
    ]
    for group in case.gated.groups:
        x = torch.randn(1, num_rows, case.gated.layers[group[0]].shape[0], generator=generator)
        for (forward, is_slot), index in itertools.product(cases, group):
            low, high = case.factors[case.gated.layers[index].name]
            plain = case.gated.layers[index].plain(x)
            expected = plain + is_slot[:, None] * (x @ (high @ low).T)
            torch.testing.assert_close(forward(index, x), expected, atol=2e-5, rtol=1e-5)


def test_slots_meet_the_models_own_weights_without_a_copy() -> None:
    case = Case("llama")
    merged = MergedWeights(Deltas(case.joined, case.factors), torch.float32)
    with case.joined.active(merged.tail(FIRST, 9)):
        found = logits(case.joined_module, IDS[:1])
    copied = case.run(IDS[:1], "merged", "tail", FIRST, 9)
    torch.testing.assert_close(found, copied, atol=2e-5, rtol=1e-5)
    own = [case.joined.layers[group[0]].weight.data_ptr() for group in case.joined.groups]
    assert [[weight.data_ptr() for weight in group.base] for group in merged._groups] == [
        [each] for each in own
    ]
    assert merged.num_bytes == sum(layer.weight.nbytes for layer in case.joined.layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_weights_laid_side_by_side_give_the_models_own_logits_from_one_copy(name, dtype):
    module, plain = fresh(name).to(dtype), logits(fresh(name).to(dtype), IDS)
    num_bytes = sum(parameter.nbytes for parameter in module.parameters())
    gated = GatedModule(module, side_by_side=True)
    assert sum(parameter.nbytes for parameter in module.parameters()) == num_bytes
    grouped = GroupedWeights.base(gated)
    seen = []

    def forward(index: int, x: Tensor) -> Tensor:
        seen.append(index)
        return grouped.everywhere(index, x)

    gated.rest(forward)
    tolerance = TOLERANCE if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert (logits(module, IDS) - plain).abs().max() <= tolerance * max(1, float(plain.abs().max()))
    assert sorted(seen) == list(range(len(gated.layers)))
    for group in grouped._groups:  # what a CPU multiplies few rows with fastest
        fastest = group.slots if dtype == torch.float32 else group.slots.t()
        assert fastest.is_contiguous()
    for index, layer in enumerate(gated.layers):
        shared = grouped.weight(index)
        assert shared.data_ptr() == layer.weight.data_ptr(), "a copy of a weight is kept"
        assert torch.equal(shared, layer.weight)


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
    shapes = {layer.name.split(".")[-1]: layer.shape[1] for layer in GatedModule(module).layers}
    attention = sum(shapes[part] for part in ("q_proj", "k_proj", "v_proj"))
    network = shapes["gate_proj"] + shapes["up_proj"]
    once = [attention, shapes["o_proj"], network, shapes["down_proj"]]
    num_layers = module.config.num_hidden_layers
    assert products.widths == once * num_layers + [VOCAB]


def test_ranks_of_a_group_are_filled_up_to_whole_vectors(name):
    weights = Case(name).ways["low-rank"]
    assert isinstance(weights, LowRankWeights)
    deltas = [delta for delta in weights._deltas.values() if delta is not None]
    assert deltas
    for delta in deltas:
        assert delta.low is not None
        assert delta.low.shape[1] == delta.high.shape[0]
        assert delta.low.shape[1] % 32 == 0
