"""Quality per family: means, corpus BLEU and its fall-back, and their intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sacrebleu
from scipy.stats import binomtest

from bench.records.plan import Plan, PlannedPrompt
from bench.records.record import SampleRecord
from bench.stats.quality import family_quality, gold_answers, overall_quality

Make = Callable[..., SampleRecord]
GERMAN = ("Der kleine Hund schläft im Garten .", "Die Katze sitzt auf dem alten Dach .")


def scored(
    record: Make, name: str, family: str, text: str = "text", **scores: float
) -> SampleRecord:
    return record(
        kind="quality", family=family, conversation=name, text=text, scores=scores, total_s=None
    )


def test_a_familys_quality_is_the_mean_of_its_primary_score(record: Make) -> None:
    rows = [scored(record, n, "qa", contains_answer=s, f1=0.1) for n, s in (("a", 1.0), ("b", 0.5))]
    quality = family_quality("qa", [*rows, record(), record(kind="quality", error="x")], {})
    assert quality.estimate.value == 0.5, "the failed answer counts as wrong"
    assert quality.metric == "contains_answer"
    assert quality.estimate.num == 3


@pytest.mark.parametrize(
    ("scores", "tells"),
    [
        ((1.0, 1.0), True),
        ((0.5, 0.55, 0.6), True),
        ((0.0, 0.0), False),
        ((0.85, 0.95), True),  # few answers, and far from 0
        ((0.0, 1.0), False),  # within two standard errors of 0
        ((0.0,) * 7 + (1.0,), False),
        ((0.0018, 0.0019, 0.0020), False),  # BLEU of a model that translates nothing
    ],
)
def test_a_score_at_its_floor_cannot_reveal_a_loss_of_quality(
    record: Make, scores: tuple[float, ...], tells: bool
) -> None:
    rows = [scored(record, str(n), "qa", contains_answer=s) for n, s in enumerate(scores)]
    assert family_quality("qa", rows, {}).tells is tells


def test_an_unscored_family_is_unknown(record: Make) -> None:
    quality = family_quality("qa", [record()], {})
    assert quality.estimate.value is None
    assert quality.metric is None
    assert not quality.tells
    assert overall_quality([quality]).estimate.value is None


def test_translation_is_corpus_bleu_where_gold_answers_are_kept(record: Make) -> None:
    texts = (GERMAN[0], "Die Katze sitzt auf dem neuen Dach .")
    rows = [scored(record, n, "translation", t, bleu=0.0) for n, t in zip("ab", texts, strict=True)]
    gold = {"a#1": (GERMAN[0],), "b#1": (GERMAN[1],)}
    quality = family_quality("translation", rows, gold)
    expected = sacrebleu.corpus_bleu(list(texts), [list(GERMAN)]).score / 100
    assert quality.estimate.value == pytest.approx(expected)
    assert quality.metric == "corpus BLEU"


def test_translation_without_gold_answers_is_labelled_mean_sentence_bleu(record: Make) -> None:
    rows = [scored(record, n, "translation", bleu=s) for n, s in (("a", 0.2), ("b", 0.4))]
    quality = family_quality("translation", rows, {"a#1": (GERMAN[0],)})
    assert quality.estimate.value == pytest.approx(0.3)
    assert quality.metric == "mean sentence bleu"


def test_overall_quality_is_the_unweighted_mean_of_families(record: Make) -> None:
    many = [scored(record, f"q{i}", "qa", contains_answer=1.0) for i in range(9)]
    few = [scored(record, "r", "rag", contains_answer=0.0)]
    overall = overall_quality([family_quality("qa", many, {}), family_quality("rag", few, {})])
    assert overall.estimate.value == 0.5
    assert overall.metric == "mean of 2 families"


def test_overall_quality_is_unknown_where_another_decoder_has_more_families(record: Make) -> None:
    qa = family_quality("qa", [scored(record, "q", "qa", contains_answer=1.0)], {})
    failed = family_quality("rag", [record(kind="quality", family="rag", error="late")], {})
    assert overall_quality([qa, failed], 2).estimate.value is None
    assert overall_quality([qa, failed], 2).metric is None
    assert overall_quality([qa, failed], 1).estimate.value == 1.0


def test_failed_answers_score_0_even_if_their_records_hold_scores(record: Make) -> None:
    sound = scored(record, "a", "qa", contains_answer=1.0)
    failed = replace(scored(record, "b", "qa", contains_answer=1.0), error="late")
    timed = replace(scored(record, "c", "qa", contains_answer=0.0), kind="timing")
    assert family_quality("qa", [sound, failed, timed], {}).estimate.value == 0.5


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_scores_that_are_all_0_or_all_1_still_have_an_interval(record: Make, right: float) -> None:
    rows = [scored(record, str(i), "qa", contains_answer=right) for i in range(20)]
    found = family_quality("qa", rows, {}).estimate
    exact = binomtest(int(20 * right), 20).proportion_ci(method="exact")
    assert (found.value, found.low, found.high) == pytest.approx((right, exact.low, exact.high))
    assert family_quality("qa", rows[:1], {}).estimate.low is None
    turns = [*rows, *(replace(row, turn=2) for row in rows)]  # no more conversations
    assert family_quality("qa", turns, {}).estimate.low == pytest.approx(found.low)
    assert family_quality("qa", turns, {}).estimate.high == pytest.approx(found.high)
    level = [scored(record, str(i), "qa", contains_answer=0.5) for i in range(20)]
    assert family_quality("qa", level, {}).estimate.low is None


def test_intervals_over_six_families_of_nearly_perfect_answers_have_their_coverage(
    record: Make,
) -> None:
    rng, hits = np.random.default_rng(0), 0
    made = {right: scored(record, "c", "qa", contains_answer=right) for right in (0.0, 1.0)}
    for _ in range(200):
        families = [
            family_quality(
                "qa",
                [
                    replace(made[float(hit)], conversation=str(i), prompt_hash=str(i))
                    for i, hit in enumerate(rng.random(20) < 0.99)
                ],
                {},
            )
            for _ in range(6)
        ]
        found = overall_quality(families).estimate
        hits += (found.low or 0.0) <= 0.99 <= (found.high or 0.0)
    assert hits >= 190


def test_failed_families_are_left_out_of_the_mean_and_of_its_name(record: Make) -> None:
    qa = family_quality("qa", [scored(record, "q", "qa", contains_answer=0.5)], {})
    failed = family_quality("rag", [record(kind="quality", family="rag", error="late")], {})
    overall = overall_quality([qa, failed])
    assert (overall.estimate.value, overall.metric) == (0.5, "1 family")


def test_turns_of_a_conversation_are_one_cluster(record: Make) -> None:
    rows = [
        replace(scored(record, name, "qa", contains_answer=score), turn=turn)
        for name, score in (("a", 1.0), ("b", 0.0), ("c", 1.0))
        for turn in (1, 2)
    ]
    assert family_quality("qa", rows, {}).estimate.clusters == 3


def test_intervals_stay_within_a_fractions_range(record: Make) -> None:
    rows = [scored(record, str(i), "qa", contains_answer=float(i > 0)) for i in range(8)]
    estimate = family_quality("qa", rows, {}).estimate
    assert estimate.low is not None
    assert estimate.low >= 0
    assert estimate.high == 1.0


def planned(conversation: str, reference: dict[str, Any] | None) -> PlannedPrompt:
    return PlannedPrompt(
        prompt=f"{conversation}#1",
        conversation=conversation,
        turn=1,
        family="translation",
        hash="h",
        num_tokens=2,
        passes=("quality",),
        reference=reference,
    )


def test_gold_answers_are_those_of_the_plan() -> None:
    prompts = (planned("a", {"answers": ["x", "y"]}), planned("b", None))
    assert gold_answers(Plan(prompts=prompts)) == {"a#1": ("x", "y")}
