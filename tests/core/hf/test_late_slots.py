"""Slots that enter above the first layer, against the plain module with hooks.

The oracle of `test_hf_slots` runs the whole call cold; here a further hook puts the hidden states
of the slots' rows in place before the layer where they enter, slot by slot.
"""

import copy
import dataclasses
from contextlib import contextmanager

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.adapter.gating import decoder_layers, layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.engine.forward import forward
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf import llama
from decoders.core.hf.model import HFModel
from decoders.core.types import Sampling
from decoders.ptp import ParallelTokenPrediction
from tests.core.hf.test_slots import (
    HIGH,
    TOLERANCE,
    Case,
    cold,
    embedded_by_hand,
    everything,
    gap,
    ids,
    opened,
    partial_quadratic,
    slots_of,
)
from tests.tiny_models import fresh, slot_adapter, tiny

ENTER = 1


@pytest.fixture(
    params=[
        ("llama-gqa", HIGH),
        ("qwen2", 3),
        ("gpt2", HIGH),
        ("gpt-neox", 3),
        ("qwen3", 0),
        ("qwen2-window", 3),
    ]
)
def case(request):
    name, rank = request.param
    adapter = slot_adapter(tiny(name), enter=ENTER, numbered=True, rank=rank)
    model = HFModel(fresh(name))
    model.attach("ptp", adapter)
    model.reserve(4, 100)
    return Case(model, tiny(name), adapter)


@contextmanager
def entering(case, slots, first):
    """Slots' rows, from `first` on, are replaced before the layer by what is written by hand."""
    embedded = embedded_by_hand(case.module, case.adapter, slots)

    def hook(_layer, args):
        hidden, slot = args[0].clone(), 0
        for branch, size in enumerate(slots.sizes):
            before = hidden[0, first - len(slots.sizes) + branch].clone()
            for number in range(size):
                scale = case.adapter.carried[min(number, 3)]
                hidden[0, first + slot] = scale * before + embedded[slot]
                slot += 1
        return (hidden, *args[1:])

    handle = decoder_layers(case.module)[ENTER].register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def expected_of(case, before, tokens, slots=None, **placed):
    if slots is None:
        return cold(case, before, tokens, **placed)
    with entering(case, slots, len(before) + len(tokens)):
        return cold(case, before, tokens, slots, **placed)


def test_slots_begin_from_the_token_before_them(case):
    prompt, tokens = ids(1, 9), ids(2, 3)
    slots = slots_of(3, (5,), (tokens[-1],))
    (session,) = opened(case, prompt)
    got = case.model.forward([everything(session, tokens, slots=slots)])
    expected = expected_of(case, prompt, tokens, slots)
    assert gap(got, expected) < TOLERANCE
    with_the_tokens = cold(case, prompt, tokens, slots)
    assert gap(with_the_tokens[:3], expected[:3]) < TOLERANCE  # token rows do not depend on it
    assert gap(with_the_tokens[3:], expected[3:]) > 0.01


@pytest.mark.parametrize("num_tokens", [1, 2, 10])
def test_slots_of_a_prefill_begin_from_the_token_before_them(case, num_tokens):
    """Layers below hold entries of a former sequence where the slots are."""
    for session in opened(case, ids(20, 30)):
        case.model.close(session)
    tokens = ids(4, num_tokens)
    slots = slots_of(5, (6,), (tokens[-1],))
    got = case.model.forward([everything(case.model.open(), tokens, slots=slots)])
    assert gap(got, expected_of(case, [], tokens, slots)) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_no_forward_hook_remains_in_the_layers_after_a_call(name):
    model = HFModel(fresh(name))
    model.attach("ptp", slot_adapter(tiny(name), enter=ENTER))
    model.reserve(1, 100)
    session, slots = model.open(), slots_of(3, (5,), (4,))
    model.forward([session.call(ids(1, 9), slots=slots)])
    assert not any(part._forward_pre_hooks for part in model.module.modules())


@pytest.mark.parametrize(
    ("name", "lone", "merged"),
    [
        ("llama-gqa", [9, 14, 3, 8], 8),
        ("qwen2", [9, 14, 3, 8], 8),
        ("gpt2", [14, 14, 8, 8], 6),  # of each sequence, one of them padded
    ],
)
def test_slots_of_one_sequence_skip_the_lower_layers_in_our_own_forward(
    name, lone, merged, monkeypatch
):
    model = HFModel(fresh(name))
    model.attach("ptp", slot_adapter(tiny(name), enter=ENTER))
    model.reserve(2, 100)
    rows: list[int] = []
    run = llama._run

    def noted(weights, numbers, hidden, *rest):
        rows.extend(hidden.shape[1] for _ in numbers)
        return run(weights, numbers, hidden, *rest)

    monkeypatch.setattr(llama, "_run", noted)
    for layer in decoder_layers(model.module):
        layer.register_forward_hook(lambda _layer, args, _out: rows.append(args[0].shape[1]))
    session, other = model.open(), model.open()
    slots = slots_of(3, (5,), (4,))
    model.forward([session.call(ids(1, 9), slots=slots)])  # the prefill needs no mask
    model.forward([session.call(ids(2, 3), slots=slots)])
    model.forward([session.call(ids(2, 1))])
    model.forward([session.call(ids(2, 1), slots=slots), other.call(ids(2, 2))])
    assert rows == [*lone, 1, 1, merged, merged]


@pytest.mark.slow
def test_slots_of_one_sequence_skip_the_lower_layers_in_a_graph(monkeypatch):
    adapter, prompt, sizes = slot_adapter(tiny("qwen2"), enter=ENTER), ids(1, 9), (0, 2, 1)
    calls = [(1, (2,)), (1, (1,)), (4, (3,)), (3, sizes), (2, None)]
    found, run = [], llama._run
    widths: list[set[str]] = [set(), set()]

    def noted(weights, numbers, hidden, *rest):
        for number in numbers:
            widths[number].add(str(hidden.shape))
        return run(weights, numbers, hidden, *rest)

    monkeypatch.setattr(llama, "_run", noted)
    for compiled in (False, True):
        model = HFModel(fresh("qwen2"), compile=compiled, backend="export")
        model.attach("ptp", adapter)
        model.reserve(1, 100)
        session = model.open()
        model.forward([session.call(prompt)])
        for seen in widths:
            seen.clear()
        outputs = []
        for count, branches in calls:
            tokens, placed = ids(2, count), {}
            slots = branches and slots_of(3, branches, tokens[-len(branches) :])
            if branches == sizes:
                placed = partial_quadratic(session.length, count, sizes)
            outputs.append(model.forward([everything(session, tokens, slots=slots, **placed)]))
        outputs.append(model.forward([everything(session, [5])]))
        found.append(outputs)
    assert model.num_graphs == 3, "of rows, of one row, and of slots"
    below, above = widths
    assert len(below - above) == 1, "graphs of slots"
    for eager, graph in zip(*found, strict=True):
        assert gap(graph, eager) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2-window", "gemma3-window"])
def test_lower_layers_of_other_kinds_keep_their_own_masks_and_rotations(name):
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    module = fresh(name)
    config = dataclasses.replace(module.config, num_hidden_layers=3, layer_types=kinds)
    torch.manual_seed(0)
    whole = type(module)(config).eval()
    adapter, prompt, tokens = slot_adapter(whole, enter=2), ids(1, 30), ids(2, 3)
    found = []
    for compiled in (False, True):
        model = HFModel(copy.deepcopy(whole), compile=compiled, backend="export")
        model.attach("ptp", adapter)
        model.reserve(1, 100)
        session = model.open()
        plain = model.forward([everything(session, [*prompt, *tokens])])
        session.truncate(len(prompt))
        slots = slots_of(3, (3,), tokens[-1:])
        found.append(model.forward([everything(session, tokens, slots=slots)]))
        assert gap(found[-1][:3], plain[-3:]) < TOLERANCE
    assert gap(*found) < TOLERANCE


def test_each_branch_begins_from_its_own_token(case):
    prompt, tokens, sizes = ids(6, 8), ids(7, 4), (3, 0, 2, 5)
    (session,) = opened(case, prompt)
    slots, placed = slots_of(8, sizes, tokens), partial_quadratic(8, 4, sizes)
    got = case.model.forward([everything(session, tokens, slots=slots, **placed)])
    assert gap(got, expected_of(case, prompt, tokens, slots, **placed)) < TOLERANCE


def test_anchor_tokens_of_branches_are_fed_even_if_the_prompt_is_cached(case):
    prompt, sizes = ids(6, 9), (3, 2)
    slots, placed = slots_of(8, sizes, prompt[-2:]), partial_quadratic(0, 9, (*[0] * 7, *sizes))
    (session,) = opened(case, prompt)
    session.keep_text(prompt)
    got = forward([session.call(prompt, slots=slots, **placed)])
    assert session.rows == 2 + 5
    assert gap(got, expected_of(case, [], prompt, slots, **placed)[8:]) < TOLERANCE


def test_merged_calls_equal_cold_forwards_and_leave_token_rows_alone(case):
    prompts, fed = [ids(20, 11), ids(21, 4), ids(22, 8)], [ids(24, 1), ids(25, 4), ids(26, 2)]
    sizes = (1, 0, 3, 2)
    parts = [
        {"slots": slots_of(28, (6,), fed[0])},
        {"slots": slots_of(29, sizes, fed[1]), **partial_quadratic(4, 4, sizes)},
        {},
    ]
    sessions = opened(case, *prompts)
    order = (2, 0, 1)
    got = case.model.forward([everything(sessions[i], fed[i], **parts[i]) for i in order])
    expected = torch.cat([expected_of(case, prompts[i], fed[i], **parts[i]) for i in order])
    assert gap(got, expected) < TOLERANCE
    following = [session.call([5 + i]) for i, session in enumerate(sessions)]
    texts = [[*p, *t] for p, t in zip(prompts, fed, strict=True)]
    expected = torch.cat([cold(case, text, [5 + i])[-1:] for i, text in enumerate(texts)])
    assert gap(case.model.forward(following), expected) < TOLERANCE


def test_late_slots_without_their_preceding_token_in_the_call_are_refused(case):
    (session,) = opened(case, ids(1, 9))
    slots = slots_of(3, (2,), (4,))
    with pytest.raises(ValueError, match=r"begin from the token before them.* enter = 0"):
        case.model.forward([session.call((), slots=slots)])


def test_only_layers_from_the_entry_layer_on_have_a_delta():
    module = tiny("llama-gqa")
    kept = layer_shapes(module, 1)
    assert set(kept) == {name for name in layer_shapes(module) if ".1." in name}
    with pytest.raises(ValueError, match="the model has 2 layers, use 0 to 1"):
        layer_shapes(module, 2)


def test_an_adapter_with_late_slots_is_saved_and_loaded_unchanged(tmp_path):
    module = tiny("llama")
    assert "carried" not in slot_adapter(module).state_dict()
    late = slot_adapter(module, enter=1)
    late.save(tmp_path)
    again = SlotAdapter.load(tmp_path)
    assert again.config == late.config
    assert again.carried is not None
    assert late.carried is not None
    assert torch.equal(again.carried, late.carried)
    everywhere = SlotAdapter(dataclasses.replace(late.config, enter=0))
    with pytest.raises(ValueError, match="is missing, the model's"):
        everywhere.check_fits(module)


@pytest.mark.parametrize("other", [{"variant": "refine", "code": "constant"}, {"anchored": True}])
def test_kinds_of_slots_that_cannot_enter_late_are_refused(other):
    with pytest.raises(ValueError, match="'enter' is 1; it must be 0 for refine"):
        AdapterConfig(layers=layer_shapes(tiny("llama"), 1), width=32, enter=1, **other)


def test_ptp_decodes_losslessly_with_late_slots(case):

    models, prompt = Models(target=case.model), ids(40, 6)
    for temperature in (0.0, 0.8):
        sampling = Sampling(temperature=temperature, max_new_tokens=24, seed=3)
        plain = generate(Autoregressive(), prompt, sampling, models)
        for mode in ("pqd", "sequential"):
            decoder = ParallelTokenPrediction(mode=mode)
            assert generate(decoder, prompt, sampling, models).tokens == plain.tokens
