"""Iterative refinement, and one pass of it: how calls are laid out, and what comes out of them."""

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.ar import Autoregressive
from decoders.core import masks
from decoders.core.decoder import Decoder
from decoders.core.drafting.refinement import MaskBlock
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.registry import build, parse_spec
from decoders.core.sampling import Uniforms, pick, warp
from decoders.core.testing.table_model import TableModel
from decoders.core.token_reads import _rate_confidence
from decoders.core.types import MASKED, NO_UNIFORM, Generation, Sampling
from decoders.idlm import Refinement
from decoders.isd import StridedDecoding
from decoders.nar import NonAutoregressive
from tests import recording

PROMPTS = ([1, 2, 3], [4], [0, 5, 1, 1, 2, 3, 4, 0, 5], [2, 2], [3, 1, 4, 1, 5])
GREEDY = Sampling(max_new_tokens=40)
WARM = Sampling(temperature=0.9, max_new_tokens=40, seed=2)
both_samplings = pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])


class Recording(recording.Places):
    """Remembers its calls, the length of the cache when they came, and their rows' places."""

    def __init__(self, error: float = 0.3, vocab_size: int = 31, scale: float = 2.0) -> None:
        super().__init__(vocab_size, seed=1, scale=scale)
        self.attach("refine", error, "refine")


def refine(**options: Any) -> Refinement:
    """Whole blocks on a schedule, unless told otherwise."""
    plain = {"commit": "quota", "revise": "edit", "prefix": "block", "tail": "fill"}
    return Refinement(**{**plain, **options})


def answer_of(decoder: Decoder, model: TableModel, sampling: Sampling = GREEDY) -> Generation:
    return generate(decoder, PROMPTS[0], sampling, Models(target=model))


class Nearsighted(Recording):
    """Its student is wrong in half of the slots whose own place is a mask, and never elsewhere."""

    def _predict(self, slots: Any, slot: int, rows: Any) -> Tensor:
        sees = bool(slots.slot_tokens) and slots.slot_tokens[slot] != MASKED
        self.errors["refine"] = 0.0 if sees else 0.5
        return super()._predict(slots, slot, rows)


def agreement(decoder: Decoder) -> float:
    """Share of tokens that are what the target says after the tokens before them."""
    right, sampling = [], dataclasses.replace(GREEDY, max_new_tokens=64)
    for prompt in PROMPTS:
        model = Nearsighted(vocab_size=997)  # so large that greedy text does not go in circles
        tokens = generate(decoder, prompt, sampling, Models(target=model)).tokens
        for place, token in enumerate(tokens):
            distribution = model.logits([*prompt, *tokens[:place]])
            right.append(int(distribution.argmax()) == token)
    return sum(right) / len(right)


# The layout of calls.


@both_samplings
def test_each_block_gets_all_its_passes_and_is_committed_by_the_next_blocks_first_call(
    sampling: Sampling,
) -> None:
    model, prompt = Recording(), PROMPTS[0]
    answer = answer_of(refine(block=8, max_passes=3, early_exit=False), model, sampling)
    assert len(model.seen) == len(answer.steps) == 3 * 5  # no call only commits
    committed: list[int] = []
    done = list(answer.tokens)
    for number, (length, call, places) in enumerate(model.seen):
        block, done_passes = divmod(number, 3)
        start = len(prompt) + 8 * block
        slots = call.slots
        assert slots is not None
        if done_passes == 0:  # all masks: the first token is this very call's
            fed = prompt if not block else done[8 * (block - 1) : 8 * block]
            assert list(call.tokens) == fed
            assert slots.slot_tokens == ()
            assert length == start - len(fed)
        else:
            assert call.tokens == ()
            assert length == start
            assert slots.slot_tokens[0] == done[8 * block]
            assert MASKED in slots.slot_tokens
        assert slots.uniforms == (NO_UNIFORM,) * 8
        assert slots.read == tuple(range(7))
        assert slots.output == ("argmax" if sampling.greedy else "draws")
        assert places == tuple(range(length, start + 8))
        assert call.mask is not None
        assert torch.equal(call.mask, masks.block(8, stem=len(call.tokens)))
        committed += call.tokens
    assert committed == [*prompt, *done[:32]]


@both_samplings
def test_the_first_token_of_a_block_is_ars_token_and_is_emitted_at_once(sampling: Sampling) -> None:
    model, prompt = Recording(), PROMPTS[0]
    answer = answer_of(refine(block=8, max_passes=3, early_exit=False), model, sampling)
    for block in range(5):
        steps = answer.steps[3 * block : 3 * block + 3]
        assert [len(step.tokens) for step in steps] == [1, 0, 7]
        assert [step.passes for step in steps] == [0, 0, 3]
        assert [step.target_calls for step in steps] == [1, 1, 1]
    one = dataclasses.replace(sampling, max_new_tokens=1)
    expected = generate(Autoregressive(), prompt, one, Models(target=model))
    assert answer.tokens[:1] == expected.tokens


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 17])
def test_the_last_block_is_cut_to_the_remaining_budget(length: int) -> None:
    model = Recording()
    sampling = dataclasses.replace(GREEDY, max_new_tokens=length)
    assert len(answer_of(refine(block=8, max_passes=2), model, sampling).tokens) == length
    last = max(place for _, _, places in model.seen for place in places)
    assert last < len(PROMPTS[0]) + length


@pytest.mark.parametrize(
    ("length", "block", "calls"),
    [
        (400, 400, 1),
        (400, 100, 4),
        (400, 16, 25),
        pytest.param(2000, 2000, 1, marks=pytest.mark.slow),
    ],
)
def test_nar_takes_one_call_per_block_for_any_answer_length(
    length: int, block: int, calls: int
) -> None:
    long = dataclasses.replace(GREEDY, max_new_tokens=length)
    answer = answer_of(NonAutoregressive(block=block), Recording(), long)
    assert len(answer.tokens) == length
    assert sum(step.target_calls for step in answer.steps) == calls


# What comes out.


@both_samplings
@pytest.mark.parametrize("block", [1, 2, 5, 16])
def test_refinement_in_one_pass_equals_naive_nar(block: int, sampling: Sampling) -> None:
    one = answer_of(refine(block=block, max_passes=1), Recording(), sampling)
    naive = answer_of(NonAutoregressive(block=block), Recording(), sampling)
    assert one == naive


@pytest.mark.parametrize("revise", ["none", "edit", "remask"])
@pytest.mark.parametrize("commit", ["cmlm", "quota", "threshold", "threshold+quota"])
def test_a_perfect_student_gives_ars_greedy_tokens_in_any_number_of_passes(
    commit: str, revise: str
) -> None:
    expected = answer_of(Autoregressive(), Recording()).tokens
    for passes, confidence in ((0, "margin"), (2, "prob"), (3, "neg_entropy"), (20, "prob")):
        decoder = refine(
            block=6, max_passes=passes, commit=commit, revise=revise, confidence=confidence
        )
        assert answer_of(decoder, Recording(0.0)).tokens == expected


def test_a_perfect_student_gives_ars_greedy_tokens_in_one_pass_and_a_threshold_ends_there() -> None:
    model = Recording(0.0)
    expected = answer_of(Autoregressive(), model).tokens
    assert answer_of(NonAutoregressive(), model).tokens == expected
    sure = answer_of(refine(commit="threshold", threshold=0.0, max_passes=0), Recording(0.0))
    assert sure.tokens == expected
    assert [step.passes for step in sure.steps] == [1, 1, 1]


def test_a_running_prefix_is_fed_as_tokens_and_the_rest_is_predicted_again() -> None:
    model, prompt = Recording(0.5), PROMPTS[0]
    answer = answer_of(refine(block=8, max_passes=4, prefix="running"), model)
    fed: list[int] = []
    ends = set()
    for length, call, places in model.seen:
        fed += call.tokens
        assert length == len(fed) - len(call.tokens)  # no token is fed twice, none is left out
        slots = len(places) - len(call.tokens)
        assert places == tuple(range(length, length + len(places)))
        if call.slots is not None:
            assert call.slots.slot_tokens == () or call.slots.slot_tokens[0] == MASKED
        ends.add(len(fed) + slots - len(prompt))
    assert fed == [*prompt, *answer.tokens][: len(fed)]
    assert ends == {8, 16, 24, 32, 40}  # slots reach to the end of their block and no further


@pytest.mark.parametrize("prefix", ["block", "running"])
def test_slots_are_anchored_at_the_last_final_token_before_them(prefix: str) -> None:
    model = Recording()
    answer = answer_of(refine(block=5, prefix=prefix, max_passes=3), model)
    text, anchored = [*PROMPTS[0], *answer.tokens], 0
    for _, call, places in model.seen:
        if call.slots is not None:
            assert call.slots.anchors == (text[places[len(call.tokens)] - 1],)
            anchored += not call.tokens
    assert anchored or prefix == "running"  # later passes of a block feed no token


@both_samplings
def test_with_a_running_prefix_an_always_wrong_student_gives_ars_tokens_one_per_step(
    sampling: Sampling,
) -> None:
    for prompt in PROMPTS:
        model = Recording(1.0)  # a student that is never right
        models = Models(target=model)
        decoder = Refinement(threshold=1.0)
        found = generate(decoder, prompt, sampling, models)
        assert found.tokens == generate(Autoregressive(), prompt, sampling, models).tokens
        assert all(len(step.tokens) == 1 for step in found.steps)


def test_a_deferred_tail_begins_the_next_block() -> None:
    model = Recording(0.5)
    decoder = Refinement(block=8, max_passes=2, threshold=0.4)
    answer = answer_of(decoder, model)
    passes = [step.passes for step in answer.steps]
    assert set(passes) <= {0, 1, 2}
    blocks: list[int] = []
    length = 0
    for step in answer.steps:
        length += len(step.tokens)
        if step.passes:
            blocks.append(length)
            length = 0
    assert sum(blocks) == len(answer.tokens)
    assert 1 < min(blocks) < 8


class Doubtful(Recording):
    """Slots whose distributions are known and spread out.

    What is surest depends on the distribution one asks.
    """

    def distribution(self, place: int) -> Tensor:
        """Logits of what stands at a place."""
        return TableModel(31, seed=place).logits([place]) * 2

    def _predict(self, slots: Any, slot: int, rows: Any) -> Tensor:
        call = rows._call
        return self.distribution(call.row_positions()[len(call.tokens) + slot] + 1)


@pytest.mark.parametrize("temperature", [0.4, 1.6])
@pytest.mark.parametrize("confidence", ["prob", "margin", "neg_entropy"])
def test_sampled_refinement_keeps_the_surest_tokens_under_the_warped_distribution(
    temperature: float, confidence: str
) -> None:
    """A slot draws with the uniform of the place it predicts, from its own warped distribution."""
    prompt = PROMPTS[0]
    decoder = refine(block=8, max_passes=2, revise="none", confidence=confidence)
    for seed in range(6):
        model = Doubtful()
        sampling = Sampling(temperature=temperature, top_k=9, max_new_tokens=8, seed=seed)
        answer_of(decoder, model, sampling)
        uniforms, found = Uniforms(seed, prompt), {}
        for output in range(1, 8):
            distribution = warp(model.distribution(len(prompt) + output)[None], sampling)
            token = pick(
                distribution, torch.tensor([uniforms.at("draw", output)], dtype=torch.float64)
            )
            sure = float(_rate_confidence(distribution, token, confidence))  # type: ignore[arg-type]
            found[output] = (int(token), sure)
        surest = sorted(found, key=lambda output: -found[output][1])[:4]  # 7 masks, 3 are left
        kept = [found[output][0] if output in surest else MASKED for output in range(1, 8)]
        _, (_, call, _) = model.seen
        assert call.slots is not None
        assert list(call.slots.slot_tokens[1:]) == kept


@both_samplings
@pytest.mark.parametrize(
    "rules", [{}, {"prefix": "running", "commit": "threshold", "threshold": 0.2}]
)
def test_steps_record_the_pass_that_decided_each_token(
    rules: dict[str, Any], sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, blocks = Recording(), list[MaskBlock]()

    def made(*args: Any) -> MaskBlock:
        blocks.append(MaskBlock(*args))
        return blocks[-1]

    monkeypatch.setattr("decoders.idlm.MaskBlock", made)
    answer = answer_of(refine(block=8, max_passes=3, revise="none", **rules), model, sampling)
    passes = 0
    for step, (_, call, _) in zip(answer.steps, model.seen, strict=True):
        passes += 1
        assert len(step.decided) == len(step.tokens)
        assert set(step.decided) <= {*range(passes + 1)}
        if step.tokens and call.tokens:  # this call gave the first of its tokens itself
            assert step.decided[0] == 0
        passes = 0 if step.passes else passes
    said = [decided for step in answer.steps for decided in step.decided]
    assert {0, 1, 2} <= {*said}
    expected = [decided for block in blocks for decided in block.decided[: len(block.tokens)]]
    assert said == expected[: len(said)]


@pytest.mark.slow
def test_more_passes_bring_tokens_nearer_to_the_target() -> None:
    """Where the first pass was wrong a later one, which sees neighbours, may be right."""
    found = [agreement(refine(max_passes=passes, revise="none")) for passes in (1, 2, 4, 15)]
    assert found == sorted(found)
    assert found[0] + 0.2 < found[1] < found[3] - 0.1
    running = agreement(refine(max_passes=4, revise="none", prefix="running"))
    assert running > found[2] + 0.02


# One pass, three kinds of length.


def nar(**options: Any) -> NonAutoregressive:
    return NonAutoregressive(**options)


def stopping(token_at: int, error: float = 0.0) -> tuple[Recording, Sampling, tuple[int, ...]]:
    """A model, a sampling that stops at AR's token of a place, and AR's answer."""
    model = Recording(error, vocab_size=97, scale=12.0)
    tokens = answer_of(Autoregressive(), model).tokens
    assert tokens.index(tokens[token_at]) == token_at
    sampling = dataclasses.replace(GREEDY, stop_ids=frozenset({tokens[token_at]}))
    return model, sampling, tokens[: token_at + 1]


@pytest.mark.parametrize("length", ["eos", "predicted", "oracle"])
def test_a_perfect_student_ends_where_ar_does_under_every_length_option(length: str) -> None:
    model, sampling, expected = stopping(11)
    assert answer_of(nar(length=length, block=7), model, sampling).tokens == expected


def test_the_length_oracle_uses_ars_length_and_its_calls_are_counted() -> None:
    model, sampling, expected = stopping(11, error=0.5)
    answer = answer_of(nar(length="oracle", block=5), model, sampling)
    assert len(answer.tokens) == len(expected)
    assert answer.tokens[-1] == expected[-1]
    assert sum(step.target_calls for step in answer.steps) == 12 + 3
    assert answer.steps[0].target_calls == 1  # AR's further calls are calls of decoding


def test_a_predicted_length_is_where_a_stop_token_most_likely_comes_first() -> None:
    class Endings(Recording):
        """Stop token 0 at stated chances, all else on token 3."""

        def _predict(self, slots: Any, slot: int, rows: Any) -> Tensor:
            chance = (0.2, 0.45, 0.3, 0.6, 0.1)[slot % 5]
            distribution = torch.full((31,), 1e-9)
            distribution[0], distribution[3] = chance, 1 - chance
            return distribution.log()

    sampling = Sampling(max_new_tokens=6, stop_ids=frozenset({0}))
    # first stop at slot 1: .8 * .45 = .36 is likelier than at slot 3: .8 * .55 * .7 * .6 = .18
    found = answer_of(nar(length="predicted", block=6), Endings(), sampling)
    assert found.tokens[1:] == (3, 0)
    # alone each position would say stop only at slot 3
    assert answer_of(nar(block=6), Endings(), sampling).tokens[1:] == (3, 3, 3, 0)


def test_nar_may_take_the_likeliest_tokens_at_any_temperature() -> None:
    model = Recording()
    answer_of(nar(picks="argmax"), model, WARM)
    assert {call.slots.output for _, call, _ in model.seen if call.slots} == {"argmax"}


def test_long_prompts_run_in_chunks_and_the_last_chunk_carries_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [[(token * length) % 7 for token in range(length)] for length in (50, 3, 33, 16)]
    for decoder in (nar(block=6), refine(block=6, max_passes=3)):
        monkeypatch.setattr("decoders.core.engine.forward.PREFILL_CHUNK", 512)
        whole = Scheduler(decoder, Models(target=Recording()), WARM, 4).run(prompts)
        monkeypatch.setattr("decoders.core.engine.forward.PREFILL_CHUNK", 16)
        model = Recording()
        assert Scheduler(decoder, Models(target=model), WARM, 4).run(prompts) == whole
        assert max(call.num_rows for _, call, _ in model.seen) <= 16 + 6
        for _, call, _ in model.seen:
            if call.slots is not None:
                block = masks.block(len(call.slots.uniforms), stem=len(call.tokens))
                assert call.mask is not None
                assert torch.equal(call.mask, block)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "'block' of decoder 'idlm' is 0; it must be 1 or above"),
        ({"max_passes": -1}, "'max_passes' of decoder 'idlm' is -1"),
        ({"threshold": 1.5}, "'threshold' of decoder 'idlm' is 1.5; it must be from 0 to 1"),
        ({"edit_threshold": -0.1}, "'edit_threshold' of decoder 'idlm' is -0.1"),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refine(**options)


def test_the_adapter_is_named_after_the_mode_unless_an_option_names_another() -> None:
    assert refine().adapter_name == "refine"
    assert StridedDecoding().adapter_name == "isd"
    assert StridedDecoding(adapter="mine").adapter_name == "mine"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "idlm:stride=9",
            "unknown option 'stride' of decoder 'idlm'; allowed: mode, block, max_passes, commit, "
            "schedule, threshold, revise, edit_threshold, confidence, early_exit, prefix, tail, "
            "adapter",
        ),
        (
            "idlm:mode=isd:block=8",
            "unknown option 'block' of decoder 'idlm'; allowed: mode, stride, branches, verify, "
            "proposal, lenience, top, adapter",
        ),
        (
            "ptp:budget=5",
            "option 'budget' of decoder 'ptp' is 5, but it belongs to mode=pqd, not to "
            "mode=sequential",
        ),
        (
            "idlm:schedule=cosine",
            "option 'schedule' of decoder 'idlm' is cosine, but it belongs to "
            "commit=threshold+quota or commit=quota or commit=cmlm, not to commit=threshold, which "
            "reads threshold",
        ),
        (
            "idlm:commit=quota:threshold=0.5",
            "option 'threshold' of decoder 'idlm' is 0.5, but it belongs to commit=threshold or "
            "commit=threshold+quota, not to commit=quota, which reads schedule",
        ),
        (
            "idlm:revise=none:edit_threshold=0.5",
            "option 'edit_threshold' of decoder 'idlm' is 0.5, but it belongs to revise=remask or "
            "revise=edit, not to revise=none",
        ),
        (
            "idlm:mode=isd:lenience=0.9",
            "option 'lenience' of decoder 'isd' is 0.9, but it belongs to verify=relaxed, not to "
            "verify=rejection",
        ),
    ],
)
def test_an_option_of_another_mode_is_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build(parse_spec(spec))


def test_jacobi_is_refused_as_a_mode_of_idlm() -> None:
    with pytest.raises(ValueError, match="allowed: refine, isd; 'jacobi' is a decoder of its own"):
        build(parse_spec("idlm:mode=jacobi"))
    with pytest.raises(ValueError, match=r"must be refine \(isd is the decoder `isd`\)"):
        Refinement(mode="jacobi")  # type: ignore[arg-type]
