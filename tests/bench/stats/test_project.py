import math
from dataclasses import replace

import pytest

from bench.records.cost import CostCell
from bench.records.phases import PhasedAnswer
from bench.stats.cost_curve import CostCurve
from bench.stats.project import Terms, draft_shares, overheads_s, project, proposal_shares
from tests.bench.conftest import make_record


def curve_of(seconds, rows=(1, 8), contexts=(0, 100), sequences=(1, 4)):
    cells = [
        CostCell(rows=r, context=c, sequences=s) for r in rows for c in contexts for s in sequences
    ]
    return CostCurve(points={cell: seconds(cell) for cell in cells})


TARGET = curve_of(lambda cell: 1 + 0.1 * cell.rows + 0.01 * cell.context)
DRAFT = curve_of(lambda cell: 0.1 + 0.02 * cell.rows)


def answers(conversation, first, second, *, drafting=True, **fields):
    """ar's answer of five tokens, and one of a decoder that emits them in steps of 1, then two."""
    base = make_record("ar", (1,) * 5, conversation=conversation, **fields)
    emitted = (1, first, second)
    calls, rows = (1, 1, 1), (10, 4, 3)
    mine = make_record("mine", emitted, calls=calls, rows=rows, conversation=conversation, **fields)
    if drafting:
        assert mine.steps is not None
        steps = replace(mine.steps, draft_calls=(0, 3, 2), draft_rows=(0, 12, 2))
        mine = replace(mine, steps=steps)
    return [base, mine]


# prompts have 10 tokens: the step after the first begins with 10 of them in the cache
AR_S = sum(1 + 0.1 + 0.01 * (10 + place) for place in range(4))
MINE_TARGET_S = (1 + 0.4 + 0.01 * 10) + (1 + 0.3 + 0.01 * 13)
MINE_DRAFT_S = 3 * (0.1 + 0.02 * 4) + 2 * (0.1 + 0.02 * 1)


def of(projections, decoder="mine"):
    return next(each for each in projections if each.decoder == decoder)


def test_a_trace_is_put_together_as_it_is_by_hand():
    made = project(answers("c0", 3, 1), Terms(curve=TARGET, draft=DRAFT), ["ar", "mine"])
    assert of(made, "ar").time_per_token_s == pytest.approx(AR_S / 4)
    assert of(made).time_per_token_s == pytest.approx((MINE_TARGET_S + MINE_DRAFT_S) / 4)
    assert of(made).speedup.value == pytest.approx(AR_S / (MINE_TARGET_S + MINE_DRAFT_S))
    assert of(made, "ar").speedup.value == pytest.approx(1)
    assert of(made).rows_per_call == pytest.approx(3.5)
    assert of(made).beyond == 0
    assert of(made).error is None


def test_overheads_are_added_for_every_later_step():
    terms = Terms(curve=TARGET, draft=DRAFT, overhead_s={"ar": 0.5, "mine": 0.25})
    made = project(answers("c0", 3, 1), terms, ["mine"])
    mine_s = MINE_TARGET_S + MINE_DRAFT_S + 2 * 0.25
    assert of(made).speedup.value == pytest.approx((AR_S + 4 * 0.5) / mine_s)


def test_without_a_draft_curve_a_draft_call_is_a_share_of_a_targets_call():
    terms = Terms(curve=TARGET, draft_share={"mine": 0.2})
    made = project(answers("c0", 3, 1), terms, ["mine"])
    draft_s = 3 * 0.2 * (1.1 + 0.01 * 10) + 2 * 0.2 * (1.1 + 0.01 * 13)
    assert of(made).time_per_token_s == pytest.approx((MINE_TARGET_S + draft_s) / 4)


def test_a_decoder_whose_drafting_has_no_cost_is_left_out_and_one_that_drafts_nothing_is_not():
    made = project(answers("c0", 3, 1), Terms(curve=TARGET), ["ar", "mine"])
    assert [each.decoder for each in made] == ["ar"]
    made = project(answers("c0", 3, 1, drafting=False), Terms(curve=TARGET), ["ar", "mine"])
    assert of(made).time_per_token_s == pytest.approx(MINE_TARGET_S / 4)


def test_the_interval_is_over_prompts_and_their_geometric_mean_is_the_speedup():
    records = [
        record
        for number, first in enumerate((3, 2, 3, 1))
        for record in answers(f"c{number}", first, 4 - first, drafting=False)
    ]
    ratios = []
    for first in (3, 2, 3, 1):
        mine = (1.4 + 0.01 * 10) + (1.3 + 0.01 * (10 + first))
        ratios.append(AR_S / mine)
    made = of(project(records, Terms(curve=TARGET), ["mine"])).speedup
    assert made.value == pytest.approx(math.prod(ratios) ** (1 / 4))
    assert made.clusters == 4
    assert made.low is not None
    assert made.low < made.value < made.high


def test_calls_beyond_the_curve_are_counted():
    narrow = curve_of(lambda cell: 1.0, rows=(1, 3))
    made = project(answers("c0", 3, 1, drafting=False), Terms(curve=narrow), ["mine"])
    assert of(made).beyond == 0.5


def test_calls_beyond_are_shares_of_calls_not_of_steps():
    """Of two later steps one makes three calls of three rows, the other one of eight."""
    narrow = curve_of(lambda cell: 1.0, rows=(1, 3))
    record = make_record("mine", (1, 3, 1), calls=(1, 3, 1), rows=(10, 9, 8))
    made = project([*answers("c0", 3, 1)[:1], record], Terms(curve=narrow), ["mine"])
    assert of(made).beyond == pytest.approx(1 / 4)
    assert record.steps is not None
    wide = replace(record, steps=replace(record.steps, target_rows=(10, 12, 3)))
    made = project([*answers("c0", 3, 1)[:1], wide], Terms(curve=narrow), ["mine"])
    assert of(made).beyond == pytest.approx(3 / 4)


def test_the_error_is_against_what_a_real_run_measured_after_the_first_token():
    records = answers("c0", 3, 1, drafting=False)
    real = [
        replace(records[0], ttft_s=1.0, total_s=1.0 + 4 * 2.0),
        replace(records[1], ttft_s=1.0, total_s=1.0 + 4 * 1.0),
    ]
    made = of(project(records, Terms(curve=TARGET), ["mine"], real))
    assert made.measured.value == pytest.approx(2)
    assert made.error == pytest.approx(made.speedup.value / 2 - 1)
    assert made.time_error == pytest.approx(made.time_per_token_s / 1.0 - 1)


def phased(decoder, prompts=("c0#1",), **seconds):
    return PhasedAnswer(
        decoder=decoder,
        prompts=prompts,
        seconds=seconds,
        emitted=5,
        later_emitted=4,
        later_steps={"ar": 4, "mine": 2}[decoder],
        repeat=0,
        rows=0,
        padded_rows=0,
    )


def test_what_a_run_says_of_its_overheads_and_its_draft_calls():
    pass_two = [
        phased("ar", verify=8.0, sampling=0.4, scheduler=0.2, other=0.2, prefill=9.0),
        phased("mine", verify=4.0, draft=2.0, sampling=0.1, scheduler=0.2, other=0.3),
    ]
    assert overheads_s(pass_two) == pytest.approx({"ar": 0.2, "mine": 0.3})
    # five draft calls of 0.4 s against ar's calls of 2 s
    assert draft_shares(pass_two, answers("c0", 3, 1)) == pytest.approx({"mine": 0.2})


def proposing(repeat=0):
    """Two later steps of two target calls each: one that proposes, one that verifies."""
    ar, mine = answers("c0", 3, 1, repeat=repeat, drafting=False)
    steps = replace(mine.steps, target_calls=(1, 2, 2), target_rows=(3, 10, 4))
    return [ar, replace(mine, steps=steps)]


def test_a_call_that_proposes_costs_what_it_did_in_the_run():
    records = proposing()
    pass_two = [phased("ar", verify=8.0), phased("mine", verify=4.0, draft=6.0)]
    # two proposals of 3 s against two verifying calls of 2 s
    assert proposal_shares(pass_two, records) == pytest.approx({"mine": 1.5})
    plain = of(project(records, Terms(curve=TARGET), ["mine"]))
    dearer = of(project(records, Terms(curve=TARGET, proposal_share={"mine": 1.5}), ["mine"]))
    assert dearer.time_per_token_s == pytest.approx(plain.time_per_token_s * (1 + 1.5) / 2)


def test_calls_that_all_verify_or_that_a_draft_model_makes_have_no_share():
    verifying = [phased("ar", verify=8.0), phased("mine", verify=4.0)]
    assert proposal_shares(verifying, proposing()) == {}
    drafting = [phased("ar", verify=8.0), phased("mine", verify=4.0, draft=6.0)]
    assert proposal_shares(drafting, answers("c0", 3, 1)) == {}


def test_draft_calls_are_counted_in_the_repeat_whose_seconds_were_split():
    first, second = answers("c0", 3, 1), answers("c0", 3, 1, repeat=1)
    assert second[1].steps is not None
    steps = replace(second[1].steps, draft_calls=(0, 7, 3))
    records = [*first, second[0], replace(second[1], steps=steps)]
    split = [phased("ar", verify=8.0), replace(phased("mine", draft=2.0), repeat=1)]
    assert draft_shares(split, records) == pytest.approx({"mine": 2.0 / 10 / 2.0})
