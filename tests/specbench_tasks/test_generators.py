"""The generators: deterministic, right by an independent check, and split by content."""

from __future__ import annotations

import hashlib
import itertools
import re

import pytest

from specbench_tasks.generators import NUM_ZOO_CONVERSATIONS, generate, zoo_conversations
from specbench_tasks.generators.base import Item, Split, key_split
from specbench_tasks.generators.questions import (
    COUNTRIES,
    FRAMES,
    OBJECTS,
    PHRASINGS,
    TOPICS,
    noun_phrase,
)
from specbench_tasks.scorers import PRIMARY, contains_words, score
from specbench_tasks.task import FAMILIES

PIECES = re.compile(r" ?[^\W\d_]+|\d| ?[^\s\w]+|\s+")


def draw(family: str, split: Split, num: int, seed: int = 3) -> list[Item]:
    return list(itertools.islice(generate(family, split, seed), num))


def num_tokens(text: str) -> int:
    return len(PIECES.findall(f" {text}"))


PUBLISHED = {
    "mt_bench": "72b1adbac5a3", "translation": "028e7d57973e", "summarization": "a4eee65f5c95",
    "qa": "740d1fbdbb14", "math_reasoning": "329954416f43", "rag": "b81cbdadf6c8",
    "copy": "355d9478d143", "replace": "3b1e5eb00540", "shuffle": "275483d49bcc",
}  # fmt: skip
"""Hashes of what the families' numbers and models were published with."""


@pytest.mark.parametrize("family", PUBLISHED)
def test_prompts_references_and_training_text_are_those_that_numbers_were_published_with(
    family: str,
) -> None:
    kept = [
        (
            c.id,
            c.turns,
            [
                (r.answers, [(demand.kind, demand.value) for demand in r.constraints])
                for r in c.references
                if r
            ],
        )
        for c in zoo_conversations(family)
    ]
    taught = [(e.turns, e.responses) for e in draw(family, "train", 200)]
    digest = hashlib.sha256(repr((kept, taught)).encode()).hexdigest()
    assert digest[:12] == PUBLISHED[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_arguments_give_the_same_examples(family: str) -> None:
    assert draw(family, "train", 20) == draw(family, "train", 20)
    assert draw(family, "train", 20) != draw(family, "train", 20, seed=4)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_held_out_prompt_occurs_in_training_text(family: str) -> None:
    seen = {turns for ex in draw(family, "train", 4000) for turns in ex.turns[:1]}
    held_out = {conversation.turns[0] for conversation in zoo_conversations(family)}
    held_out |= {example.turns[0] for example in draw(family, "test", 500)}
    assert not seen & held_out


def test_no_held_out_translation_shares_a_sentence_with_training() -> None:
    def sentences(split: Split, num: int) -> set[str]:
        answers = (example.responses[0] for example in draw("translation", split, num))
        return {sentence for answer in answers for sentence in answer.split(". ")}

    assert not sentences("train", 4000) & sentences("test", 500)


def test_a_content_key_always_belongs_to_the_same_split() -> None:
    splits = [key_split(f"key {index}") for index in range(4000)]
    assert splits == [key_split(f"key {index}") for index in range(4000)]
    assert 0.1 < splits.count("test") / len(splits) < 0.15


def test_questions_are_phrased_differently_in_the_two_splits() -> None:
    assert not set(FRAMES["train"]) & set(FRAMES["test"])
    for kind in TOPICS:
        train = {frame.format(topic=TOPICS[kind]) for frame in FRAMES["train"]}
        train |= set(PHRASINGS["train"][kind])
        test = {frame.format(topic=TOPICS[kind]) for frame in FRAMES["test"]}
        test |= set(PHRASINGS["test"][kind])
        assert not train & test


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_and_prompts_stay_within_the_length_limits(family: str) -> None:
    examples = draw(family, "test", 400)
    answers = [num_tokens(text) for example in examples for text in example.responses]
    prompts = [num_tokens(text) for ex in examples for text in ex.turns]
    assert min(answers) >= 15
    assert max(answers) <= 120
    assert max(prompts) <= 250


def test_most_answers_are_longer_than_forty_tokens() -> None:
    lengths = [
        num_tokens(text)
        for family in FAMILIES
        for example in draw(family, "test", 100)
        for text in example.responses
    ]
    assert sum(length >= 40 for length in lengths) > len(lengths) / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_every_generated_answer_gets_the_full_score(family: str) -> None:
    for split in ("train", "test"):
        for example in draw(family, split, 200):
            pairs = zip(example.responses, example.references, strict=True)
            for response, reference in pairs:
                assert reference is not None
                assert score(family, response, reference)[PRIMARY[family]] == pytest.approx(1)


def test_every_equation_in_a_worked_answer_holds_and_stays_below_a_hundred() -> None:
    for example in draw("math_reasoning", "train", 1500):
        for chain in re.findall(r"\d[\d +*=-]*=[\d +*=-]*\d", example.responses[0]):
            values = {_value(side) for side in chain.split(" = ")}
            assert len(values) == 1, chain
            assert 0 <= values.pop() < 100


def _value(side: str) -> int:
    words = side.split()
    total = int(words[0])
    for sign, number in zip(words[1::2], words[2::2], strict=True):
        total = {"+": total + int(number), "-": total - int(number), "*": total * int(number)}[sign]
    return total


def test_the_answer_to_a_word_problem_uses_all_numbers_of_its_prompt() -> None:
    for example in draw("math_reasoning", "test", 300):
        prompt, answer = example.turns[0], example.responses[0]
        for number in re.findall(r"\d+", prompt):
            assert re.search(rf"\b{number}\b", answer)


def test_german_articles_and_adjectives_agree() -> None:
    nouns = {noun.english: noun for noun in OBJECTS}
    assert noun_phrase(nouns["apple"], "rot", "acc", False) == "einen roten Apfel"
    assert noun_phrase(nouns["apple"], "rot", "nom", False) == "ein roter Apfel"
    assert noun_phrase(nouns["car"], "alt", "acc", False) == "ein altes Auto"
    assert noun_phrase(nouns["car"], "alt", "acc", True) == "das alte Auto"
    assert noun_phrase(nouns["lamp"], "grün", "acc", False) == "eine grüne Lampe"
    assert noun_phrase(nouns["dog"], "", "acc", True) == "den Hund"


def test_an_answer_to_one_question_does_not_answer_another() -> None:
    for example in draw("qa", "test", 1000):
        gold = example.references[0]
        assert gold is not None
        country = next(c for c in COUNTRIES if c.name in example.responses[0])
        others = {getattr(country, kind) for kind in TOPICS} - set(gold.answers)
        assert not any(contains_words(example.responses[0], other) for other in others)


def test_a_held_out_rag_answer_repeats_the_gold_answer_that_its_prompt_contains() -> None:
    for example in draw("rag", "test", 300):
        gold = example.references[0]
        assert gold is not None
        assert gold.answers[0] in example.turns[0]
        assert example.responses[0].count(gold.answers[0]) >= 2


def test_turn_two_of_mt_bench_leans_on_turn_one() -> None:
    for example in draw("mt_bench", "test", 200):
        first, second = example.references
        assert first is not None
        assert second is not None
        hero = next(str(c.value) for c in first.constraints if c.kind == "contains")
        assert hero in example.turns[0]
        assert hero not in example.turns[1]
        assert any(constraint.value == hero for constraint in second.constraints)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_zoo_test_set_is_fixed_and_its_prompts_are_distinct(family: str) -> None:
    conversations = zoo_conversations(family)
    assert len({c.turns for c in conversations}) == NUM_ZOO_CONVERSATIONS == len(conversations)
    assert conversations[17].id == f"zoo-{family}-00017"


def test_unknown_names_are_refused_with_the_allowed_names() -> None:
    with pytest.raises(ValueError, match="unknown family 'maths'; use one of mt_bench"):
        generate("maths", "train", 0)
