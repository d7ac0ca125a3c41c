"""The scorers: right answers score 1, wrong ones do not."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sacrebleu

from specbench_tasks.maths import final_number
from specbench_tasks.scorers import (
    PRIMARY,
    constraint_met,
    contains_words,
    corpus_bleu,
    score,
    token_f1,
    unreadable,
)
from specbench_tasks.task import FAMILIES, LISTS, SCORED_SETS, Constraint, GoldAnswer


def answers(*texts: str) -> GoldAnswer:
    return GoldAnswer(answers=texts)


def test_every_family_and_list_has_a_primary_metric() -> None:
    assert set(PRIMARY) == {*FAMILIES, *LISTS, *SCORED_SETS}


@pytest.mark.parametrize(
    ("text", "number"),
    [("so 3 + 4 = 7.", 7), ("The answer is 1,250.", 1250), ("-2.5", -2.5), ("none", None)],
)
def test_the_final_number_is_the_last_number_of_a_text(text: str, number: float | None) -> None:
    assert final_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        # signs
        ("It is -3.", -3), ("x=-3", -3), ("(-7)", -7), ("\N{MINUS SIGN}4 degrees", -4), ("+6", 6),
        ("5-3", 3), ("pages 10-12", 12), ("f(2)-3", 3), ("COVID-19", 19), ("- 5 apples", 5),
        # points and commas
        ("The answer is .75", 0.75), ("#### .5", 0.5), ("-.5", -0.5), ("It is ...75", 75),
        ("7.", 7), ("1,234,567 people", 1234567), ("1,250, and no more", 1250),
        ("1, 2, 3", 3), ("1,2,3", 3), ("1,2345", 2345),
        # units
        ("12 km/h", 12), ("5kg", 5), ("50 m2", 50), ("20 cm3.", 20), ("the 3rd", 3), ("45°", 45),
        ("答案是7", 7),
        # fractions
        ("3/4", 0.75), ("-1/2", -0.5), ("1 1/2 hours", 1.5), ("-1 1/2", -1.5), ("5/0", 0),
        ("3 / 4 = 0.75", 0.75), ("on 3/4/2024", 2024),
        # currencies and per cent
        ("$1,250.50.", 1250.5), ("-$5.25", -5.25), ("$-5", -5), ("€ 1,000", 1000), ("-€ 5", -5),
        ("£.50", 0.5), ("5 €", 5), ("75%", 75), ("0.5 percent", 0.5),
        # none
        ("", None), ("-", None), ("two.", None), ("H2O", None),
    ],
)  # fmt: skip
def test_final_numbers_are_read_with_signs_separators_units_and_fractions(
    text: str, number: float | None
) -> None:
    assert final_number(text) == number


@pytest.mark.parametrize(
    ("output", "gold", "right"),
    [
        ("The answer is .75", "75", 0), ("The answer is .75", "3/4", 1), ("It is 5.", ".5", 0),
        ("So 2/6 remain.", "1/3", 1), ("1 1/3", "4/3", 1), ("It is 4.", "3/4", 0),
        ("$1,250", "1250", 1), ("75%", "75", 1), ("5-3", "-3", 0), ("a dozen", "12", 0),
    ],
)  # fmt: skip
def test_math_compares_numbers_not_digits(output: str, gold: str, right: int) -> None:
    assert score("math_reasoning", output, answers(gold))["exact_number"] == right


def test_numbers_of_any_length_are_parsed_quickly() -> None:
    assert final_number("9" * 5000 + "/7") == float("inf")
    for piece in ("1", "1,", "1 ", "1/", "-", "$ ", "a1", ".", "1,111"):
        final_number(piece * 20000)


def test_math_needs_the_exact_final_number() -> None:
    assert score("math_reasoning", "4 + 3 = 7. The answer is 7.", answers("7"))["exact_number"] == 1
    assert score("math_reasoning", "The answer is 17.", answers("7"))["exact_number"] == 0
    assert score("math_reasoning", "7 is wrong, it is 8.", answers("7"))["exact_number"] == 0
    assert score("math_reasoning", "", answers("7"))["exact_number"] == 0


def test_answers_count_as_whole_words_only() -> None:
    assert contains_words("It is the Euro, of course.", "euro")
    assert contains_words("a green boat!", "the Green boat")
    assert not contains_words("The eurozone is large.", "euro")
    assert not contains_words("boat green", "green boat")
    assert not contains_words("anything", "the")


@pytest.mark.parametrize("family", ["qa", "rag"])
def test_any_gold_answer_suffices_and_f1_is_reported_too(family: str) -> None:
    row = score(family, "It is Rome.", answers("Paris", "Rome"))
    assert row["contains_answer"] == 1
    assert row["f1"] == pytest.approx(0.5)
    assert score(family, "Roman", answers("Paris", "Rome"))["contains_answer"] == 0


def test_f1_matches_each_word_of_the_gold_answer_only_once() -> None:
    assert token_f1("red red boat", "red boat") == pytest.approx(0.8)
    assert token_f1("", "red") == 0


@pytest.mark.parametrize(
    ("text", "gold", "f1"),
    [
        # as SQuAD v1.1's evaluation scores them: punctuation is deleted, then articles go
        ("the US army", "U.S. army", 1), ("Jay-Z", "Jay Z", 0), ("Rock & Roll", "rock roll", 1),
        ("don't", "dont", 1), ("twenty-one men", "twenty one men", 2 / 5),
        ("A.N. Other", "other", 1),
        ("the theatre", "theatre", 1), ("1,000", "1000", 1), ("$5", "5", 1), ("3.5", "35", 1),
        ("an apple a day", "the apple", 2 / 3), ("the", "the", 0), ("", "", 0),
        ("red red boat", "red red", 4 / 5), ("boat, red", "red boat!", 1),
        ("—the boat", "boat", 2 / 3), ("the\nboat\t", "boat", 1), ("Straße", "strasse", 0),
    ],
)  # fmt: skip
def test_f1_equals_that_of_the_squad_evaluation(text: str, gold: str, f1: float) -> None:
    assert token_f1(text, gold) == pytest.approx(f1)


def test_words_are_compared_without_their_punctuation() -> None:
    assert contains_words("He joined the US army.", "U.S. Army")
    assert contains_words("It was Jay-Z, I think.", "Jay-Z")
    assert not contains_words("It was Jay-Z.", "Jay Z")
    assert contains_words("in the U.S.A. itself", "the USA")


@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        ("contains", "key", "A Key lay there.", "A monkey sat there."),
        ("starts_with", "Dear Tom", "  dear tom, hello.", "Hello, dear Tom."),
        ("ends_with", "Lily", "Yours, Lily.", "Lily wrote it."),
        ("num_sentences", 2, "One is here. Two is here!", "One is here."),
        ("num_sentences", 2, "One. Two.", "One. Two. Three."),
        ("num_sentences", 2, "It is. So it is.", "It is ... So it is it"),
    ],
)
def test_a_constraint_accepts_the_good_and_refuses_the_bad(
    kind: Any, value: str | int, good: str, bad: str
) -> None:
    constraint = Constraint(kind=kind, value=value)
    assert constraint_met(good, constraint)
    assert not constraint_met(bad, constraint)


def test_mt_bench_is_the_share_of_constraints_met() -> None:
    reference = GoldAnswer(
        constraints=(
            Constraint(kind="contains", value="key"),
            Constraint(kind="num_sentences", value=1),
        )
    )
    assert score("mt_bench", "A map. No more.", reference)["constraints_met"] == 0
    assert score("mt_bench", "A key. No more.", reference) == {"constraints_met": 0.5, "all_met": 0}


def test_translation_is_corpus_bleu_and_not_the_mean_of_sentences() -> None:
    texts = ["Der Hund sieht die Katze im Garten.", "Anna kauft ein neues Buch."]
    golds = [answers("Der Hund sieht die Katze im Park."), answers("Anna kauft ein neues Buch.")]
    pairs = [*zip(texts, golds, strict=True)]
    bleu = corpus_bleu([(text, gold.answers) for text, gold in pairs])
    single = [score("translation", *pair) for pair in pairs]
    assert single[1]["bleu"] == pytest.approx(1)
    assert [row["exact"] for row in single] == [0, 1]
    assert 0.5 < bleu < 1
    assert bleu != pytest.approx((single[0]["bleu"] + single[1]["bleu"]) / 2)
    assert 0.5 < single[0]["chrf"] < 1


def test_corpus_bleu_equals_that_of_sacrebleu() -> None:
    """Of texts that share some words, none or all, with one or more gold answers."""
    draw = random.Random(1)
    words = ["Der", "Hund", "sieht", "die", "Katze", "im", "alten", "Garten", "."]
    for size in (1, 2, 9):
        texts = [" ".join(draw.choices(words, k=draw.randrange(0, 12))) for _ in range(size)]
        golds = [
            tuple(" ".join(draw.choices(words, k=8)) for _ in range(draw.choice([1, 3])))
            for _ in texts
        ]
        streams = [[gold[i % len(gold)] for gold in golds] for i in range(3)]
        expected = sacrebleu.corpus_bleu(texts, streams).score / 100
        pairs = [*zip(texts, golds, strict=True)]
        for _ in range(2):  # counted, and remembered
            assert corpus_bleu(pairs) == pytest.approx(expected, abs=1e-12)


def test_rouge_l_of_a_summary_depends_on_word_order_and_rouge_1_does_not() -> None:
    gold = answers("the red fox ran home")
    assert score("summarization", "the red fox ran home", gold)["rouge_l"] == pytest.approx(1)
    shuffled = score("summarization", "home ran fox red the", gold)
    assert shuffled["rouge_1"] == pytest.approx(1)
    assert shuffled["rouge_l"] == pytest.approx(0.2)


def test_bleu_of_a_translation_is_case_sensitive() -> None:
    gold = answers("Der alte Hund sieht die Katze im Garten.")
    right, lower = gold.answers[0], gold.answers[0].lower()
    assert score("translation", right, gold)["bleu"] == pytest.approx(1)
    assert score("translation", lower, gold)["bleu"] < 0.8
    assert corpus_bleu([(right, gold.answers)] * 2) == pytest.approx(1)
    assert corpus_bleu([(lower, gold.answers)] * 2) < 0.8


def test_any_of_several_translations_is_right() -> None:
    golds = answers("Anna kauft heute ein Buch.", "Heute kauft Anna ein Buch.")
    for text in golds.answers:
        assert score("translation", text, golds)["bleu"] == pytest.approx(1)
        other = "Der Hund schläft im Garten."
        assert corpus_bleu([(text, golds.answers), (other, (other,))]) == pytest.approx(1)


@pytest.mark.parametrize("metric", ["rouge_l", "rouge_1"])
def test_a_summary_is_scored_by_precision_and_recall_together(metric: str) -> None:
    gold = answers("the red fox ran home")
    short = score("summarization", "the red fox", gold)[metric]
    assert short == pytest.approx(2 * 1 * (3 / 5) / (1 + 3 / 5))
    long = score("summarization", "the red fox ran home and slept there all day", gold)[metric]
    assert long == pytest.approx(2 * (5 / 10) * 1 / (5 / 10 + 1))


def test_a_summary_is_scored_without_stemming_and_against_its_nearest_reference() -> None:
    gold = answers("the fox runs home", "a cat sleeps")
    assert score("summarization", "the fox running home", gold)["rouge_l"] == pytest.approx(0.75)
    for metric in ("rouge_l", "rouge_1"):
        assert score("summarization", "a cat sleeps", gold)[metric] == pytest.approx(1)


def test_surrounding_blanks_and_thinking_text_do_not_change_a_score() -> None:
    output, gold = " Anna kauft ein Buch.\n", answers("Anna kauft ein Buch.")
    assert score("translation", output, gold)["exact"] == 1
    assert corpus_bleu([(output, gold.answers)]) == pytest.approx(1)
    assert corpus_bleu([(f"Ein Buch?</think>{output}", gold.answers)]) == pytest.approx(1)


def test_an_exact_translation_equals_any_of_its_gold_answers() -> None:
    gold = answers("Ja.", "Doch.")
    for text, exact in {"Doch.": 1, "Ja.": 1, "Nie.": 0, "Ja": 0, "Ja.!": 0, "och": 0}.items():
        assert score("translation", text, gold)["exact"] == exact


@pytest.mark.parametrize(
    ("family", "useless", "good"),
    [
        ("qa", "The", "The Hague"), ("rag", "?!", "yes"), ("summarization", "...", "so"),
        ("math_reasoning", "2 + ", "2"), ("translation", " ", "Ja"),
    ],
)  # fmt: skip
def test_a_reference_that_no_answer_can_match_is_reported(
    family: str, useless: str, good: str
) -> None:
    assert unreadable(family, answers(useless)) == useless
    assert unreadable(family, answers(good)) is None
    assert unreadable(family, answers(useless, good)) is None
    assert unreadable(family, GoldAnswer()) is None
    assert unreadable("other", answers(useless)) is None
