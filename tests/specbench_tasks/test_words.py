"""Latin text has the words of rouge-score and sacrebleu; other scripts have words of their own."""

from __future__ import annotations

import random

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from specbench_tasks.scorers import RougeWords, normalized_words, score, spaced
from specbench_tasks.task import GoldAnswer

PIECES = (
    *("the", "Fox", "U.S.", "don't", "don’t", "naïve", "ÉTÉ", "Straße", "3.5", "1,000", "e-mail"),
    *(
        "—",
        "«oui»",
        "“no”",
        "50 µm",
        "x²",
        "½",
        "a_b",
        "İstanbul",
        "ﬁne",
        "·",
        "…",
        "\u02bc",
        "(b)",
    ),
    *("e\u0301te", "\u200d", "🙂", "№5", "Å", "ªº", "\n", "\t", ""),
)


def latin(draw: random.Random) -> str:
    return draw.choice(["", " "]).join(draw.choices(PIECES, k=draw.randrange(1, 14)))


def test_latin_text_is_split_into_the_same_words_as_by_rouge_score():
    draw, theirs = random.Random(1), DefaultTokenizer(use_stemmer=False)
    for _ in range(500):
        text = latin(draw)
        assert RougeWords().tokenize(text) == theirs.tokenize(text), repr(text)


def test_latin_text_is_scored_as_rouge_score_and_sacrebleu_score_it():
    draw = random.Random(2)
    rouge = RougeScorer(["rougeL", "rouge1"], use_stemmer=False)
    for _ in range(100):
        said, gold = latin(draw), latin(draw)
        assert spaced(said) == said
        if not gold.strip():
            continue
        row = score("summarization", said, GoldAnswer(answers=(gold,)))
        expected = rouge.score(gold, said.strip())
        assert row["rouge_l"] == expected["rougeL"].fmeasure
        assert row["rouge_1"] == expected["rouge1"].fmeasure
        bleu = score("translation", said, GoldAnswer(answers=(gold,)))["bleu"]
        expected = sacrebleu.sentence_bleu(said.strip(), [gold]).score / 100
        assert bleu == pytest.approx(min(1, expected), abs=1e-12)


def test_chinese_is_cut_as_sacrebleu_cuts_it():
    gold, said = "小猫在花园里睡觉，小狗也睡觉。", "小猫在公园里睡觉，狗也睡觉。"
    theirs = sacrebleu.sentence_bleu(said, [gold], tokenize="zh").score / 100
    ours = score("translation", said, GoldAnswer(answers=(gold,)))["bleu"]
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("猫はTokyoへ、行く。", ["猫", "は", "tokyo", "へ", "行", "く"]),
        ("Кот, «спит» в саду!", ["кот", "спит", "в", "саду"]),
        ("ลังกิน", ["ลั", "ง", "กิ", "น"]),
        ("कि वह", ["कि", "वह"]),
        ("٣ قطط", ["٣", "قطط"]),
        ("コーヒー", ["コ", "ー", "ヒ", "ー"]),
    ],
)
def test_words_of_non_latin_scripts_are_split_by_script(text: str, words: list[str]):
    assert RougeWords().tokenize(text) == words
    assert normalized_words(text) == words


def test_composed_and_decomposed_letters_are_the_same_word():
    for composed, decomposed in (("чай", "чаи\u0306"), ("が", "か\u3099")):
        assert RougeWords().tokenize(composed) == RougeWords().tokenize(decomposed)
        assert normalized_words(composed) == normalized_words(decomposed)
