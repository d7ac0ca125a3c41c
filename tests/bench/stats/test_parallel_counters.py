"""The parallel decoding literature's numbers, on records whose numbers are known by hand."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pytest

from bench.extras.sections import aup, parallel
from bench.extras.sections.aup import accuracy_under_parallelism
from bench.measure.quality import target_scores
from bench.records.prompts import Prompt, ids_hash
from bench.records.record import SampleRecord, StepColumns
from bench.stats import parallel_counters
from bench.stats.metric import CellData, compute
from bench.stats.metrics import COLUMNS, METRICS
from bench.stats.parallel_counters import passes_per_block, round_shares
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling
from decoders.idlm import Refinement
from decoders.isd import StridedDecoding
from decoders.nar import NonAutoregressive
from decoders.spec import Speculative

Make = Callable[..., SampleRecord]


def steps_of(record: SampleRecord, **columns: Any) -> StepColumns:
    assert record.steps is not None
    return dataclasses.replace(record.steps, **columns)


def columns(records: Sequence[SampleRecord]) -> dict[str, object]:
    return compute(CellData(decoder="x", family="all", records=records), METRICS)


# Rounds and distributions.


def test_cold_accepted_and_rejected_rounds_are_shares_of_later_steps(record: Make) -> None:
    drafting = record(emitted=(1, 1, 4, 2, 1), drafted=(0, 0, 3, 3, 0), accepted=(0, 0, 3, 1, 0))
    found = round_shares([steps_of(drafting)])
    assert found == {"cold_rounds": 0.5, "accepted_rounds": 0.25, "rejected_rounds": 0.25}
    assert set(round_shares([steps_of(record())]).values()) == {None}


def test_overlap_and_alpha_are_pooled_over_compared_positions_and_unknown_without_any(
    record: Make,
) -> None:
    drafting, plain = record(emitted=(1, 3, 2)), record()
    steps = steps_of(drafting, tested=(0, 2, 2), overlap=(0.0, 1.5, 0.9), alpha=(1, 2.75, 1.5))
    found = columns([dataclasses.replace(drafting, steps=steps), plain])
    assert found["overlap"] == pytest.approx(2.4 / 4)
    assert found["alpha_all"] == pytest.approx(5.25 / 6)
    found = columns([plain])
    assert (found["overlap"], found["alpha_all"]) == (None, None)


def passes(tokens: float | None, mean: float | None, p95: float | None) -> dict[str, float | None]:
    return {"tokens_per_block": tokens, "passes_per_block": mean, "passes_per_block_p95": p95}


def test_passes_are_counted_per_finished_block(record: Make) -> None:
    columns = [
        steps_of(record(emitted=(1, 0, 3)), passes=(0, 0, 3)),
        steps_of(record(emitted=(4,) * 20), passes=(1,) * 20),
    ]
    assert passes_per_block(columns) == passes(84 / 21, 23 / 21, 1.0)
    assert passes_per_block(columns[:1] * 2 + columns[1:]) == passes(88 / 22, 26 / 22, 3.0)
    assert passes_per_block([steps_of(record())]) == passes(None, None, None)


def test_tokens_of_a_block_that_was_not_finished_do_not_count(record: Make) -> None:
    cut = steps_of(record(emitted=(1, 5, 2, 1)), passes=(0, 2, 0, 0))
    assert passes_per_block([cut])["tokens_per_block"] == 6.0


# Copies.


def asked(record: SampleRecord, *ids: int) -> dict[str, Prompt]:
    """The prompts of a run that asks these ids in the record's prompt."""
    place: Any = {"conversation": record.conversation, "turn": record.turn}
    place["family"] = record.family
    prompt = Prompt(**place, ids=ids, hash=ids_hash(ids), reference=None)
    return {prompt.name: prompt}


@pytest.mark.parametrize(
    ("tokens", "prompt", "copied"),
    [
        ((1, 2, 3, 4, 9, 9), (0, 1, 2, 3, 4, 5), 4),  # a run of four
        ((1, 2, 3, 9, 1, 2, 3), (0, 1, 2, 3, 4, 5), 0),  # runs of three
        ((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 0, 3, 4, 5, 6, 7), 7),  # two runs that overlap
        ((1, 2, 3, 4, 1, 2, 3, 4), (1, 2, 3, 4), 8),  # the same run twice
        ((1, 1, 1, 1, 1, 2), (1, 1, 1, 1), 5),
        ((4, 3, 2, 1), (1, 2, 3, 4), 0),
        ((1, 2), (1, 2, 3, 4), 0),  # shorter than a run
    ],
)
def test_a_token_is_copied_if_a_run_of_four_around_it_occurs_in_the_prompt(
    record: Make, tokens: tuple[int, ...], prompt: tuple[int, ...], copied: int
) -> None:
    answer = record(emitted=(1,) * len(tokens), tokens=tokens)
    share = parallel_counters.copied([answer], asked(answer, *prompt))
    assert share == copied / len(tokens) == by_definition(tokens, prompt)


def by_definition(tokens: tuple[int, ...], prompt: tuple[int, ...]) -> float:
    """Try every run of every length around every token."""
    there = {prompt[i:j] for i in range(len(prompt)) for j in range(i + 4, len(prompt) + 1)}
    num = len(tokens)
    runs = [(i, j) for i in range(num) for j in range(i + 4, num + 1) if tokens[i:j] in there]
    return sum(any(i <= place < j for i, j in runs) for place in range(num)) / num


def test_copies_are_pooled_over_first_repeats_with_a_known_prompt(record: Make) -> None:
    first = record(emitted=(1,) * 8, tokens=(1, 2, 3, 4, 9, 9, 9, 9))
    again = dataclasses.replace(first, repeat=1, tokens=(9,) * 8)
    other = record(emitted=(1,) * 4, conversation="c1", tokens=(5, 6, 7, 8))
    prompts = asked(first, 1, 2, 3, 4)
    assert parallel_counters.copied([first, again, other], prompts) == 0.5
    assert parallel_counters.copied([first, other], prompts | asked(other, 0)) == 4 / 12
    assert parallel_counters.copied([first], {}) is None


def test_a_trigram_is_repeated_where_it_stands_earlier_in_the_same_answer(record: Make) -> None:
    share = parallel_counters.repeated_trigrams
    assert share([record(tokens=(1, 2, 3, 4))]) == 0.0
    assert share([record(tokens=(1, 2, 3, 1, 2, 3))]) == pytest.approx(1 / 4)
    assert share([record(tokens=(5, 5, 5, 5, 5))]) == pytest.approx(2 / 3)
    # pooled, not a mean of answers; nothing is carried from one answer to the next
    both = [record(tokens=(1, 2, 3, 1, 2, 3)), record(tokens=(1, 2, 3, 4, 5, 6, 7, 8))]
    assert share(both) == pytest.approx(1 / 10)
    again = record(tokens=(1, 2, 3, 1, 2, 3), repeat=1)
    assert share([*both, again]) == pytest.approx(1 / 10), "every answer counts once"
    failed = dataclasses.replace(both[0], error="late")
    assert share([*both, failed]) == pytest.approx(1 / 10)
    assert share([record(tokens=(1, 2)), record(tokens=None, error="x")]) is None


def test_likelihood_is_paired_by_prompt_and_weighed_by_tokens(record: Make) -> None:
    def answer(decoder: str, name: str, nll: float | None, num: int) -> SampleRecord:
        fields = {"conversation": name, "tokens": tuple(range(num)), "nll": nll}
        return record(decoder, kind="quality", **fields)

    ar = [answer("ar", "a", 1.0, 4), answer("ar", "b", 0.5, 2), answer("ar", "c", 9.0, 9)]
    nar = [answer("nar", "a", 2.0, 1), answer("nar", "b", 3.0, 3), answer("nar", "d", 9.0, 9)]
    found = parallel_counters.nll_over(nar, ar)
    assert found.value == pytest.approx((2 * 1 + 3 * 3) / 4 - (1 * 4 + 0.5 * 2) / 6)
    assert found.clusters == 2
    assert found.low is not None
    assert found.value is not None
    assert found.low < found.value < (found.high or 0)
    assert parallel_counters.nll_over(ar, ar).columns("x") == {
        "x": 0,
        "x_low": None,
        "x_high": None,
    }
    assert parallel_counters.nll_over([answer("nar", "a", None, 3)], ar).value is None
    turns = [dataclasses.replace(each, turn=2, prompt_hash="h2") for each in (nar[0], ar[0])]
    found = parallel_counters.nll_over([*nar, turns[0]], [*ar, turns[1]])
    assert found.clusters == 2, "conversations"


def test_distinct_trigrams_are_counted_over_all_answers_and_lengths_are_means(record: Make) -> None:
    one, other = ((1, 2, 3, 4), (1, 2, 3, 1, 2, 3))
    rows = [record(kind="quality", tokens=tokens) for tokens in (one, other)]
    found = columns([*rows, record(), record(kind="quality", error="late")])
    assert found["distinct_trigrams"] == 4 / 6  # 123 234 / 123 231 312 123
    assert found["answer_tokens"] == 5
    assert columns([record()])["answer_tokens"] is None


@pytest.mark.parametrize(
    ("mine", "baseline", "expected"),
    [(0.5, 0.5, False), (0.51, 0.51, True), (0.3, 0.2, False), (0.31, 0.2, True),
     (0.31, None, False), (None, 0.2, None)],
)  # fmt: skip
def test_a_decoder_loops_if_repetition_is_high_or_far_above_that_of_ar(
    mine: float | None, baseline: float | None, expected: bool | None
) -> None:
    assert parallel_counters.loops(mine, baseline) is expected


# From generations.


def columns_of(decoder: Any, models: Models, temperature: float) -> StepColumns:
    sampling = Sampling(temperature=temperature, max_new_tokens=60)
    return StepColumns.of(generate(decoder, [1, 2, 3], sampling, models))


def models() -> Models:
    target = TableModel(seed=1)
    target.attach("isd", 0.3, "isd")
    target.attach("refine", 0.3, "refine")
    return Models(target=target, draft=TableModel(seed=2, agree_with=target, agreement=0.5))


@pytest.mark.parametrize("decoder", [StridedDecoding(), Speculative()])
def test_columns_of_compared_distributions_are_filled_when_sampling_and_empty_when_greedy(
    decoder: Any,
) -> None:
    found = columns_of(decoder, models(), 0.9)
    assert len(found.tested) == len(found.overlap) == len(found.alpha) == len(found.emitted)
    overlap = parallel_counters.compared_ratio([found], "overlap", "tested")
    alpha = parallel_counters.compared_ratio([found], "alpha", "emitted")
    assert overlap is not None
    assert alpha is not None
    assert 0 < overlap < 1
    assert 0 < alpha <= 1
    assert found.alpha[0] == found.emitted[0]  # the prompt's token was no draft
    greedy = columns_of(decoder, models(), 0.0)
    assert (greedy.tested, greedy.overlap, greedy.alpha, greedy.passes) == ((), (), (), ())


def test_refined_blocks_record_their_number_of_passes() -> None:
    scheduled = Refinement(commit="quota", tail="fill", block=10, max_passes=3)
    found = columns_of(dataclasses.replace(scheduled, early_exit=False), models(), 0.0)
    assert sum(count > 0 for count in found.passes) == 6
    assert passes_per_block([found]) == passes(10.0, 3.0, 3.0)
    single = columns_of(NonAutoregressive(block=10), models(), 0.0)
    assert passes_per_block([single]) == passes(10.0, 1.0, 1.0)


def test_columns_are_written_to_json_and_records_without_the_columns_can_be_read(
    record: Make,
) -> None:
    found = columns_of(StridedDecoding(), models(), 0.9)
    whole = dataclasses.replace(record(), steps=found, nll=1.5, agreement=0.25)
    import json

    data = json.loads(whole.to_json())
    assert SampleRecord.from_dict(data) == whole
    for name in ("passes", "tested", "overlap", "alpha"):
        del data["steps"][name]
    for name in ("nll", "agreement"):
        del data[name]
    old = SampleRecord.from_dict(data)
    assert old.nll is None
    assert old.steps is not None
    assert old.steps.tested == ()


# What the target says of an answer.


@pytest.mark.parametrize("num_tokens", [1, 3, 70, 130])
def test_the_targets_scores_of_an_answer_match_its_distributions_token_by_token(
    num_tokens: int,
) -> None:
    model, prompt = TableModel(seed=1), [3, 1, 2]
    tokens = [(place * place + place // 5) % 7 for place in range(num_tokens)]
    model.reserve(2, 200)
    model.open()
    told = target_scores(model, prompt, tokens)
    distributions = [model.logits([*prompt, *tokens[:place]]) for place in range(num_tokens)]
    each = [
        float(distribution.log_softmax(-1)[token])
        for distribution, token in zip(distributions, tokens, strict=True)
    ]
    assert told.nll == pytest.approx(-sum(each) / num_tokens, rel=1e-5)
    right = [
        int(distribution.argmax()) == token
        for distribution, token in zip(distributions, tokens, strict=True)
    ]
    assert told.agreement == sum(right) / num_tokens
    entropies = [
        -sum(p * math.log(p) for p in distribution.softmax(-1).tolist())
        for distribution in distributions
    ]
    assert told.entropy == pytest.approx(sum(entropies) / num_tokens, rel=1e-5)


def test_repetition_and_the_targets_scores_are_weighted_by_tokens(record: Make) -> None:
    quality: dict[str, Any] = {"kind": "quality", "emitted": (1,)}
    records = [
        record(**quality, tokens=(5, 5, 5, 6), nll=1.0, agreement=0.5, entropy=1.0),
        record(**quality, tokens=(5, 6), nll=4.0, agreement=1.0),
        record(tokens=(5, 5, 5)),
    ]
    assert parallel_counters.repetition(records) == pytest.approx(2 / 4)
    assert parallel_counters.per_token(records, "nll") == pytest.approx(2.0)
    assert parallel_counters.per_token(records, "agreement") == pytest.approx(4 / 6)
    assert parallel_counters.per_token(records, "entropy") == pytest.approx(1.0)
    assert parallel_counters.per_token([record()], "nll") is None


# Accuracy under parallelism.


def test_fewer_than_two_settings_have_no_accuracy_under_parallelism() -> None:
    assert accuracy_under_parallelism([(13.45, 58.0)], best=99.8, baseline=58.0) is None
    assert accuracy_under_parallelism([], best=70.0, baseline=70.0) is None
    lost = [(1.0, 70.0), (2.0, 60.0)]
    assert accuracy_under_parallelism(lost, best=70.0, baseline=70.0) is None
    assert accuracy_under_parallelism([(1.0, 0.0), (2.0, 0.0)], best=0.0, baseline=0.0) is None


def test_accuracy_under_parallelism_is_a_plain_area_penalised_below_the_best_accuracy() -> None:
    flat = accuracy_under_parallelism([(3.0, 70.0), (1.0, 70.0)], best=70.0, baseline=70.0)
    assert flat is not None
    assert flat[0] == pytest.approx(3 * 70)
    falling = accuracy_under_parallelism([(1.0, 70.0), (3.0, 66.0)], best=70.0, baseline=70.0)
    weighed = 66 * math.exp(-3 * (1 - 66 / 70))
    assert falling is not None
    assert falling[0] == pytest.approx(70 + 2 * (70 + weighed) / 2)


def test_settings_that_lose_over_five_points_of_ars_accuracy_are_left_out_and_counted() -> None:
    points = [(1.0, 70.0), (2.0, 64.9), (4.0, 65.0)]
    found = accuracy_under_parallelism(points, best=70.0, baseline=70.0)
    assert found is not None
    assert found[1] == 1
    kept = accuracy_under_parallelism([points[0], points[2]], best=70.0, baseline=70.0)
    assert kept == (found[0], 0)
    last = accuracy_under_parallelism([*points, (6.0, 40.0)], best=70.0, baseline=70.0)
    assert last == (found[0], 2)
    ar, low = 100 * 0.55, 100 * 0.5  # of 20 prompts, 11 and 10: just five points, but for rounding
    assert accuracy_under_parallelism([(1.0, ar), (2.0, low)], best=ar, baseline=ar) is not None
    bad = [(9.0, 58.0), (13.0, 56.0)]  # near to each other, and both far from ar
    assert accuracy_under_parallelism(bad, best=99.8, baseline=99.8) is None


def test_cells_that_differ_only_in_a_trailing_number_are_settings_of_one_method() -> None:
    cells = ["ar", "idlm", "idlm@isd", "idlm@t2", "idlm@t4", "spec@k3"]
    assert aup.curves(cells) == {
        "ar": ["ar"],
        "idlm": ["idlm"],
        "idlm@isd": ["idlm@isd"],
        "idlm@t…": ["idlm@t2", "idlm@t4"],
        "spec@k3": ["spec@k3"],
    }


# Tables.


def frame(*rows: dict[str, object]) -> pd.DataFrame:
    types = COLUMNS
    return pd.DataFrame([{"family": "all", **row} for row in rows], columns=list(types)).astype(
        types
    )


def cells(table: Any) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_one_table_lists_rounds_per_decoder_and_another_the_area_per_method() -> None:
    found = frame(
        {"decoder": "ar", "quality": 0.8, "tpf": 1.0, "base_nll": 0.5, "repetition": 0.01},
        {"decoder": "nar", "quality": 0.6, "tpf": 9.0, "passes_per_block": 1.0},
        {"decoder": "idlm@t2", "quality": 0.76, "tpf": 4.0, "passes_per_block": 2.0},
        {"decoder": "idlm@t4", "quality": 0.8, "tpf": 2.0, "cold_rounds": 0.25},
    )
    rounds = parallel.rounds(found)
    assert rounds is not None
    assert [line[0] for line in cells(rounds)] == ["nar", "idlm@t2", "idlm@t4"]
    assert cells(rounds)[2][3] == "25.0"
    area = aup.area(found)
    assert area is not None
    weighed = 76 * math.exp(-3 * (1 - 76 / 80))
    assert cells(area) == [
        ["ar", "-"], ["nar", "-"], ["idlm@t…", f"{160 + 80 + weighed:.1f}"]
    ]  # fmt: skip
    assert "d3LLM, arXiv 2601.07568" in area.note
    assert "5 points of ar's quality" in area.note


def test_a_run_without_drafts_quality_or_settings_has_no_tables_of_rounds_and_area() -> None:
    found = frame({"decoder": "ar", "tpf": 1.0}, {"decoder": "mine", "tpf": 2.0})
    assert not parallel.rounds(found).rows
    assert aup.area(found) is None
