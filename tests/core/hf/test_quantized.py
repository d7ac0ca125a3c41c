"""Packed weights: each layer against what it unpacks to, and decoders on a packed model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F

from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.draft_pass import short_head
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.adapter_config import AdapterConfig
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel
from decoders.core.hf.quantized import (
    GROUP,
    PACKED_ROWS,
    QuantizedLinear,
    Width,
    packed_layers,
    quantize,
)
from decoders.core.registry import build, parse_spec
from decoders.core.types import Sampling, Slots
from tests.command_line import bench
from tests.tiny_checkpoint import save_checkpoint
from tests.tiny_models import VOCAB, WIDTH, fresh, slot_adapter


def weight_of(num_out: int, num_in: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(num_out, num_in, generator=torch.Generator().manual_seed(num_out)).to(dtype)


def weight_in(layer: QuantizedLinear) -> torch.Tensor:
    """The weight ``[N, K]`` that a packed layer stands for."""
    if layer.width == "int8":
        return layer.packed.to(layer.scales.dtype) * layer.scales[:, None]
    one = torch.eye(layer.in_features, dtype=layer.scales.dtype)
    return torch._weight_int4pack_mm_for_cpu(one, layer.packed, GROUP, layer.scales).t()


@pytest.mark.parametrize("rows", [1, 5, PACKED_ROWS, PACKED_ROWS + 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", get_args(Width))
def test_a_packed_layer_computes_the_same_as_its_unpacked_weights(
    width: Width, dtype: torch.dtype, bias: bool, rows: int
) -> None:
    weight = weight_of(48, 64, dtype)
    added = torch.arange(48).to(dtype) / 48 if bias else None
    layer = QuantizedLinear(weight, added, width)
    assert layer.width == width
    x = torch.randn(2, rows, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = F.linear(
        x.double(), weight_in(layer).double(), None if added is None else added.double()
    )
    error = (layer(x).double() - expected).abs().max() / expected.abs().max()
    assert error < (2e-6 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("inputs", [8, 20, 40, 100])
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_a_packed_layer_never_reads_beyond_its_inputs(rows: int, inputs: int) -> None:
    """In bfloat16 torch's kernel takes 16 inputs at a time, and may crash behind the last."""
    weight = weight_of(11, inputs, torch.bfloat16)
    layer = QuantizedLinear(weight, None, "int8")
    x = torch.ones(rows, inputs, dtype=torch.bfloat16)
    expected = F.linear(x.double(), weight_in(layer).double())
    error = (layer(x).double() - expected).abs().max() / expected.abs().max()
    assert error < 2e-2


@pytest.mark.parametrize("width", get_args(Width))
def test_zero_rows_give_an_empty_result(width: Width) -> None:
    layer = QuantizedLinear(weight_of(48, 64), None, width)
    assert layer(torch.zeros(0, 64)).shape == (0, 48)
    model = HFModel(fresh("llama-gqa"), quantized=width)
    model.reserve(1, 20)
    assert model.forward([model.open().call([5, 6], read=())]).shape == (0, VOCAB)


@pytest.mark.parametrize("width", get_args(Width))
def test_a_column_major_weight_packs_like_a_row_major_one(width: Width) -> None:
    weight = weight_of(48, 64)
    by_columns = weight.t().contiguous().t()
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    alike = [QuantizedLinear(each, None, width)(x) for each in (weight, by_columns)]
    assert torch.equal(*alike)


@pytest.mark.parametrize(("width", "step"), [("int8", 127), ("int4", 15)])
def test_weights_are_rounded_to_the_nearest_step(width: Width, step: int) -> None:
    weight = weight_of(32, 2 * GROUP)
    layer = QuantizedLinear(weight, None, width)
    error = (weight_in(layer) - weight).abs()
    if width == "int8":
        most = weight.abs().amax(1, keepdim=True) / step / 2
    else:
        groups = weight.view(32, 2, GROUP)
        spread = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
        most = (spread / step / 2).expand_as(groups).reshape(weight.shape)
    assert (error <= most * 1.001).all()
    assert error.max() > 0
    num_bytes = layer.packed.nbytes + layer.scales.nbytes
    assert num_bytes < weight.nbytes / (3 if width == "int8" else 4)


def test_int8_weights_are_rounded_by_the_scales_that_are_stored() -> None:
    """In bfloat16 a scale is rounded by up to a 512th: 127 times that is a quarter of a step."""
    weight = weight_of(48, 64, torch.bfloat16)
    layer = QuantizedLinear(weight, None, "int8")
    scales = layer.scales.float()[:, None]
    steps = (layer.packed * scales - weight.float()).abs() / scales
    assert 0.4 < steps.max() < 0.501


def test_int4_weights_are_rounded_to_the_nearest_of_the_stored_steps() -> None:
    """In bfloat16 scales and zeros are rounded themselves, and weights are then rounded to them."""
    offsets = torch.linspace(-0.5, 0.5, 32)[:, None]
    weight = (offsets + 0.05 * weight_of(32, 2 * GROUP)).bfloat16()
    layer = QuantizedLinear(weight, None, "int4")
    scales, zeros = layer.scales.double().transpose(0, 1).repeat_interleave(GROUP, 1).unbind(-1)
    chosen = ((weight_in(layer).double() - zeros) / scales).round()
    steps = torch.arange(-8, 8).view(-1, 1, 1)
    nearest = (steps * scales + zeros - weight.double()).abs().amin(0)
    assert ((chosen * scales + zeros - weight.double()).abs() <= nearest + 1e-7).all()


def test_int4_weights_far_from_zero_do_not_wrap_around() -> None:
    """A rounded zero may lie more than half a step beyond the smallest weight of its group."""
    offsets = torch.linspace(2, 8, 32)[:, None]
    weight = (offsets + 0.05 * weight_of(32, 2 * GROUP)).bfloat16()
    layer = QuantizedLinear(weight, None, "int4")
    assert ((weight_in(layer) - weight).abs() <= weight * 2**-6).all()


def test_layers_that_do_not_fit_int4_are_packed_as_int8() -> None:
    assert QuantizedLinear(weight_of(VOCAB, WIDTH), None, "int4").width == "int8"
    zeros = QuantizedLinear(torch.zeros(16, GROUP), None, "int4")
    assert torch.equal(zeros(torch.ones(1, GROUP)), torch.zeros(1, 16))


SPECS = {
    "spec": None,
    "lookup": None,
    "lookahead": None,
    "jacobi": None,
    "ptp": "o-ptp",
    "ptp@pqd:mode=pqd": "o-ptp",
    "idlm@isd:mode=isd": "isd",
    "medusa": "medusa",
    "eagle": "eagle",
    "shallow": "shallow",
    "hf": None,
    "hf@assisted:kind=assisted": None,
}
FIELDS: dict[str, Any] = {"code": "constant", "num_slots": 3, "layers": {}, "width": WIDTH}


def attached(model: HFModel, spec: str) -> Decoder:
    """The decoder of a spec; what it needs is attached to the model."""
    decoder = build(parse_spec(spec))
    match SPECS[spec]:
        case None:
            return decoder
        case "medusa":
            model.attach("medusa", DraftHeads(AdapterConfig(variant="medusa", rank=4, **FIELDS)))
        case "eagle":
            config = AdapterConfig(variant="eagle", rank=8, num_heads=2, **FIELDS)
            model.attach("eagle", DraftLayer(config))
        case "shallow":
            sizes: dict[str, Any] = {
                "rank": 8,
                "num_heads": 2,
                "num_layers": 2,
                "num_words": 20,
                "bias_rank": 2,
            }
            config = AdapterConfig(variant="shallow", **sizes, **FIELDS)
            model.attach("shallow", ParallelLayers(config))
        case variant:
            code = "constant" if variant == "isd" else "dyadic"
            adapter = slot_adapter(fresh("llama-gqa"), variant=variant, code=code, greedy=True)
            model.attach(str(decoder.adapter_name), adapter)
    return decoder


@pytest.mark.parametrize("width", get_args(Width))
@pytest.mark.parametrize("spec", SPECS)
def test_decoders_give_the_ids_of_ar_on_the_same_packed_model(spec: str, width: Width) -> None:
    model = HFModel(fresh("llama-gqa"), quantized=width)
    decoder = attached(model, spec)
    models = Models(target=model, draft=HFModel(fresh("llama-gqa"), quantized=width))
    sampling = Sampling(max_new_tokens=24)
    expected = generate(build(parse_spec("ar")), [5, 6, 7], sampling, models).tokens
    assert generate(decoder, [5, 6, 7], sampling, models).tokens == expected


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", get_args(Width))
def test_a_short_head_gives_the_same_logits_as_rows_of_the_packed_head(
    width: Width, bias: bool
) -> None:
    values = torch.randn(48, generator=torch.Generator().manual_seed(1)) if bias else None
    head = QuantizedLinear(weight_of(48, 96), values, width)
    words, states = torch.tensor([40, 3, 17]), weight_of(5, 96)
    short = short_head(head, words)
    torch.testing.assert_close(short(states), head(states)[:, words], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", get_args(Width))
@pytest.mark.parametrize(
    "spec", ["ptp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("medusa",))]
)
def test_packed_kernels_are_part_of_a_graph(spec: str, width: Width) -> None:
    sampling, answers = Sampling(max_new_tokens=12), []
    try:
        for compiled in (False, True):
            model = HFModel(
                fresh("llama-gqa", "sdpa"), quantized=width, compile=compiled, backend="eager"
            )
            decoder = attached(model, spec)
            answers.append(generate(decoder, [5, 6, 7], sampling, Models(target=model)).tokens)
            assert (model.num_graphs > 0) == compiled
    finally:
        torch.compiler.reset()
    assert answers[0] == answers[1]


def unpacked(module: Any) -> tuple[Any, torch.Tensor]:
    """The tiny model with the weights that a packed module unpacks to, and the head's."""
    plain = fresh("llama-gqa")
    for name, layer in module.named_modules():
        if isinstance(layer, QuantizedLinear) and name != "lm_head":
            plain.get_submodule(name).weight.data = weight_in(layer).clone()
    return plain, weight_in(module.get_output_embeddings())


@pytest.mark.parametrize("rank", [3, 32, 0])
@pytest.mark.parametrize("width", get_args(Width))
def test_an_adapter_adds_its_delta_to_packed_weights(width: Width, rank: int) -> None:
    """The rows of tokens are those of the packed model, and slots those of both together."""
    model = HFModel(fresh("llama-gqa"), quantized=width)
    adapter = slot_adapter(fresh("llama-gqa"), rank=rank)
    model.attach("ptp", adapter)
    model.reserve(1, 20)
    tokens = [5, 6, 7, 8]
    slots = Slots(adapter="ptp", uniforms=(0.3, 0.6), sizes=(2,), anchors=(8,), read=(0, 1))
    session = model.open()
    found = model.forward([session.call(tokens, read=range(4), slots=slots)])
    session.truncate(0)
    again = model.forward([session.call(tokens, read=range(4))])
    torch.testing.assert_close(found[:4], again, atol=1e-5, rtol=1e-5)
    plain, head = unpacked(model.module)
    plain.lm_head.weight = torch.nn.Parameter(head.clone())
    other = HFModel(plain)
    other.attach("ptp", adapter)
    other.reserve(1, 20)
    expected = other.forward([other.open().call(tokens, read=range(4), slots=slots)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("width", get_args(Width))
def test_packed_models_give_the_logits_of_their_unpacked_weights(width: Width) -> None:
    model = HFModel(fresh("llama-gqa"), quantized=width)
    plain, head = unpacked(model.module)
    ids = [5, 6, 7, 8]
    model.reserve(1, 20)
    got = model.forward([model.open().call(ids, read=range(4))])
    hidden = plain.base_model(torch.tensor([ids])).last_hidden_state[0]
    torch.testing.assert_close(got, hidden @ head.t(), atol=1e-4, rtol=1e-4)
    away = (got - fresh("llama-gqa")(torch.tensor([ids])).logits[0]).abs().max()
    assert away > 1e-3  # it is another model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("width", get_args(Width))
def test_compiled_calls_of_a_packed_model_are_those_of_the_plain_one(width: Width) -> None:
    plain = HFModel(fresh("llama-gqa"), quantized=width)
    compiled = HFModel(fresh("llama-gqa"), quantized=width, compile=True, backend="export")
    logits = []
    for model in (plain, compiled):
        model.reserve(1, 40)
        session = model.open()
        first = model.forward([session.call([5, 6, 7], read=range(3))])
        logits.append(torch.cat([first, model.forward([session.call([8])])]))
    assert compiled.num_graphs == 2
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


def test_a_packed_model_counts_its_packed_bytes_and_its_original_number_of_weights() -> None:
    plain, packed = HFModel(fresh("llama-gqa")), HFModel(fresh("llama-gqa"), quantized="int8")
    assert packed.num_parameters == plain.num_parameters
    module = packed.module
    layers = packed_layers(module)
    assert len(layers) == 2 * 7 + 1
    rest = sum(parameter.nbytes for parameter in module.parameters())
    packs = sum(layer.packed.nbytes + layer.scales.nbytes for layer in layers)
    assert packed.weight_bytes == rest + packs
    table = module.get_input_embeddings().weight
    assert packed.weight_bytes < plain.weight_bytes
    assert rest == table.nbytes + sum(p.nbytes for p in module.parameters() if p.ndim == 1)
    assert packed_layers(plain.module) == []
    names = {name for name, part in module.named_modules() if isinstance(part, QuantizedLinear)}
    linear = {n: part for n, part in plain.module.named_modules() if n in names}
    num_weights = sum(part.weight.numel() for part in linear.values())
    assert sum(layer.weight.numel() for layer in layers) == num_weights
    assert packed.facts["read_bytes"] == packed.weight_bytes - table.nbytes  # it is looked up
    assert packed.facts["quantized"] == "int8"
    assert "quantized" not in plain.facts


def test_models_with_layers_that_cannot_be_packed_are_refused() -> None:
    with pytest.raises(ValueError, match="GPT2LMHeadModel has layers of Conv1D"):
        quantize(fresh("gpt2"), "int8")


def test_int4_on_a_device_other_than_the_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="--quantize int4 runs only on a CPU"):
        quantize(fresh("llama-gqa").to("meta"), "int4")


@pytest.mark.slow
def test_packed_runs_record_the_quantization_and_are_not_comparable_to_plain_runs(
    tmp_path: Path,
) -> None:
    model = save_checkpoint(tmp_path / "model")
    run: tuple[Any, ...]
    run = ("run", "-d", "lookup", "-m", model, "--limit", 1, "--repeats", 1, "--progress", "none")
    run += ("--quality-limit", 1, "--max-new-tokens", 8, "--dtype", "float32")
    keys: dict[str, Any] = {}
    for name, options in (("plain", ()), ("packed", ("--quantize", "int8"))):
        assert bench(*run, *options, "--output", tmp_path / name).code == 0
        (env,) = (tmp_path / name).glob("2*/env.json")
        keys[name] = json.loads(env.read_text())
    assert keys["packed"]["models"]["target"]["quantized"] == "int8"
    assert keys["packed"]["comparability_key"] != keys["plain"]["comparability_key"]
    wrong = bench(*run, "--quantize", "int3", "--output", tmp_path / "no")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "int8" in wrong.err
    assert "int4" in wrong.err
