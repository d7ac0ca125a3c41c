"""Two-turn writing with checkable demands: a story or a diary page, then something built on it.

The wording is free (sentences and their words are drawn at random), so entropy is high; what the
user demands is always met. Turn 2 leans on turn 1: it speaks of "the story" or "the hero" only.
"""

from __future__ import annotations

import random

from specbench_tasks.generators import prose
from specbench_tasks.generators.base import Item, Split, pick, pick_distinct, split_of
from specbench_tasks.generators.vocab import (
    ANIMALS,
    NAMES,
    NUMBER_WORDS,
    PLACES,
    THINGS,
    he_or_she,
    his_or_her,
)
from specbench_tasks.task import Constraint, GoldAnswer

_STORY_PROMPTS = (
    "Write a story about {name} and a {animal} in {n} sentences. Use the words {one} and {two}.",
    "Please write a story of {n} sentences about {name} and a {animal}, with the "
    "words {one} and {two}.",
    "Tell me a story with a {animal} and a hero called {name}. It should have {n} sentences and "
    "contain the words {one} and {two}.",
    "I need a story in {n} sentences. The hero is {name}, who meets a {animal}. "
    "Use {one} and {two}.",
)
_DIARY_PROMPTS = (
    "Write a diary page for {name}, who met a {animal}, in {n} sentences. Use {one} and {two}.",
    "Please write a page from the diary of {name} in {n} sentences, with a {animal} and the words "
    "{one} and {two}.",
    "{name} met a {animal} and writes a diary. Write the page in {n} sentences, with the words "
    "{one} and {two}.",
)
_CONTINUE_PROMPTS = (
    "Now continue the story in {n} sentences. Use the word {word}.",
    "What happens next? Write {n} more sentences with the word {word}.",
    "Please write {n} more sentences about the hero and use the word {word}.",
)
_LETTER_PROMPTS = (
    "Now write a letter from the hero to {friend} in {n} sentences. Use the word {word}.",
    "The hero writes to {friend} about it. Write the letter in {n} sentences with the word {word}.",
    "Write {n} sentences from the hero to {friend} as a letter, and use the word {word}.",
)
_QUESTION_PROMPTS = (
    "Who is the hero of the story, and which animal is in it?",
    "Tell me the name of the hero and the animal from your text.",
)


def draw(rng: random.Random, split: Split) -> Item:
    """One two-turn conversation; hero, animal and demanded words are the content key."""
    while True:
        name, friend = pick_distinct(rng, NAMES, 2)
        animal = pick(rng, ANIMALS)
        words = pick_distinct(rng, THINGS, 3)
        if split_of(f"mt_bench {name} {animal} {words}") == split:
            break
    slots = {
        "name": name,
        "friend": friend,
        "animal": animal,
        "place": pick(rng, PLACES),
        "he": he_or_she(name),
        "his": his_or_her(name),
        "He": he_or_she(name).capitalize(),
        "His": his_or_her(name).capitalize(),
    }
    first = _first_turn(rng, slots, words[:2])
    second = _second_turn(rng, slots, words[2])
    return Item(
        turns=(first[0], second[0]),
        references=(first[1], second[1]),
        responses=(first[2], second[2]),
    )


Turn = tuple[str, GoldAnswer, str]


def _demand(*constraints: tuple[str, str | int]) -> GoldAnswer:
    return GoldAnswer(constraints=tuple(Constraint(kind=k, value=v) for k, v in constraints))


def _write(
    rng: random.Random, pool: prose.Prose, num: int, words: list[str], slots: dict[str, str]
) -> str:
    """`num` sentences: an opening, one per demanded word, free ones, an ending with the name."""
    sentences = [pick(rng, pool.openings)]
    sentences += [pick(rng, pool.demanded).replace("{word}", word) for word in words]
    sentences += pick_distinct(rng, pool.middles, num - len(sentences) - 1)
    sentences.append(pick(rng, pool.endings))
    return " ".join(prose.fill(rng, sentence, slots) for sentence in sentences)


def _first_turn(rng: random.Random, slots: dict[str, str], words: list[str]) -> Turn:
    num = rng.choice((4, 5))
    story = rng.random() < 0.6
    prompt = pick(rng, _STORY_PROMPTS if story else _DIARY_PROMPTS).format(
        n=NUMBER_WORDS[num], one=words[0], two=words[1], **slots
    )
    text = _write(rng, prose.STORY if story else prose.DIARY, num, words, slots)
    demands = _demand(
        ("contains", slots["name"]),
        ("contains", slots["animal"]),
        ("contains", words[0]),
        ("contains", words[1]),
        ("num_sentences", num),
        *([] if story else [("starts_with", "Dear diary")]),
    )
    return prompt, demands, text


def _second_turn(rng: random.Random, slots: dict[str, str], word: str) -> Turn:
    roll, num = rng.random(), rng.choice((3, 4))
    count = NUMBER_WORDS[num]
    if roll < 0.4:
        text = _write(rng, prose.SEQUEL, num, [word], slots)
        demands = _demand(("contains", slots["name"]), ("contains", word), ("num_sentences", num))
        return pick(rng, _CONTINUE_PROMPTS).format(n=count, word=word), demands, text
    if roll < 0.85:
        text = _write(rng, prose.LETTER, num, [word], slots)
        demands = _demand(
            ("starts_with", f"Dear {slots['friend']}"),
            ("ends_with", slots["name"]),
            ("contains", word),
            ("num_sentences", num),
        )
        prompt = pick(rng, _LETTER_PROMPTS).format(n=count, word=word, friend=slots["friend"])
        return prompt, demands, text
    text = prose.fill(rng, pick(rng, prose.WHO), slots)
    demands = _demand(("contains", slots["name"]), ("contains", slots["animal"]))
    return pick(rng, _QUESTION_PROMPTS), demands, text
