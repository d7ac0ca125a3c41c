"""Calls with slots against the plain module: cold, without cache, gated LoRA by hooks.

The oracle feeds the committed tokens, the call's tokens and its embedded slots to an unwrapped copy
in one pass, with a mask and positions written out by hand. Weights are random and larger than
usual, so that a wrong mask, position or gate moves logits by far more than the tolerance.
"""

import copy
import dataclasses
import functools
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from decoders.core import masks
from decoders.core.adapter.embedding import NUM_LEVELS
from decoders.core.adapter.module import SlotAdapter
from decoders.core.hf.model import HFModel
from decoders.core.hf.runner import GraphName
from decoders.core.types import MASKED, NO_UNIFORM, Slots
from tests.tiny_models import VOCAB, fresh, slot_adapter, tiny

TOLERANCE = 2e-5
MODELS = (
    "llama",
    "llama-gqa",
    "qwen2",
    "qwen2-window",
    "mistral",
    "mistral-window",
    "gpt-neox",
    "gpt2",
    "qwen3",
    "llama-bias",
)
HIGH = 32
"""A rank whose factors cost more than their products in every layer of a tiny model."""
KINDS: dict[str, dict[str, Any]] = {
    "low": {},
    "high": {"rank": HIGH},
    "high-anchored": {"rank": HIGH, "anchored": True, "numbered": True},
    "full-numbered": {"rank": 0, "numbered": True},
}
PAIRS = (("high-anchored", "low"), ("high", "full-numbered"))
CASES = [(name, "sdpa", kind) for i, name in enumerate(MODELS) for kind in PAIRS[i % 2]]
CASES += [("llama-gqa", "eager", "high-anchored"), ("mistral-window", "eager", "low")]


@dataclasses.dataclass
class Case:
    """A model with an adapter attached, and what the oracle needs."""

    model: HFModel
    module: object
    adapter: SlotAdapter


@functools.cache
def made(name, attention, kind):
    module = tiny(name, attention)
    adapter = slot_adapter(module, **KINDS[kind])
    model = HFModel(fresh(name, attention))
    model.attach("ptp", adapter)
    return Case(model, module, adapter)


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    found = made(*request.param)
    found.model.reserve(4, 100)
    yield found
    for session in list(found.model._open):
        found.model.close(session)


def ids(seed, count):
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def slots_of(seed, sizes, anchors, read=None):
    """Slots with seeded uniforms, the second one blank."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(NUM_LEVELS, (sum(sizes),), generator=generator)
    uniforms = ((levels + 0.5).double() / NUM_LEVELS).tolist()  # where the table is exact
    uniforms[1:2] = [NO_UNIFORM] * len(uniforms[1:2])
    read = range(sum(sizes)) if read is None else read
    return Slots(
        adapter="ptp",
        uniforms=tuple(uniforms),
        sizes=tuple(sizes),
        anchors=tuple(anchors),
        read=tuple(read),
        warp=(0.7, 0.9),
    )


# The oracle.


@contextmanager
def gated_by_hooks(module, adapter, first):
    """Rows from `first` on get ``x (scale B A)^T`` added in every adapted layer."""

    def adding(delta):
        def hook(_module, args, y):
            gate = (torch.arange(y.shape[1]) >= first).float()[None, :, None]
            return y + gate * (args[0] @ delta.T)

        return hook

    named, config, hooks = dict(module.named_modules()), adapter.config, []
    for name in config.layers:
        key = name.replace(".", "/")
        delta = adapter.lora_b[key]
        if config.rank:
            delta = config.alpha / config.rank * delta @ adapter.lora_a[key]
        hooks.append(named[name].register_forward_hook(adding(delta)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def embedded_by_hand(module, adapter, slots):
    """Slot by slot: u's embedding, then number and anchor where the adapter has them."""
    tokens, rows, slot = module.get_input_embeddings().weight, [], 0
    for size, anchor in zip(slots.sizes, slots.anchors, strict=True):
        for number in range(size):
            u = torch.tensor([slots.uniforms[slot]], dtype=torch.float64)
            row = adapter.embedding(u, torch.tensor([slots.warp]))[0]
            if slots.slot_tokens and slots.slot_tokens[slot] != MASKED:
                row = tokens[slots.slot_tokens[slot]]
            if adapter.numbers is not None:
                row = row + adapter.numbers[min(number, 3)]
            if adapter.config.anchored and number == 0:
                row = row + tokens[anchor]
            rows.append(row)
            slot += 1
    return torch.stack(rows)


@torch.inference_mode()
def cold(case, before, tokens, slots=None, positions=None, mask=None):
    """Logits ``[N, V]`` of a call's rows after the tokens `before`."""
    module, start, num_tokens = case.module, len(before), len(tokens)
    inputs = module.get_input_embeddings()(torch.tensor([*before, *tokens]))
    num_slots = 0
    if slots is not None:
        num_slots = len(slots.uniforms)
        inputs = torch.cat([inputs, embedded_by_hand(module, case.adapter, slots)])
    if positions is None:
        end = start + num_tokens
        positions = [*range(start, end), *range(end - 1, end - 1 + num_slots)]
    places = torch.tensor([*range(start), *positions])
    seen = torch.ones(len(places), len(places), dtype=torch.bool).tril()
    if mask is not None:
        seen[start:, start:] = mask

    def additive(window):
        visible = seen & (places[:, None] - places[None, :] < (window or 10**6))
        return torch.zeros(1, 1, *seen.shape).masked_fill(~visible, torch.finfo(torch.float32).min)

    config = module.config
    window = getattr(config, "sliding_window", None)
    kinds = {"full_attention": additive(None), "sliding_attention": additive(window)}
    mixed = len(set(getattr(config, "layer_types", None) or ())) > 1
    with gated_by_hooks(module, case.adapter, start + num_tokens):
        out = module(
            inputs_embeds=inputs[None],
            position_ids=places[None],
            attention_mask=kinds if mixed else additive(window),
            use_cache=False,
        )
    return out.logits[0, start:]


def opened(case, *prompts):
    sessions = [case.model.open() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        case.model.forward([session.call(prompt)])
    return sessions


def everything(session, tokens, **options):
    """A call that reads all its tokens (and all its slots)."""
    return session.call(tokens, read=range(len(tokens)), **options)


def gap(got, expected):
    assert got.shape == expected.shape
    return (got - expected).abs().max().item()


def partial_quadratic(start, num_tokens, sizes, shift=0):
    """Positions and mask of a stem of tokens with a branch of slots after each."""
    positions = [*range(start, start + num_tokens)]
    for m, size in enumerate(sizes):
        positions += range(start + m + shift, start + m + shift + size)
    return {"positions": positions, "mask": masks.branches(sizes)}


def block_after(case, prompt, tokens, shown):
    """A block of slots after `tokens` that all see one another, and what the call must give."""
    slots = dataclasses.replace(
        slots_of(21, (len(shown),), (prompt[-1],)),
        uniforms=(NO_UNIFORM,) * len(shown),
        slot_tokens=tuple(shown),
    )
    start, num_rows = len(prompt), len(tokens) + len(shown)
    placed = {
        "positions": [*range(start, start + num_rows)],
        "mask": masks.block(len(shown), stem=len(tokens)),
    }
    return {"slots": slots, **placed}, cold(case, prompt, tokens, slots, **placed)


# One sequence.


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_a_block_that_shows_some_of_its_tokens_equals_a_cold_forward(case, num_tokens):
    """Not predicted for the first time (no tokens), or with the block before it as tokens."""
    prompt, tokens = ids(31, 9), ids(32, num_tokens)
    (session,) = opened(case, prompt)
    for shown in ([MASKED] * 5, [7, MASKED, 8, MASKED, 9]):
        session.truncate(9)
        options, expected = block_after(case, prompt, tokens, shown)
        got = case.model.forward([everything(session, tokens, **options)])
        assert gap(got, expected) < TOLERANCE
        assert session.length == 9 + num_tokens  # slots leave nothing behind


def test_slots_after_a_prefix_equal_a_cold_forward(case):
    prompt, tokens = ids(1, 9), ids(2, 3)
    slots = slots_of(3, (5,), (tokens[-1],))
    (session,) = opened(case, prompt)
    for positions in (None, [*range(9, 12), *range(12, 17)]):  # as in O-PTP, as in C-PTP
        session.truncate(9)
        call = everything(session, tokens, slots=slots, positions=positions)
        expected = cold(case, prompt, tokens, slots, positions)
        assert gap(case.model.forward([call]), expected) < TOLERANCE


@pytest.mark.parametrize("num_tokens", [1, 10])
def test_slots_of_the_prefill_equal_a_cold_forward(case, num_tokens):
    tokens = ids(4, num_tokens)
    slots = slots_of(5, (6,), (tokens[-1],))
    session = case.model.open()
    for positions in (None, [*range(num_tokens + 6)]):
        session.truncate(0)
        call = everything(session, tokens, slots=slots, positions=positions)
        expected = cold(case, [], tokens, slots, positions)
        assert gap(case.model.forward([call]), expected) < TOLERANCE


def test_branches_of_slots_equal_a_cold_forward(case):
    prompt, tokens = ids(6, 8), ids(7, 4)
    (session,) = opened(case, prompt)
    for shift, sizes in [
        (0, (3, 0, 2, 5)),
        (1, (3, 0, 2, 5)),
        (0, (0, 0, 0, 1)),
        (1, (2, 0, 0, 0)),
    ]:
        session.truncate(8)
        slots, placed = slots_of(8, sizes, tokens), partial_quadratic(8, 4, sizes, shift)
        got = case.model.forward([everything(session, tokens, slots=slots, **placed)])
        assert gap(got, cold(case, prompt, tokens, slots, **placed)) < TOLERANCE


def test_a_branch_of_slots_equals_causal_slots_after_its_text_alone(case):
    prompt, tokens, sizes = ids(9, 8), ids(10, 3), (2, 3, 4)
    slots = slots_of(11, sizes, tokens)
    (session,) = opened(case, prompt)
    call = everything(session, tokens, slots=slots, **partial_quadratic(8, 3, sizes))
    parts = case.model.forward([call])[3:].split(sizes)
    ends = (2, 5, 9)
    for m, part in enumerate(parts):
        alone = dataclasses.replace(
            slots,
            uniforms=slots.uniforms[ends[m] - sizes[m] : ends[m]],
            sizes=sizes[m : m + 1],
            anchors=(tokens[m],),
        )
        expected = cold(case, prompt, tokens[: m + 1], alone)[m + 1 :]
        assert gap(part, expected) < TOLERANCE


def test_only_requested_rows_are_returned_with_tokens_before_slots(case):
    prompt, tokens = ids(12, 5), ids(13, 3)
    (session,) = opened(case, prompt)
    expected = cold(case, prompt, tokens, slots_of(14, (4,), (tokens[-1],)))
    for read, slots_read in [((2,), (0, 3)), ((), (1, 2)), ((0, 2), ())]:
        session.truncate(5)
        slots = slots_of(14, (4,), (tokens[-1],), read=slots_read)
        got = case.model.forward([session.call(tokens, read=read, slots=slots)])
        assert gap(got, expected[[*read, *(3 + slot for slot in slots_read)]]) < TOLERANCE


# Several sequences.


def test_merged_calls_of_unequal_tokens_and_slots_equal_cold_forwards(case):
    prompts = [ids(20, 11), ids(21, 4), ids(22, 8), ids(23, 6)]
    fed = [ids(24, 1), ids(25, 4), ids(26, 2), ids(27, 5)]
    sizes = (1, 0, 3, 2)
    sessions = opened(case, *prompts)
    parts = [
        {"slots": slots_of(28, (6,), fed[0])},
        {"slots": slots_of(29, sizes, fed[1]), **partial_quadratic(4, 4, sizes)},
        {"slots": slots_of(30, (1,), fed[2][-1:]), "positions": [8, 9, 10]},
        {},  # no slots
    ]
    order = (2, 0, 3, 1)
    calls = [everything(sessions[i], fed[i], **parts[i]) for i in order]
    got = case.model.forward(calls)
    expected = torch.cat([cold(case, prompts[i], fed[i], **parts[i]) for i in order])
    assert gap(got, expected) < TOLERANCE
    assert [session.length for session in sessions] == [12, 8, 10, 11]
    assert [session.rows - session.length for session in sessions] == [6, 6, 1, 0]
    following = [session.call([5 + i]) for i, session in enumerate(sessions)]
    texts = [[*p, *t] for p, t in zip(prompts, fed, strict=True)]
    expected = torch.cat([cold(case, text, [5 + i])[-1:] for i, text in enumerate(texts)])
    assert gap(case.model.forward(following), expected) < TOLERANCE


@pytest.mark.parametrize("compiled", [False, True])
def test_slots_of_two_temperatures_in_one_pass_equal_cold_forwards(compiled):
    adapter = slot_adapter(tiny("llama-gqa"), conditioned=True, anchored=True, numbered=True)
    model = HFModel(fresh("llama-gqa"), compile=compiled, backend="eager")
    model.attach("ptp", adapter)
    model.reserve(2, 60)
    case, prompts = Case(model, tiny("llama-gqa"), adapter), [ids(36, 9), ids(37, 4)]
    sessions, slots = opened(case, *prompts), [slots_of(38, (3,), (5,)), slots_of(38, (4,), (6,))]
    slots[1] = dataclasses.replace(slots[1], warp=(1.4, 1.0))
    parts = list(zip(sessions, prompts, ([5], [6]), slots, strict=True))
    got = model.forward([everything(s, fed, slots=each) for s, _, fed, each in parts])
    expected = torch.cat([cold(case, prompt, fed, each) for _, prompt, fed, each in parts])
    assert gap(got, expected) < TOLERANCE


def test_merged_prefills_with_slots_equal_cold_forwards(case):
    prompts = [ids(31, 9), ids(32, 2), ids(33, 5)]
    slots = [slots_of(34, (5,), prompts[0][-1:]), None, slots_of(35, (2,), prompts[2][-1:])]
    sessions = [case.model.open() for _ in prompts]
    calls = [everything(s, p, slots=x) for s, p, x in zip(sessions, prompts, slots, strict=True)]
    expected = [cold(case, [], p, x) for p, x in zip(prompts, slots, strict=True)]
    assert gap(case.model.forward(calls), torch.cat(expected)) < TOLERANCE


# What is left behind.


def test_a_following_call_sees_nothing_of_the_slots(case):
    text = ids(40, 24)
    (session,) = opened(case, text[:8])
    slots = slots_of(41, (6,), text[9:10])
    case.model.forward([session.call(text[8:10], slots=slots)])
    assert (session.length, session.rows) == (10, 16)
    got = case.model.forward([everything(session, text[10:11])])  # over the first slot's entry only
    assert gap(got, cold(case, text[:10], text[10:11])) < TOLERANCE
    again = slots_of(42, (3,), text[13:14])
    got = case.model.forward([everything(session, text[11:14], slots=again)])
    assert gap(got, cold(case, text[:11], text[11:14], again)) < TOLERANCE
    assert session.length == 14


def test_truncate_and_select_rows_after_a_call_with_slots_keep_exactly_the_right_rows(case):
    prompt, tokens, sizes = ids(43, 8), ids(44, 4), (2, 3, 0, 1)
    parents = (masks.ROOT, 0, 0, 2)
    (session,) = opened(case, prompt)
    placed = partial_quadratic(8, 4, sizes)
    slots = slots_of(45, sizes, tokens)
    case.model.forward([session.call(tokens, slots=slots, **placed)])
    session.truncate(10)
    after = slots_of(46, (2,), (7,))
    got = case.model.forward([everything(session, [7], slots=after)])
    assert gap(got, cold(case, [*prompt, *tokens[:2]], [7], after)) < TOLERANCE
    session.truncate(8)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()  # a tree of tokens, then two causal slots
    mask[:4, :4] = masks.tree(parents)
    positions = [*(8 + depth for depth in masks.depths(parents)), 12, 13]
    call = session.call(tokens, slots=slots_of(47, (2,), (5,)), mask=mask, positions=positions)
    case.model.forward([call])
    session.select_rows((0, 2, 3))
    assert session.length == 11
    kept = [*prompt, tokens[0], *tokens[2:]]
    assert gap(case.model.forward([everything(session, [9])]), cold(case, kept, [9])) < TOLERANCE


def test_without_slots_an_attached_adapter_changes_no_bit(case):
    bare = HFModel(copy.deepcopy(case.module))
    bare.reserve(4, 100)
    outs = []
    for model in (bare, case.model):
        first, second = model.open(), model.open()
        out = [model.forward([everything(first, ids(50, 9))])]
        out.append(model.forward([everything(second, ids(51, 4)), everything(first, ids(52, 2))]))
        out.append(model.forward([everything(first, [5])]))
        outs.append(torch.cat(out))
    assert torch.equal(*outs)


def test_bucketed_shapes_of_the_compiled_path_give_the_same_logits():
    found = made("llama-gqa", "sdpa", "high")
    model = HFModel(copy.deepcopy(found.module), compile=True, backend="eager")
    model.attach("ptp", found.adapter)
    model.reserve(2, 60)
    case = dataclasses.replace(found, model=model)
    prompts, tokens, sizes = [ids(70, 9), ids(71, 4)], ids(72, 3), (2, 0, 3)
    first, second = opened(case, *prompts)
    slots, placed = slots_of(73, sizes, tokens), partial_quadratic(9, 3, sizes)
    got = model.forward([everything(first, tokens, slots=slots, **placed)])
    expected = cold(case, prompts[0], tokens, slots, **placed)
    assert gap(got, expected) < TOLERANCE
    first.truncate(9)
    after = slots_of(74, (3,), (5,))
    calls = [everything(first, tokens, slots=slots, **placed), everything(second, [5], slots=after)]
    expected = torch.cat([expected, cold(case, prompts[1], [5], after)])
    assert gap(model.forward(calls), expected) < TOLERANCE
    kept = [*prompts[0], *tokens]
    assert gap(model.forward([everything(first, [7])]), cold(case, kept, [7])) < TOLERANCE
    torch.compiler.reset()


@pytest.mark.slow
def test_wide_calls_lone_token_rows_and_lone_slots_need_no_separate_graphs():
    found = made("llama-gqa", "sdpa", "high")
    model = HFModel(copy.deepcopy(found.module), compile=True, backend="export")
    model.attach("ptp", found.adapter)
    model.reserve(1, 60)
    case = dataclasses.replace(found, model=model)
    prompt = ids(70, 30)
    (session,) = opened(case, prompt)
    got = model.forward([everything(session, [5, 6, 7])])
    assert gap(got, cold(case, prompt, [5, 6, 7])) < TOLERANCE
    assert model.num_graphs == 1
    for tokens, sizes in (([5], (3,)), ([5, 6, 7], (1,)), ([5, 6], (2,))):
        session.truncate(30)
        slots = slots_of(74, sizes, tokens[-1:])
        got = model.forward([everything(session, tokens, slots=slots)])
        assert gap(got, cold(case, prompt, tokens, slots)) < TOLERANCE
    assert model.num_graphs == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("a", "a"), pytest.param(("a", "b"), marks=pytest.mark.slow)], ids=" ".join
)
def test_a_graph_holds_the_adapter_that_its_call_names(names):
    module = fresh("llama-gqa", "sdpa")
    model = HFModel(copy.deepcopy(module), compile=True, backend="export")
    model.reserve(1, 60)
    prompt, tokens = ids(70, 9), ids(71, 2)
    expected = []
    for number, name in enumerate(names):
        adapter = slot_adapter(module)
        for factor in adapter.lora_b.values():
            factor.data *= 1 + 4 * number
        model.attach(name, adapter)
        case = Case(model, tiny("llama-gqa", "sdpa"), adapter)
        slots = dataclasses.replace(slots_of(74, (3,), tokens[-1:]), adapter=name)
        expected.append(cold(case, prompt, tokens, slots))
        with model.uncompiled():
            (session,) = opened(case, prompt)
        got = model.forward([everything(session, tokens, slots=slots)])
        assert gap(got, expected[-1]) < TOLERANCE
        model.close(session)
    assert gap(*expected) > 100 * TOLERANCE, "the adapters are alike"


@pytest.mark.slow
def test_a_graph_of_slots_alone_serves_any_number_at_any_temperature():
    found = made("llama-gqa", "sdpa", "high")
    model = HFModel(copy.deepcopy(found.module), compile=True, backend="export")
    model.attach("ptp", found.adapter)
    model.reserve(2, 60)
    case = dataclasses.replace(found, model=model)
    prompts = [ids(70, 9), ids(71, 4)]
    first, second = opened(case, *prompts)
    before = model.num_graphs
    held = [*model._runner.facts(GraphName("ptp"))[1]]
    for sizes in (4,), (2,), (1,):
        slots = slots_of(73, sizes, [5])
        got = model.forward([everything(first, [], slots=slots)])
        assert gap(got, cold(case, prompts[0], [], slots)) < TOLERANCE
    assert model.num_graphs == before + 1
    assert held == [*model._runner.facts(GraphName("ptp"))[1]], (
        "a table of uniforms is part of the graph"
    )
    both = [slots_of(75, (3,), [5]), slots_of(76, (3,), [7])]
    calls = [everything(first, [], slots=both[0]), everything(second, [], slots=both[1])]
    expected = [cold(case, prompt, [], of) for prompt, of in zip(prompts, both, strict=True)]
    assert gap(model.forward(calls), torch.cat(expected)) < TOLERANCE
    assert model.num_graphs == before + 2


# Negative controls: the oracle notices.


def test_the_oracle_notices_a_wrong_position_mask_gate_uniform_or_anchor(case):
    prompt, tokens, sizes = ids(6, 8), ids(7, 4), (3, 0, 2, 5)
    slots, placed = slots_of(8, sizes, tokens), partial_quadratic(8, 4, sizes)
    right = cold(case, prompt, tokens, slots, **placed)
    wrong = placed["mask"].clone()
    wrong[7, 4] = True  # the first slot of branch 2 sees branch 0
    off = [*placed["positions"][:4], *(p + 1 for p in placed["positions"][4:])]
    u = (*slots.uniforms[:9], 1 - slots.uniforms[9])
    frozen = dataclasses.replace(case, adapter=copy.deepcopy(case.adapter))
    for high in frozen.adapter.lora_b.values():
        high.zero_()
    others = [
        cold(case, prompt, tokens, slots, **{**placed, "mask": wrong}),
        cold(case, prompt, tokens, slots, **{**placed, "positions": off}),
        cold(case, prompt, tokens, dataclasses.replace(slots, uniforms=u), **placed),
        cold(frozen, prompt, tokens, slots, **placed),
    ]
    if case.adapter.config.anchored:
        moved = dataclasses.replace(slots, anchors=tuple(tokens[::-1]))
        others.append(cold(case, prompt, tokens, moved, **placed))
    for other in others:
        assert gap(other[:4], right[:4]) < TOLERANCE  # tokens never see slots
        assert gap(other[4:], right[4:]) > 50 * TOLERANCE


def test_calls_of_two_adapters_do_not_merge():
    found = made("llama", "sdpa", "high")
    found.model.reserve(2, 40)
    found.model.attach("other", found.adapter)
    first, second = opened(found, ids(60, 4), ids(61, 4))
    slots = slots_of(62, (2,), (5,))
    calls = [
        first.call([5], slots=slots),
        second.call([5], slots=dataclasses.replace(slots, adapter="other")),
    ]
    with pytest.raises(AssertionError, match=r"several adapters in one pass: \['other', 'ptp'\]"):
        found.model.forward(calls)
    for session in (second, first):
        found.model.close(session)


def test_a_uniform_is_read_at_the_middle_of_its_level(case):
    (session,) = opened(case, ids(1, 6))
    middle = slots_of(2, (4,), anchors=(5,))
    moved = tuple(u if u == NO_UNIFORM else u + 0.49 / NUM_LEVELS for u in middle.uniforms)
    found = []
    for uniforms in (middle.uniforms, moved):
        slots = dataclasses.replace(middle, uniforms=uniforms)
        found.append(case.model.forward([session.call([5], slots=slots)]))
        session.truncate(6)
    assert torch.equal(*found)


def test_a_call_of_slots_alone_equals_a_cold_forward(case):
    prompt = ids(1, 7)
    (session,) = opened(case, prompt)
    slots = slots_of(3, (5,), anchors=(9,))
    positions = range(7, 12)
    got = case.model.forward([session.call((), slots=slots, positions=positions)])
    assert session.length == 7
    expected = cold(case, prompt, [], slots, positions=[*positions])
    assert gap(got, expected) < TOLERANCE


def test_merged_blocks_equal_cold_forwards(case):
    prompts = [ids(33, 9), ids(34, 4), ids(35, 6)]
    committed = [ids(36, 2), [], ids(37, 5)]
    shown = [[MASKED] * 4, [5, MASKED, 6], [MASKED]]
    sessions, calls, expected = opened(case, *prompts), [], []
    for session, *parts in zip(sessions, prompts, committed, shown, strict=True):
        options, cold_logits = block_after(case, *parts)
        calls.append(everything(session, parts[1], **options))
        expected.append(cold_logits)
    assert gap(case.model.forward(calls), torch.cat(expected)) < TOLERANCE
