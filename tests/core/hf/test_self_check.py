"""The check of a model as it is opened: sound ones pass in every dtype, planted faults do not."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertLMHeadModel

from decoders.core.adapter.gating import layer_shapes
from decoders.core.device import switches
from decoders.core.hf import llama
from decoders.core.hf import self_check as module_of_check
from decoders.core.hf.model import HFModel
from decoders.core.hf.quantized import quantize
from decoders.core.hf.self_check import check_graphs, self_check
from tests.tiny_models import MODELS, WINDOW, fresh


class Rounding(nn.Linear):
    """A layer as BitNet's: more than a product."""

    def forward(self, x):
        return super().forward((x * 8).round() / 8)


def made(name, dtype=torch.float32, attention=None):
    return HFModel(fresh(name, attention).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_sound_model_passes_and_has_no_open_session(name, dtype):
    model = made(name, dtype)
    assert self_check(model) == []
    model.reserve(1, 8)


def test_a_model_of_few_positions_passes():
    module = fresh("llama", "sdpa")
    module.config.max_position_embeddings = 3
    assert self_check(HFModel(module)) == []


def wrong_layers(model, factor=0.5):
    """Our forward pass has other weights than the module."""
    weights = model._runner.weights
    layers = [
        dataclasses.replace(
            layer,
            feed_out=dataclasses.replace(layer.feed_out, weight=factor * layer.feed_out.weight),
        )
        for layer in weights.layers
    ]
    model._runner.weights = dataclasses.replace(weights, layers=layers)


def not_causal(masks):
    masks.after = lambda start, num_rows, _mask: masks.additive(
        torch.ones(1, 1, num_rows, start + num_rows, dtype=torch.bool)
    )


def causal_by_place(masks):
    """A mask by place: it takes the last rows of the widest text for those fed."""

    def visible(_blocks, starts, width, seen):
        rows = torch.arange(width)[:, None] + seen - width
        return (torch.arange(seen) <= rows).expand(len(starts), width, seen)

    masks.visible = visible


def no_window(masks):
    masks._windows = dict.fromkeys(masks._windows)


def wrong_masks(fault):
    """A fault of the masks that a model makes when it reserves its cache."""

    def plant(model):
        reserve = model.reserve

        def reserved(*sizes):
            reserve(*sizes)
            fault(model._layout.masks)

        model.reserve = reserved

    return plant


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "fault", "how"),
    [
        ("llama", wrong_layers, "a prompt alone"),
        ("llama", wrong_masks(not_causal), "5 rows after a prefix"),
        ("llama", wrong_masks(causal_by_place), "prompts of unequal lengths in one call"),
        ("mistral-window", wrong_masks(no_window), "a prompt beyond its window of 20"),
    ],
)
def test_a_wrong_model_is_refused_with_its_name_and_the_comparison_that_failed(
    name, fault, how, dtype
):
    module = fresh(name, "sdpa").to(dtype)
    module.config.sliding_window = 20
    model = HFModel(module)
    fault(model)
    line = rf"^{type(model.module).__name__} gives other logits for .*({how})"
    with pytest.raises(ValueError, match=line):
        self_check(model)


def looks_ahead(distance):
    """A fault of the module itself: from the first layer on, rows see so many rows after them."""

    def plant(module):
        layer = module.model.layers[0]
        own = layer.forward

        def forward(hidden, *args, **named):
            later = torch.zeros_like(hidden)
            later[:, :-distance] = hidden[:, distance:]
            return own(hidden + 0.5 * later, *args, **named)

        layer.forward = forward

    return plant


def sees_its_block(size):
    """A fault of the module itself, as of block diffusion: rows see the last row of their block."""

    def plant(module):
        layer = module.model.layers[0]
        own = layer.forward

        def forward(hidden, *args, **named):
            places = torch.arange(hidden.shape[1])
            last = ((places // size + 1) * size - 1).clamp(max=hidden.shape[1] - 1)
            return own(hidden + 0.5 * hidden[:, last], *args, **named)

        layer.forward = forward

    return plant


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "fault",
    [looks_ahead(1), looks_ahead(3), *(sees_its_block(size) for size in range(2, 8))],
)
def test_a_model_whose_earlier_rows_see_later_tokens_is_refused_as_not_causal(fault, dtype):
    module = fresh("llama", "sdpa").to(dtype)
    fault(module)
    with pytest.raises(
        ValueError, match=r"^LlamaForCausalLM is not causal: [^\n]* causal language"
    ):
        self_check(HFModel(module))


def test_an_encoder_is_refused_as_not_causal():
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
    }
    config = BertConfig(**sizes, num_attention_heads=4, initializer_range=0.2)
    config._attn_implementation = "eager"
    with pytest.raises(ValueError, match=r"^BertLMHeadModel is not causal"):
        self_check(HFModel(BertLMHeadModel(config).eval()))


def test_errors_of_the_usual_rounding_are_accepted_and_larger_ones_are_not(monkeypatch):
    """A batch shows how much rounding is usual; four times as much is accepted."""
    model = made("llama")
    own, rounding = (
        model.own_logits,
        torch.randn(20, 97, generator=torch.Generator().manual_seed(0)),
    )

    def rounded(tokens, num_rows, beside=()):
        logits = own(tokens, num_rows, beside)
        return (
            logits + usual * logits.std(-1, keepdim=True) * rounding[:num_rows]
            if beside
            else logits
        )

    monkeypatch.setattr(model, "own_logits", rounded)
    forward = model.forward

    def rounds(calls):
        logits = forward(calls)
        noise = rounding[: len(logits)].flip(-1)
        return logits + 0.02 * logits.std(-1, keepdim=True) * noise

    monkeypatch.setattr(model, "forward", rounds)
    usual = 0.01
    assert self_check(model) == []
    usual = 0.003
    with pytest.raises(ValueError, match="gives other logits for a prompt alone"):
        self_check(model)


def test_the_check_compares_every_kind_of_compiled_call(monkeypatch):
    """Each kind of compiled call is wrong once: a prompt, rows, one row, and both in batches."""
    model = HFModel(fresh("llama"), compile=True, backend="eager")
    check_graphs(model, (1, 2, 3))
    forward, kinds = model.forward, set()

    def noted(calls):
        kinds.add((len(calls), max(call.num_rows for call in calls) > 1))
        return forward(calls)

    monkeypatch.setattr(model, "forward", noted)
    check_graphs(model, (1, 2, 3))
    assert kinds == {(number, rows) for number in (1, 2, 3) for rows in (False, True)}
    for wrong in sorted(kinds):

        def changed(calls, wrong=wrong):
            logits = forward(calls)
            kind = len(calls), max(call.num_rows for call in calls) > 1
            assert model._runner.compiling
            return -logits if kind == wrong else logits

        monkeypatch.setattr(model, "forward", changed)
        with pytest.raises(ValueError, match=r"gives other logits for .*compiled"):
            check_graphs(model, (1, 2, 3))


def test_rounding_that_depends_on_later_tokens_does_not_fail_the_check(monkeypatch):
    """As a router does that has two experts to choose from, with one ending but not with each."""
    model = made("llama", torch.bfloat16)
    own, asked = model.own_logits, []

    def routed(tokens, num_rows, beside=()):
        logits = own(tokens, num_rows, beside).clone()
        asked.append(tuple(tokens))
        if len(asked) == 3 and not beside:
            logits[2] += logits[2].std() * torch.randn(len(logits[2]))
        return logits

    monkeypatch.setattr(model, "own_logits", routed)
    assert self_check(model) == []
    assert len(set(asked[:4])) == 3, "the prompt, beside others, with an ending, with another one"


def test_one_row_that_differs_strongly_in_a_batch_does_not_excuse_a_wrong_model(monkeypatch):
    model = made("llama", torch.bfloat16)
    own = model.own_logits

    def routed(tokens, num_rows, beside=()):
        logits = own(tokens, num_rows, beside).clone()
        if beside:
            logits[2] = logits[2].flip(-1)
        return logits

    monkeypatch.setattr(model, "own_logits", routed)
    assert self_check(model) == []
    wrong_layers(model)
    with pytest.raises(ValueError, match="gives other logits for a prompt alone"):
        self_check(model)


def test_later_tokens_may_move_logits_by_the_usual_rounding_and_by_no_more(monkeypatch):
    model = made("llama")
    own, noise = model.own_logits, torch.randn(20, 97, generator=torch.Generator().manual_seed(0))
    prompt = module_of_check._ids(model, module_of_check._LENGTH, 0)

    def rounded(tokens, num_rows, beside=()):
        logits = own(tokens, num_rows, beside)
        share = usual if beside else 0.001 if [*tokens] != prompt else 0.0
        return logits + share * logits.std(-1, keepdim=True) * noise[:num_rows]

    monkeypatch.setattr(model, "own_logits", rounded)
    usual = 0.0005
    assert self_check(model) == []
    usual = 0.0
    with pytest.raises(ValueError, match="is not causal"):
        self_check(model)


def test_a_model_with_nan_logits_is_refused():
    model = made("llama")
    wrong_layers(model, float("nan"))
    with pytest.raises(ValueError, match="by nan of their spread"):
        self_check(model)


def test_in_float32_a_single_wrong_row_is_refused(monkeypatch):
    model = made("llama")
    forward = model.forward

    def one_wrong(calls):
        logits = forward(calls)
        return torch.cat([logits[:-1], logits[-1:].flip(-1)])

    monkeypatch.setattr(model, "forward", one_wrong)
    with pytest.raises(ValueError, match="gives other logits for a prompt alone"):
        self_check(model)


def test_a_module_whose_own_logits_are_nan_is_refused_with_that_reason():
    module = fresh("llama")
    module.lm_head.weight.data[3] = float("nan")
    with pytest.raises(ValueError, match=r"LlamaForCausalLM gives NaN in transformers' own"):
        self_check(HFModel(module))


def test_a_failing_forward_pass_is_reported_in_one_line():
    model = made("llama")

    def fails(*_args, **_named):
        raise RuntimeError("sizes differ\nand more")

    model._runner._body.forward = fails
    with pytest.raises(ValueError, match=r"^LlamaForCausalLM fails in the calls .*sizes differ\)"):
        self_check(model)


def test_a_comparison_beyond_a_very_wide_window_is_skipped_and_reported(monkeypatch):
    model = made("mistral-window")
    work = WINDOW * model.num_parameters
    monkeypatch.setattr(module_of_check, "_MAX_WORK", work)
    assert self_check(model) == []
    monkeypatch.setattr(module_of_check, "_MAX_WORK", work - 1)
    (line,) = self_check(model)
    assert line.endswith(f"beyond its window of {WINDOW}")


def test_a_window_that_no_text_exceeds_is_not_mentioned():
    module = fresh("mistral-window")
    module.config.sliding_window = module.config.max_position_embeddings
    assert self_check(HFModel(module)) == []


def test_subclasses_of_linear_layers_run_unchanged_but_take_no_adapter_or_quantization():
    module = fresh("llama", "sdpa")
    for layer in module.model.layers:
        layer.self_attn.o_proj.__class__ = Rounding
    own = copy.deepcopy(module)
    model = HFModel(module)
    assert self_check(model) == []
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has layers of Rounding, .* no adapter"):
        layer_shapes(module)
    with pytest.raises(ValueError, match="LlamaForCausalLM has layers of Rounding, which --quant"):
        quantize(module, "int8")
    tokens = torch.arange(9)[None]
    with torch.inference_mode():
        torch.testing.assert_close(module(tokens).logits, own(tokens).logits)


class WrongKernels:
    """Kernels in Triton that another GPU might compile to wrong code, or not at all."""

    def add_norm(self, rows, added, weight, epsilon):
        rows = rows if added is None else rows + added
        return rows, 2 * llama.norm(rows, weight, epsilon)

    def gated(self, states):
        gate, up = states.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


class NoKernels:
    def add_norm(self, *_):
        raise OSError("no compiler for sm_120")


@pytest.mark.parametrize(
    ("kernels", "why"), [(WrongKernels, "other logits"), (NoKernels, "no compiler for sm_120")]
)
def test_failing_kernels_are_switched_off_and_reported(monkeypatch, kernels, why):
    monkeypatch.setattr(switches, "kernels", True)
    monkeypatch.setattr(module_of_check, "has_kernels", lambda _: True)
    monkeypatch.setattr(llama, "fused_kernels", lambda _: kernels() if switches.kernels else None)
    (line,) = self_check(made("llama"))
    assert line.startswith("this GPU runs torch's kernels, because ours fail there: ")
    assert why in line
    assert not switches.kernels
    model = made("llama")
    wrong_layers(model)
    with pytest.raises(ValueError, match="choose another model"):
        self_check(model)


def test_a_lack_of_memory_switches_no_kernels_off(monkeypatch):
    monkeypatch.setattr(switches, "kernels", True)
    monkeypatch.setattr(module_of_check, "has_kernels", lambda _: True)
    model = made("llama")

    def fails(_calls):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "forward", fails)
    with pytest.raises(torch.OutOfMemoryError):
        self_check(model)
    assert switches.kernels


def test_a_model_that_is_wrong_with_and_without_kernels_is_refused(monkeypatch):
    monkeypatch.setattr(switches, "kernels", True)
    monkeypatch.setattr(module_of_check, "has_kernels", lambda _: True)
    model = made("llama")
    wrong_layers(model)
    with pytest.raises(ValueError, match="choose another model"):
        self_check(model)
