"""A perfect answer scores 1 in every script, and what a model thought aloud is not its answer."""

import pytest

from specbench_tasks.scorers import PRIMARY, corpus_bleu, score
from specbench_tasks.task import GoldAnswer

TEXTS = (
    "猫は庭で眠る。",
    "小猫在花园里睡觉。",
    "Кот спит в саду.",
    "แมวนอนหลับอยู่ในสวน",
    "القطة تنام في الحديقة.",
    "고양이가 정원에서 잔다.",
    "Η γάτα κοιμάται.",
    "बिल्ली बगीचे में सोती है।",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", ["summarization", "qa", "rag", "translation"])
def test_in_every_script_the_gold_text_is_right_and_other_texts_are_wrong(family: str, text: str):
    gold = GoldAnswer(answers=(text,))
    metric = PRIMARY[family]
    assert score(family, text, gold)[metric] == pytest.approx(1)
    others = [score(family, other, gold)[metric] for other in TEXTS if other != text]
    assert max(others) < 0.5


def test_an_answer_is_found_in_a_sentence_without_spaces():
    tokyo = GoldAnswer(answers=("東京",))
    row = score("qa", "答えは「東京」です。", tokyo)
    assert row["contains_answer"] == 1
    assert 0 < row["f1"] < 1
    assert score("qa", "答えは京都です。", tokyo)["contains_answer"] == 0
    assert score("qa", "Это «Москва».", GoldAnswer(answers=("Москва",)))["contains_answer"] == 1
    assert score("qa", "Москвабад", GoldAnswer(answers=("Москва",)))["contains_answer"] == 0


def test_a_comma_is_a_small_mistake_in_japanese_too():
    gold = GoldAnswer(answers=("猫は庭で、眠る。",))
    assert 0.4 < score("translation", "猫は庭で眠る。", gold)["bleu"] < 1
    assert 0.4 < corpus_bleu([("猫は庭で眠る。", gold.answers)]) < 1


@pytest.mark.parametrize("close", ["</think>", "</thinking>", "[/THINK]", "</THINK>"])
def test_only_text_after_the_last_closed_thought_is_scored(close: str):
    rome, oslo = GoldAnswer(answers=("Rome",)), GoldAnswer(answers=("Oslo",))
    said = f"<think>\nIt may be Rome.\n</think>Or Rome?\n{close}\nOslo"
    assert score("qa", said, rome)["contains_answer"] == 0
    assert score("qa", said, oslo)["contains_answer"] == 1
    for family in ("translation", "summarization", "math_reasoning"):
        said = f"It is 7 or so.{close}\nDer Hund hat 5 Beine."
        gold = GoldAnswer(answers=("Der Hund hat 5 Beine.",))
        assert score(family, said, gold)[PRIMARY[family]] == pytest.approx(1)
    assert corpus_bleu([(said, gold.answers)]) == pytest.approx(1)


def test_an_unclosed_thought_is_not_scored_as_an_answer():
    assert (
        score("qa", "<think>It may be Rome", GoldAnswer(answers=("Rome",)))["contains_answer"] == 0
    )
