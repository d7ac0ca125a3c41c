"""Parallel Token Prediction: AR's very tokens whatever the adapter says, and no step too many.

Two kinds of model: tables, whose student is right but for a stated share of its predictions, and
tiny random transformers with random adapters, whose proposals hardly ever stand.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from decoders.ar import Autoregressive
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.drafting.proposer import NOT_GREEDY
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.model import Call, Model
from decoders.core.registry import build, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.testing.table_model import TableModel
from decoders.core.types import MAX_DRAFTS, NO_UNIFORM, Generation, Sampling
from decoders.ptp import ParallelTokenPrediction
from tests import recording

VOCAB = 31
PROMPTS = ([1, 2, 3], [4], [0, 5, 1, 1, 2, 3, 4, 0, 5], [2, 2], [3, 1, 4, 1, 5])
FREE: dict[str, Any] = {"row_cost": 0.0, "budget": 100}  # rows cost nothing: all are asked for
WARPS = [
    Sampling(temperature=temperature, top_k=top_k, top_p=top_p, max_new_tokens=16, seed=5)
    for temperature, top_k, top_p in (
        (0.0, 0, 1.0),
        (0.7, 0, 1.0),
        (0.7, 20, 0.9),
        (1.0, 0, 1.0),
        (1.0, 9, 1.0),
        (1.0, 0, 0.8),
    )
]
SAMPLING = Sampling(temperature=0.7, max_new_tokens=30)
both_variants = pytest.mark.parametrize("variant", ["o-ptp", "c-ptp"])
both_modes = pytest.mark.parametrize("mode", ["sequential", "pqd"])


class Recording(recording.Places):
    """Remembers its calls, where they start and their rows' places; its student is ``ptp``."""

    def __init__(self, error: float, variant: str, vocab_size: int = VOCAB) -> None:
        super().__init__(vocab_size, seed=1, order=2)
        self.attach("ptp", error, variant)  # type: ignore[arg-type]

    def configure(self, **changes: Any) -> None:
        self.adapters["ptp"] = dataclasses.replace(self.adapters["ptp"], **changes)


def decoder_of(mode: str, **options: Any) -> ParallelTokenPrediction:
    """Of a mode; a budget is `pqd`'s alone."""
    if mode == "sequential":
        options.pop("budget", None)
    return ParallelTokenPrediction(mode=mode, **options)  # type: ignore[arg-type]


def answer_of(model: Model, mode: str, sampling: Sampling = SAMPLING, **options: Any) -> Generation:
    return generate(decoder_of(mode, **options), PROMPTS[0], sampling, Models(target=model))


def tokens_of_ar(model: Model, prompt: Sequence[int], sampling: Sampling) -> tuple[int, ...]:
    return generate(Autoregressive(), prompt, sampling, Models(target=model)).tokens


# The same tokens.


@both_variants
@both_modes
@pytest.mark.parametrize("error", [0.0, 0.3, 1.0])
def test_tokens_equal_ars_for_any_share_of_wrong_proposals(
    mode: str, variant: str, error: float
) -> None:
    model, decoder = Recording(error, variant), decoder_of(mode)
    models = Models(target=model)
    for number, sampling in enumerate(WARPS):
        together = Scheduler(decoder, models, sampling, 5).run(PROMPTS)
        for prompt, answer in zip(PROMPTS, together, strict=True):
            assert isinstance(answer, Generation)
            assert answer.tokens == tokens_of_ar(model, prompt, sampling)
        alone = number % len(PROMPTS)
        assert generate(decoder, PROMPTS[alone], sampling, models) == together[alone]


@functools.cache
def transformer(variant: str, name: str) -> HFModel:
    """A random model with a random adapter."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "initializer_range": 0.3}
    if name == "gpt2":
        config = GPT2Config(**sizes, n_positions=64, n_embd=16, n_layer=2, n_head=2)
        module: Any = GPT2LMHeadModel(config)
    else:
        sizes |= {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 64}
        module = LlamaForCausalLM(
            LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, pad_token_id=None)
        )
    adapter = SlotAdapter(
        AdapterConfig(
            variant=variant,  # type: ignore[arg-type]
            num_slots=5,
            layers=layer_shapes(module),
            width=16,
            rank=3,
            anchored=name == "gpt2",
            numbered=name == "gpt2",
            greedy=True,
        )
    )
    generator = torch.Generator().manual_seed(1)
    for high in adapter.lora_b.values():
        high.data = torch.randn(high.shape, generator=generator)
    model = HFModel(module)
    model.attach("ptp", adapter)
    return model


@both_variants
@both_modes
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("sampling", [WARPS[0], WARPS[2], WARPS[3]])
def test_tokens_of_transformers_with_random_adapters_equal_ars(
    name: str, mode: str, variant: str, sampling: Sampling
) -> None:
    model = transformer(variant, name)
    models, decoder = Models(target=model), decoder_of(mode, row_cost=0.0, budget=12)
    sampling = dataclasses.replace(sampling, max_new_tokens=12)
    reference = Scheduler(Autoregressive(), models, sampling, 5).run(PROMPTS)
    together = Scheduler(decoder, models, sampling, 5).run(PROMPTS)
    alone = generate(decoder, PROMPTS[2], sampling, models)
    for expected, answer in zip([*reference, reference[2]], [*together, alone], strict=True):
        assert isinstance(expected, Generation)
        assert isinstance(answer, Generation)
        assert answer.tokens == expected.tokens
        assert sum(step.drafted for step in answer.steps) > 0


# As few steps as there can be.


@both_variants
@pytest.mark.parametrize("slots", [2, 3, 6])
@pytest.mark.parametrize("sampling", [WARPS[0], WARPS[1], WARPS[5]])
def test_a_perfect_student_needs_no_step_more_than_its_slots_allow(
    variant: str, slots: int, sampling: Sampling
) -> None:
    model = Recording(0.0, variant)
    proposed = slots - 1 if variant == "o-ptp" else slots
    for length in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 15, 24):
        sampling = dataclasses.replace(sampling, max_new_tokens=length)
        # prefill 1; then a proposal and the verifying call's token, in later rounds also the
        # token of the call that proposes
        answer = answer_of(model, "sequential", sampling, slots=slots, **FREE)
        later = math.ceil(max(0, length - 2 - proposed) / (proposed + 2))
        assert len(answer.steps) == 1 + (length > 1) + later
        assert max(len(step.tokens) for step in answer.steps) <= proposed + 2
        # every round verifies a whole proposal and adds its own token
        answer = answer_of(model, "pqd", sampling, slots=slots, **FREE)
        assert len(answer.steps) == 1 + math.ceil((length - 1) / (proposed + 1))
        assert all(step.target_calls == 1 for step in answer.steps)


@both_modes
def test_no_draft_of_an_always_wrong_student_is_accepted(mode: str) -> None:
    answer = answer_of(Recording(1.0, "o-ptp"), mode, **FREE)
    assert sum(step.drafted for step in answer.steps) > 50
    assert sum(step.accepted for step in answer.steps) == 0
    sizes = {len(step.tokens) for step in answer.steps[2:-1]}
    assert sizes == {2 if mode == "sequential" else 1}  # the proposing call gives a token too


# Where answers end.


@both_variants
@both_modes
@pytest.mark.parametrize("error", [0.0, 0.4])
def test_budgets_and_stop_tokens_end_answers_at_every_place_of_a_round(
    mode: str, variant: str, error: float
) -> None:
    model = Recording(error, variant, vocab_size=97)
    tokens = tokens_of_ar(model, PROMPTS[0], SAMPLING)
    for place, token in enumerate(tokens[:17]):
        short = dataclasses.replace(SAMPLING, max_new_tokens=place + 1)
        answer = answer_of(model, mode, short, row_cost=0.0)
        assert (answer.tokens, answer.stop) == (tokens[: place + 1], "length")
        stopped = dataclasses.replace(SAMPLING, stop_ids=frozenset({token}))
        answer = answer_of(model, mode, stopped, row_cost=0.0)
        assert (answer.tokens, answer.stop) == (tokens[: tokens.index(token) + 1], "eos")


@both_variants
def test_a_step_that_a_stop_token_cuts_accepts_only_drafts_that_are_emitted(variant: str) -> None:
    model = Recording(0.0, variant, vocab_size=97)
    whole = answer_of(model, "sequential", row_cost=0.0)
    num_cut = 0
    for token in dict.fromkeys(whole.tokens):
        stopped = dataclasses.replace(SAMPLING, stop_ids=frozenset({token}))
        steps = answer_of(model, "sequential", stopped, row_cost=0.0).steps
        cut, full = steps[-1], whole.steps[len(steps) - 1]
        # the token of the call that proposed stands before the drafts, the bonus behind them
        before = len(full.tokens) - full.accepted - 1
        assert cut.accepted == max(0, min(full.accepted, len(cut.tokens) - before))
        num_cut += before == 1 and cut.accepted < full.accepted
    assert num_cut > 3


@both_variants
@both_modes
def test_an_answer_of_one_token_is_one_call_without_slots(mode: str, variant: str) -> None:
    model = Recording(0.0, variant)
    answer = answer_of(model, mode, dataclasses.replace(SAMPLING, max_new_tokens=1))
    assert len(answer.steps) == len(model.seen) == 1
    assert model.seen[0][1].slots is None


# What calls carry.


def branches_of(call: Call) -> Iterator[tuple[int, int, list[int]]]:
    """Of every branch with slots: the token row before it, its anchor, its slots."""
    assert call.slots is not None
    sizes, slot = call.slots.sizes, 0
    rows = range(len(sizes)) if len(sizes) > 1 else [len(call.tokens) - 1]
    for row, size, anchor in zip(rows, sizes, call.slots.anchors, strict=True):
        if size:
            yield row, anchor, [*range(slot, slot + size)]
        slot += size
    assert slot == len(call.slots.uniforms)


@both_variants
@both_modes
@pytest.mark.parametrize("error", [0.0, 0.3])
def test_slots_carry_the_uniforms_anchors_and_places_of_the_tokens_that_they_predict(
    mode: str, variant: str, error: float
) -> None:
    model = Recording(error, variant)
    answer_of(model, mode, **FREE)
    uniforms, lead = Uniforms(SAMPLING.seed, PROMPTS[0]), int(variant == "o-ptp")
    branching = 0
    for start, call, places in model.seen:
        if call.slots is None:
            continue
        read = []
        for row, anchor, slots in branches_of(call):
            assert anchor == call.tokens[row]
            read += slots[lead:]
            # slot s: u of the s-th output after the anchor; O-PTP predicts that, C-PTP the next
            output = start + row + 1 - len(PROMPTS[0])
            expected = [uniforms.at("draw", output + s) for s in range(len(slots))]
            assert [call.slots.uniforms[slot] for slot in slots] == expected
            first = start + row + 1 - lead
            at = [places[len(call.tokens) + slot] for slot in slots]
            assert at == [*range(first, first + len(slots))]
        assert list(call.slots.read) == read
        assert call.slots.output == ("argmax" if lead else "draws")
        assert call.slots.warp == (0.7, 1.0)
        branching += len(call.slots.sizes) > 1
    assert (branching > 0) == (mode == "pqd")


@both_variants
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 12, 33])
@pytest.mark.parametrize("row_cost", [0.0, 0.05])
def test_no_round_exceeds_the_budget_of_slots_and_no_branch_the_slots_option(
    variant: str, budget: int, row_cost: float
) -> None:
    model = Recording(0.3, variant)
    answer_of(model, "pqd", slots=4, budget=budget, row_cost=row_cost)
    lead = int(variant == "o-ptp")
    for start, call, _ in model.seen:
        sizes = () if call.slots is None else call.slots.sizes
        assert all(size == 0 or lead < size <= 4 for size in sizes)
        assert start == 0 or sum(sizes) <= budget
    assert any(call.slots is not None for start, call, _ in model.seen if start) or budget <= lead


@both_variants
@both_modes
def test_no_slot_predicts_a_token_that_is_never_verified(mode: str, variant: str) -> None:
    """The last token of an answer is the verifying call's own."""
    for length in range(1, 16):
        model = Recording(0.0, variant)
        answer_of(model, mode, dataclasses.replace(SAMPLING, max_new_tokens=length), **FREE)
        for _, call, places in model.seen:
            predicted = [place + 1 - len(PROMPTS[0]) for place in places[len(call.tokens) :]]
            assert max(predicted, default=0) < max(1, length - 1)


@both_variants
def test_no_draft_is_verified_beyond_the_budget(variant: str) -> None:
    """A proposal may hold more tokens than are left, once its own call has given one."""
    for length in range(1, 16):
        short = dataclasses.replace(SAMPLING, max_new_tokens=length)
        answer = answer_of(Recording(0.0, variant), "sequential", short, row_cost=0.0)
        left = length
        for step in answer.steps:
            assert step.drafted <= max(0, left - step.num_leading - 1)
            left -= len(step.tokens)


@pytest.mark.slow
@both_variants
def test_a_round_has_no_more_rows_than_the_cache_has_room_for(variant: str) -> None:
    """Sixty branches of up to sixty slots, at the end of an answer: far more than there is room."""
    model = Recording(0.0, variant)
    model.configure(num_slots=64)
    sampling = dataclasses.replace(SAMPLING, max_new_tokens=140)
    answer = answer_of(model, "pqd", sampling, slots=64, row_cost=0.0, budget=4000)
    assert answer.tokens == tokens_of_ar(model, PROMPTS[0], sampling)
    room = len(PROMPTS[0]) + 140 + MAX_DRAFTS + 8
    ends = [start + len(places) for start, _, places in model.seen]
    assert max(ends) in (room - 1, room)  # and all of the room is used


@both_variants
@both_modes
@pytest.mark.parametrize("trained", [True, False])
def test_greedy_slots_are_blank_or_carry_one_half_where_greedy_text_was_not_trained(
    mode: str, variant: str, trained: bool
) -> None:
    model = Recording(0.3, variant)
    model.configure(greedy=trained)
    greedy = dataclasses.replace(SAMPLING, temperature=0.0)
    assert answer_of(model, mode, greedy).tokens == tokens_of_ar(model, PROMPTS[0], greedy)
    carried = {u for _, call, _ in model.seen if call.slots for u in call.slots.uniforms}
    assert carried == {NO_UNIFORM if trained else NOT_GREEDY}
    assert NOT_GREEDY == 0.5


@both_modes
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("measured", [{}, {"survival": [0.9, 0.8], "calibration": [1.0, 0.0]}])
def test_slots_propose_one_token_each_in_c_ptp_and_one_token_fewer_in_o_ptp(
    mode: str, slots: int, measured: dict[str, Any]
) -> None:
    for variant in ("o-ptp", "c-ptp"):
        model = Recording(0.0, variant)
        model.configure(measured=measured)
        answer = answer_of(model, mode, slots=slots, **FREE)
        assert answer.tokens == tokens_of_ar(model, PROMPTS[0], SAMPLING)
        most = max(step.drafted for step in answer.steps)
        assert most == slots - (variant == "o-ptp")


# What was measured decides.


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("trained", [True, False])
def test_calibration_decides_whether_to_draft_and_greedy_text_has_a_separate_calibration(
    temperature: float, trained: bool
) -> None:
    hopeless, certain = [1.0, -30.0], [1.0, 30.0]
    sampling = dataclasses.replace(SAMPLING, temperature=temperature)
    drafted = []
    for sampled, greedy in ((hopeless, certain), (certain, hopeless)):
        model = Recording(0.0, "o-ptp")
        measured = {"calibration": sampled, "greedy_calibration": greedy}
        model.configure(greedy=trained, measured=measured)
        answer = answer_of(model, "sequential", sampling)
        drafted.append(sum(step.drafted for step in answer.steps) > 0)
    of_greedy_text = trained and temperature == 0
    assert drafted == [of_greedy_text, not of_greedy_text]


def test_pqd_gives_all_slots_to_the_expected_branch() -> None:
    for offset, expected in ((-30.0, 0), (30.0, -1)):
        model = Recording(0.0, "o-ptp")
        model.configure(measured={"calibration": [1.0, offset]})
        answer_of(model, "pqd", budget=6)
        sizes = model.seen[1][1].slots
        assert sizes is not None
        assert sum(sizes.sizes) == sizes.sizes[expected] > 1


# One case by its rows, so that a change of what is run does not go unnoticed.

GOLDEN = {
    "sequential": [
        *[(0, 0, 9), (5, 4, 6), (5, 1, 13), (5, 1, 13), (5, 2, 13), (5, 0, 13), (5, 1, 13)],
        *[(5, 3, 13), (2, 0, 7), (0, 0, 2)],
    ],
    "pqd": [
        *[(0, 0, 9), (5, 4, 18), (0, 0, 7), (5, 1, 17), (0, 0, 7), (5, 1, 18), (1, 1, 14)],
        *[(5, 1, 18), (1, 1, 14), (5, 2, 18), (0, 0, 7), (5, 3, 16), (0, 0, 4), (2, 0, 5)],
        (1, 1, 2),
    ],
}


@both_modes
def test_drafted_accepted_and_rows_of_every_step_equal_golden_values(mode: str) -> None:
    model = Recording(0.3, "o-ptp")
    model.configure(measured={"calibration": [1.0, -1.5]})  # doubt spreads slots over branches
    steps = answer_of(model, mode, budget=12).steps
    assert [(step.drafted, step.accepted, step.target_rows) for step in steps] == GOLDEN[mode]
    if mode == "pqd":
        rounds = [call.slots.sizes for start, call, _ in model.seen if start and call.slots]
        assert rounds[:4] == [(6, 0, 0, 0, 0, 6), (6,), (6, 0, 0, 0, 0, 5), (6,)]


# Options.


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("slots=-1", r"'slots' of decoder 'ptp' is -1; it must be 0 \(the adapter's\) or above"),
        ("budget=0", "'budget' of decoder 'ptp' is 0; it must be 1 or above"),
        ("row_cost=-0.1", "'row_cost' of decoder 'ptp' is -0.1; it must be 0 or above"),
        ("mode=both", "sequential, pqd"),
    ],
)
def test_an_option_out_of_range_is_refused_with_the_allowed_values(
    option: str, allowed: str
) -> None:
    with pytest.raises(ValueError, match=allowed):
        build(parse_spec(f"ptp:{option}"))


def test_a_model_without_the_adapter_is_refused_with_the_names_of_its_adapters() -> None:
    with pytest.raises(ValueError, match=r"needs an adapter named 'mine'.*which has ptp"):
        Scheduler(
            build(parse_spec("ptp:adapter=mine")), Models(target=Recording(0, "o-ptp")), SAMPLING
        )


@pytest.mark.parametrize("mode", ["sequential", "pqd"])
@pytest.mark.parametrize("error", [0.0, 0.3, 1.0])
def test_standalone_adapters_give_ars_tokens(
    mode: Literal["sequential", "pqd"], error: float
) -> None:
    model = TableModel(7, seed=1)
    model.attach("ptp", error, standalone=True)
    models = Models(target=model)
    for temperature, seed, budget in itertools.product((0.0, 0.7, 1.0), range(4), (1, 2, 3, 7, 25)):
        sampling = Sampling(temperature=temperature, top_p=0.9, max_new_tokens=budget, seed=seed)
        expected = generate(Autoregressive(), [1, 2, 3], sampling, models)
        found = generate(ParallelTokenPrediction(mode=mode), [1, 2, 3], sampling, models)
        assert found.tokens == expected.tokens
        if error == 0.0:
            assert all(step.accepted == step.drafted for step in found.steps)


def test_a_standalone_proposal_is_a_call_of_slots_only() -> None:
    model = TableModel(7, seed=1)
    model.attach("ptp", 0.0, standalone=True)
    sampling = Sampling(temperature=0.7, max_new_tokens=15, seed=1)
    answer = generate(ParallelTokenPrediction(), [1, 2, 3], sampling, Models(target=model))
    first, second, *_ = answer.steps
    assert (first.target_calls, first.target_rows) == (1, 3)
    assert (second.target_calls, second.target_rows, second.drafted) == (2, 13, 6)
