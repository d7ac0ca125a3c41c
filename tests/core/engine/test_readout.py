"""What is read of a call: the output position a row predicts, whose uniform draws it, its form."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from decoders.core.engine.forms import follow
from decoders.core.engine.readout import joined, read_out
from decoders.core.engine.reads import Readout, readouts
from decoders.core.model import Call
from decoders.core.outputs import Chain
from decoders.core.sampling import Uniforms, pick, warp
from decoders.core.testing.table_model import TableModel
from decoders.core.token_reads import _rate_confidence
from decoders.core.types import Acceptance, AcceptanceRule, CallResult, Output, Sampling, Slots

VOCAB, PROMPT = 11, 5
SAMPLING = Sampling(temperature=0.7, top_k=6, top_p=0.9)
UNIFORMS = Uniforms(3, range(PROMPT))


def make_call(
    tokens: int,
    *,
    length: int,
    read: tuple[int, ...],
    output: Output = "picks",
    slots: Slots | None = None,
    positions: list[int] | None = None,
) -> Call:
    """A call after `length` committed tokens of a prompt of 5."""
    model = TableModel(VOCAB)
    model.reserve(1, 100)
    session = model.open()
    session.length = length
    return session.call(
        [1] * tokens,
        read=read,
        output=output,
        slots=slots,
        positions=positions,  # type: ignore[arg-type]
    )


def make_slots(count: int, read: tuple[int, ...], output: str = "argmax") -> Slots:
    return Slots(
        adapter="ptp",
        uniforms=(0.5,) * count,
        sizes=(count,),
        anchors=(1,),
        read=read,
        output=output,  # type: ignore[arg-type]
    )


def logits_of(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def drawn(logits: Tensor, outputs: list[int], uniforms: Uniforms = UNIFORMS) -> list[int]:
    """Row by row, each with the uniform of the output position it predicts."""
    found = []
    for row, output in zip(logits, outputs, strict=True):
        u = torch.tensor([uniforms.at("draw", output)], dtype=torch.float64)
        found.append(int(pick(warp(row[None], SAMPLING), u)))
    return found


# Which output position a row predicts.


def test_the_prompts_last_row_predicts_output_zero() -> None:
    (tokens,) = readouts(make_call(5, length=0, read=(4,)), UNIFORMS, PROMPT)
    assert list(tokens.outputs) == [0]


def test_rows_after_the_prompt_each_predict_the_next_output() -> None:
    (tokens,) = readouts(make_call(4, length=7, read=(0, 2, 3)), UNIFORMS, PROMPT)
    assert list(tokens.outputs) == [3, 5, 6]


def test_explicit_positions_decide_which_outputs_token_rows_predict() -> None:
    """Two branches of a tree share positions, so they share uniforms, whatever their rows are."""
    call = make_call(4, length=7, read=(0, 1, 2, 3), positions=[7, 8, 8, 9])
    (tokens,) = readouts(call, UNIFORMS, PROMPT)
    assert list(tokens.outputs) == [3, 4, 4, 5]
    logits = 0.1 * logits_of(1).expand(4, VOCAB)
    (result,) = read_out(logits, [tokens], SAMPLING)
    assert result.picks == tuple(drawn(logits, [3, 4, 4, 5]))
    assert len(set(result.picks)) > 1


def test_the_first_slot_predicts_the_same_output_position_as_the_last_token() -> None:
    call = make_call(2, length=7, read=(1,), slots=make_slots(4, (0, 2, 3)))
    tokens, slots = readouts(call, UNIFORMS, PROMPT)
    assert (list(tokens.outputs), list(slots.outputs)) == ([4], [4, 6, 7])
    assert (tokens.forms, slots.forms) == (("picks",), ("argmax",))


def test_explicit_positions_decide_which_outputs_tokens_and_slots_predict() -> None:
    positions = [7, 8, 9, 8, 9, 10, 11]  # three tokens, branches of slots after the first and third
    call = make_call(3, length=7, read=(0, 2), slots=make_slots(4, (1, 2, 3)), positions=positions)
    tokens, slots = readouts(call, UNIFORMS, PROMPT)
    assert (list(tokens.outputs), list(slots.outputs)) == ([3, 5], [5, 6, 7])


@pytest.mark.parametrize("length", [0, 7])
def test_explicit_positions_equal_to_the_default_change_nothing(length: int) -> None:
    slots = make_slots(4, (0, 1, 3))
    num_tokens = PROMPT if not length else 3
    plain = make_call(num_tokens, length=length, read=(num_tokens - 1,), slots=slots)
    placed = dataclasses.replace(plain, positions=plain.row_positions())
    for one, other in zip(
        readouts(plain, UNIFORMS, PROMPT), readouts(placed, UNIFORMS, PROMPT), strict=True
    ):
        assert list(one.outputs) == list(other.outputs)


def test_rows_inside_the_prompt_may_be_read_where_no_uniform_is_needed() -> None:
    call = make_call(5, length=0, read=(0, 4), output="argmax", positions=[0, 1, 2, 3, 4])
    (tokens,) = readouts(call, UNIFORMS, PROMPT)
    assert list(tokens.outputs) == [-4, 0]
    logits = logits_of(2)
    (result,) = read_out(logits, [tokens], SAMPLING)
    assert result.picks == tuple(logits.argmax(-1).tolist())


# In what form.


def readout_of(outputs: list[int], output: str, uniforms: Uniforms = UNIFORMS) -> Readout:
    call = make_call(1, length=PROMPT, read=(0,))
    return Readout(call, uniforms, (output,), outputs)


def test_draws_are_picks_of_the_warped_distribution_with_their_probability() -> None:
    logits, outputs = logits_of(4), [0, 5, 6, 300]
    (result,) = read_out(logits, [readout_of(outputs, "draws")], SAMPLING)
    assert result.picks == tuple(drawn(logits, outputs))
    distribution = warp(logits, SAMPLING)
    expected = [float(distribution[row, token]) for row, token in enumerate(result.picks)]
    assert result.confidences == pytest.approx(expected)
    assert result.probs is None


def test_argmax_confidences_are_unwarped_probabilities() -> None:
    logits = logits_of(3)
    (result,) = read_out(logits, [readout_of([0, 1, 2], "argmax")], SAMPLING)
    assert result.picks == tuple(logits.argmax(-1).tolist())
    probabilities = [max(math.exp(x) for x in row) / sum(map(math.exp, row)) for row in logits]
    assert result.confidences == pytest.approx(probabilities)


def test_greedy_draws_are_the_likeliest_tokens_with_their_unwarped_probabilities() -> None:
    logits = logits_of(3)
    draws, argmax, picks = (
        read_out(logits, [readout_of([0, 1, 2], output)], Sampling())[0]
        for output in ("draws", "argmax", "picks")
    )
    assert draws.picks == argmax.picks == picks.picks == tuple(logits.argmax(-1).tolist())
    assert draws.confidences == argmax.confidences
    assert max(draws.confidences) < 1


def test_greedy_decoding_looks_up_no_uniform() -> None:
    class Refusing(Uniforms):
        def at(self, stream: str, position: int) -> float:  # type: ignore[override]
            raise AssertionError("greedy decoding looked up a uniform")

    parts = [
        readout_of([0, 1], output, Refusing(0, [1]))
        for output in ("picks", "draws", "argmax", "probs")
    ]
    for result in read_out(logits_of(8), parts, Sampling()):
        assert len(result.picks) == 2


def test_each_sequence_is_drawn_with_its_own_uniforms() -> None:
    other = Uniforms(4, [9])
    logits = logits_of(1).expand(20, VOCAB)
    outputs = list(range(10))
    results = read_out(
        logits,
        [readout_of(outputs, "draws"), readout_of(outputs, "draws", other)],
        SAMPLING,
    )
    assert results[0].picks == tuple(drawn(logits[:10], outputs))
    assert results[1].picks == tuple(drawn(logits[10:], outputs, other))
    assert results[0].picks != results[1].picks


def test_readouts_of_mixed_output_forms_equal_each_readout_alone() -> None:
    forms = ["picks", "argmax", "draws", "picks", "probs", "draws", "argmax", "logits"]
    sizes = [1, 3, 2, 4, 2, 0, 0, 1]
    parts = [
        readout_of(list(range(i, i + size)), output)
        for i, (output, size) in enumerate(zip(forms, sizes, strict=True))
    ]
    logits = logits_of(sum(sizes))
    together = read_out(logits, parts, SAMPLING)
    for found, part, rows in zip(together, parts, logits.split(sizes), strict=True):
        (alone,) = read_out(rows, [part], SAMPLING)
        assert found.picks == alone.picks
        assert found.confidences == pytest.approx(alone.confidences)
        for mine, other in ((found.probs, alone.probs), (found.logits, alone.logits)):
            assert (mine is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(mine, other)


def test_joined_keeps_the_tokens_result_and_adds_the_slots() -> None:
    logits = logits_of(5)
    tokens, slots = read_out(
        logits, [readout_of([0, 1], "probs"), readout_of([1, 2, 3], "draws")], SAMPLING
    )
    both = joined(tokens, slots)
    assert (both.picks, both.probs) == (tokens.picks, tokens.probs)
    assert (both.slot_picks, both.slot_confidences) == (slots.picks, slots.confidences)
    assert (both.confidences, tokens.slot_picks) == (tokens.confidences, ())


def test_distributions_come_with_the_probabilities_of_their_picks() -> None:
    (result,) = read_out(logits_of(3), [readout_of([0, 1, 2], "probs")], SAMPLING)
    assert result.probs is not None
    expected = [float(row[pick]) for row, pick in zip(result.probs, result.picks, strict=True)]
    assert result.confidences == pytest.approx(expected)
    assert len(set(expected)) == 3


@pytest.mark.parametrize("sampling", [SAMPLING, Sampling()], ids=["warm", "greedy"])
def test_draws_are_the_picks_with_their_probabilities(sampling: Sampling) -> None:
    logits = logits_of(4)
    (draws,) = read_out(logits, [readout_of([0, 1, 2, 3], "draws")], sampling)
    (picks,) = read_out(logits, [readout_of([0, 1, 2, 3], "picks")], sampling)
    assert draws.picks == picks.picks
    probs = torch.softmax(logits, -1) if sampling.greedy else warp(logits, sampling)
    expected = [float(row[pick]) for row, pick in zip(probs, draws.picks, strict=True)]
    assert draws.confidences == pytest.approx(expected)


# Slots of their own kind.


def test_confidences_equal_values_worked_out_by_hand() -> None:
    distribution, tokens = torch.tensor([[0.5, 0.3, 0.2], [0.25, 0.25, 0.5]]), torch.tensor([0, 1])
    assert _rate_confidence(distribution, tokens, "prob").tolist() == pytest.approx([0.5, 0.25])
    assert _rate_confidence(distribution, tokens, "margin").tolist() == pytest.approx([0.2, -0.25])
    entropies = [-sum(p * math.log(p) for p in row) for row in distribution.tolist()]
    expected = [math.exp(-entropy) for entropy in entropies]
    assert _rate_confidence(distribution, tokens, "neg_entropy").tolist() == pytest.approx(expected)
    certain = torch.tensor([[0.0, 1.0]])
    assert _rate_confidence(certain, torch.tensor([1]), "neg_entropy").tolist() == [1.0]


def slots_result(sampling: Sampling, logits: Tensor, **changes: object) -> CallResult:
    """What slots 0 and 1 behind one token give, of the logits of the token and of both."""
    slots = dataclasses.replace(make_slots(2, (0, 1)), **changes)  # type: ignore[arg-type]
    call = make_call(1, length=PROMPT, read=(0,), slots=slots, positions=[5, 6, 7])
    return joined(*read_out(logits, readouts(call, UNIFORMS, PROMPT), sampling))


@pytest.mark.parametrize("kind", ["prob", "margin", "neg_entropy"])
@pytest.mark.parametrize("output", ["argmax", "draws"])
def test_slots_return_the_requested_kind_of_confidence(output: str, kind: str) -> None:
    logits = logits_of(3)
    result = slots_result(SAMPLING, logits, output=output, confidence=kind)
    distribution = (
        torch.softmax(logits[1:], -1) if output == "argmax" else warp(logits[1:], SAMPLING)
    )
    expected = _rate_confidence(distribution, torch.tensor(result.slot_picks), kind)  # type: ignore[arg-type]
    assert result.slot_confidences == pytest.approx(expected.tolist())


def test_confidences_of_two_kinds_cannot_be_read_at_once() -> None:
    parts = [
        readout_of([0], "draws")._replace(confidence=kind)  # type: ignore[arg-type]
        for kind in ("prob", "margin")
    ]
    with pytest.raises(AssertionError, match=r"kinds \['margin', 'prob'\]"):
        read_out(logits_of(2), parts, SAMPLING)


def test_slots_may_give_the_very_distributions_they_are_drawn_from() -> None:
    logits = logits_of(3)
    result = slots_result(SAMPLING, logits, output="probs")
    assert result.slot_probs is not None
    torch.testing.assert_close(result.slot_probs, warp(logits[1:], SAMPLING))
    assert result.slot_picks == tuple(drawn(logits[1:], [2, 3]))
    assert result.probs is None


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)])
def test_slots_never_predict_barred_ids_and_report_their_probability_mass(
    sampling: Sampling,
) -> None:
    logits = logits_of(3)
    barred = frozenset(logits.topk(3).indices.flatten().tolist())
    result = slots_result(sampling, logits, output="draws", barred=barred)
    assert not barred & {*result.slot_picks}
    mass = torch.softmax(logits[1:], -1)[:, sorted(barred)].sum(-1)
    assert result.slot_barred == pytest.approx(mass.tolist())
    plain = slots_result(sampling, logits, output="draws")
    assert (plain.picks, plain.slot_barred) == (result.picks, ())


# Chains.


@pytest.mark.parametrize(("sure", "goes_on"), [(0.5, True), (0.49, False), (0.51, True)])
def test_a_chain_continues_after_a_pick_whose_probability_reaches_its_stop_threshold(
    sure: float, goes_on: bool
) -> None:
    call = dataclasses.replace(make_call(2, length=7, read=(1,)), chain=Chain(3, 3, 0.5))
    before = list[CallResult]()
    following, joint = follow(call, CallResult(picks=(4,), confidences=(sure,)), before)
    assert [each.tokens for each in following] == [(4,)] * goes_on
    assert len(joint) == (not goes_on)
    assert len(before) == goes_on


# Verdicts.


def verdict_of(
    drafts: tuple[int, ...],
    draft_distribution: Tensor | None,
    sampling: Sampling = SAMPLING,
    uniforms: Uniforms = UNIFORMS,
    **rule: float,
) -> Acceptance:
    """The acceptance of drafts of distributions ``[2, V]`` against logits of seed 7."""
    call = dataclasses.replace(
        make_call(3, length=PROMPT, read=(0, 1, 2)),
        output="acceptance",
        drafts=drafts,
        draft_probs=None if draft_distribution is None else tuple(draft_distribution),
        acceptance_rule=AcceptanceRule(**rule),  # type: ignore[arg-type]
    )
    (result,) = read_out(logits_of(3, seed=7), readouts(call, uniforms, PROMPT), sampling)
    assert result.acceptance is not None
    return result.acceptance


def test_each_of_several_merged_calls_is_verified_by_its_own_rule() -> None:
    logits = logits_of(3, seed=7)
    call = dataclasses.replace(
        make_call(3, length=PROMPT, read=(0, 1, 2)),
        output="acceptance",
        drafts=tuple(logits[:2].argmin(-1).tolist()),
    )
    rules = [AcceptanceRule(), AcceptanceRule(top=VOCAB)]
    calls = [dataclasses.replace(call, acceptance_rule=rule) for rule in rules]
    parts = [part for each in calls for part in readouts(each, UNIFORMS, PROMPT)]
    results = read_out(torch.cat([logits, logits]), parts, SAMPLING)
    assert [each.acceptance.accepted for each in results if each.acceptance] == [0, 2]


def test_verification_reports_the_acceptance_ratio_and_overlap_of_every_draft() -> None:
    target = warp(logits_of(3, seed=7), SAMPLING)
    draft = warp(logits_of(2, seed=8), Sampling(temperature=1.0))
    acceptance = verdict_of((4, 9), draft)
    for place, token in enumerate((4, 9)):
        ratio = min(1.0, float(target[place, token] / draft[place, token]))
        assert acceptance.ratios[place] == pytest.approx(ratio)
        both = zip(target[place].tolist(), draft[place].tolist(), strict=True)
        assert acceptance.overlaps[place] == pytest.approx(sum(min(pair) for pair in both))


def test_only_the_accept_uniform_of_its_position_decides_whether_a_draft_is_accepted() -> None:
    target = warp(logits_of(3, seed=7), SAMPLING)
    draft = warp(logits_of(2, seed=8), Sampling(temperature=1.0))
    drafts = (int((draft[0] - target[0]).argmax()), 9)  # oversampled: it may stand or fall
    ratio = min(1.0, float(target[0, drafts[0]] / draft[0, drafts[0]]))
    assert 0.0 < ratio < 1.0
    by_stream = {"accept": 0, "recover": 0, "draw": 0}
    for seed in range(64):
        uniforms = Uniforms(seed, range(PROMPT))
        stands = verdict_of(drafts, draft, uniforms=uniforms).accepted > 0
        for stream in by_stream:
            u = uniforms.at(stream, 1)  # type: ignore[arg-type]
            by_stream[stream] += stands == (u < ratio)
    assert by_stream["accept"] == 64
    assert max(by_stream["recover"], by_stream["draw"]) < 64


def test_lenience_accepts_more_drafts_and_a_draft_among_the_top_tokens_is_always_accepted() -> None:
    logits = logits_of(3, seed=7)
    drafts = tuple(logits[:2].argmin(-1).tolist())  # certain of the least likely tokens
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        assert verdict_of(drafts, None, sampling).accepted == 0
        assert verdict_of(drafts, None, sampling, top=VOCAB - 1).accepted == 0
        assert verdict_of(drafts, None, sampling, top=VOCAB).accepted == 2
    assert verdict_of(drafts, None, Sampling(temperature=1.0), lenience=1e-6).accepted == 2
    assert verdict_of(drafts, None, Sampling(), lenience=1e-6).accepted == 0
