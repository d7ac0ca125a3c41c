"""Two-turn writing with checkable demands: a story or a diary page, then something built on it.

The wording is free (sentences and their words are drawn at random), so entropy is high; responses
always meet the user's demands. Turn 2 depends on turn 1: it only says "the story" or "the hero".
"""

from __future__ import annotations

import random
import re

from specbench_tasks.generators.base import (
    ANIMALS,
    NAMES,
    NUMBER_WORDS,
    PLACES,
    THINGS,
    Item,
    Split,
    he_or_she,
    his_or_her,
    key_split,
    pick,
    pick_distinct,
    texts,
)
from specbench_tasks.task import Constraint, GoldAnswer

_TEXTS = texts("mt_bench")
_POOLS = {name: text.split() for name, text in _TEXTS["pools"].items()}
_PROMPTS = _TEXTS["prompts"]
_SEQUEL = _TEXTS["story"] | _TEXTS["sequel"]
Turn = tuple[str, GoldAnswer, str]


def draw(rng: random.Random, split: Split) -> Item:
    """Draw one two-turn conversation, keyed by hero, animal and demanded words."""
    while True:
        name, friend = pick_distinct(rng, NAMES, 2)
        animal = pick(rng, ANIMALS)
        words = pick_distinct(rng, THINGS, 3)
        if key_split(f"mt_bench {name} {animal} {words}") == split:
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


def _demand(*constraints: tuple[str, str | int]) -> GoldAnswer:
    return GoldAnswer(constraints=tuple(Constraint(kind=k, value=v) for k, v in constraints))


def _fill(rng: random.Random, pattern: str, slots: dict[str, str]) -> str:
    line = re.sub(r"<(\w+)>", lambda match: pick(rng, _POOLS[match[1]]), pattern)
    return line.format(**slots)


def _write(
    rng: random.Random,
    pool: dict[str, list[str]],
    num: int,
    words: list[str],
    slots: dict[str, str],
) -> str:
    """Write an opening, a sentence per demanded word, free sentences, an ending with the name."""
    sentences = [pick(rng, pool["openings"])]
    sentences += [pick(rng, pool["demanded"]).replace("{word}", word) for word in words]
    sentences += pick_distinct(rng, pool["middles"], num - len(sentences) - 1)
    sentences.append(pick(rng, pool["endings"]))
    return " ".join(_fill(rng, sentence, slots) for sentence in sentences)


def _first_turn(rng: random.Random, slots: dict[str, str], words: list[str]) -> Turn:
    num = rng.choice((4, 5))
    kind = "story" if rng.random() < 0.6 else "diary"
    prompt = pick(rng, _PROMPTS[kind]).format(
        n=NUMBER_WORDS[num], one=words[0], two=words[1], **slots
    )
    text = _write(rng, _TEXTS[kind], num, words, slots)
    demands = _demand(
        *(("contains", word) for word in (slots["name"], slots["animal"], *words)),
        ("num_sentences", num),
        *([("starts_with", "Dear diary")] if kind == "diary" else []),
    )
    return prompt, demands, text


def _second_turn(rng: random.Random, slots: dict[str, str], word: str) -> Turn:
    roll, num = rng.random(), rng.choice((3, 4))
    count = NUMBER_WORDS[num]
    if roll < 0.4:
        text = _write(rng, _SEQUEL, num, [word], slots)
        demands = _demand(("contains", slots["name"]), ("contains", word), ("num_sentences", num))
        return pick(rng, _PROMPTS["continue"]).format(n=count, word=word), demands, text
    if roll < 0.85:
        text = _write(rng, _TEXTS["letter"], num, [word], slots)
        demands = _demand(
            ("starts_with", f"Dear {slots['friend']}"),
            ("ends_with", slots["name"]),
            ("contains", word),
            ("num_sentences", num),
        )
        prompt = pick(rng, _PROMPTS["letter"]).format(n=count, word=word, friend=slots["friend"])
        return prompt, demands, text
    text = _fill(rng, pick(rng, _TEXTS["who"]), slots)
    demands = _demand(("contains", slots["name"]), ("contains", slots["animal"]))
    return pick(rng, _PROMPTS["question"]), demands, text
