"""Draw longer texts: documents to search, news to summarise, stories to write and to continue.

*Questions over two short documents*: find the right person, and state a fact about them. Each
document states two facts about one person; all facts of a prompt are of different kinds. The answer
states only the requested fact: with further facts a wrong answer could score.

*News* items have a few relevant and some irrelevant facts. There are four kinds, each written in
varied words and order among filler sentences. The summary states the relevant facts in a fixed
order and wording, so all its content is copied from the item.

*Two-turn writing with checkable demands*: a story or a diary page, then something built on it. The
wording is free (sentences and their words are drawn at random), so entropy is high; responses
always meet the user's demands. Turn 2 depends on turn 1: it only says "the story" or "the hero".
"""

from __future__ import annotations

import random
import re
from typing import Any

from specbench_tasks.generators.base import (
    NAMES,
    WORDS,
    Item,
    Split,
    key_split,
    pick,
    pick_distinct,
    pronouns,
    single_turn,
    texts,
)
from specbench_tasks.task import Constraint, GoldAnswer

_RAG, _NEWS, _WRITING = texts("rag"), texts("summarization"), texts("mt_bench")
_FACTS = _RAG["facts"]
_KINDS = _NEWS["kinds"]
_POOLS = {name: text.split() for name, text in _WRITING["pools"].items()}
_PROMPTS = _WRITING["prompts"]
_SEQUEL = _WRITING["story"] | _WRITING["sequel"]
Turn = tuple[str, GoldAnswer, str]


def draw_rag(rng: random.Random, split: Split) -> Item:
    """Draw two documents of two facts each, all four of different kinds, and one question."""
    while True:
        names = pick_distinct(rng, NAMES, 2)
        people = [_values(rng), _values(rng)]
        kinds = pick_distinct(rng, tuple(_FACTS), len(_FACTS))
        index = rng.randrange(len(kinds))
        person, kind = index // 2, kinds[index]
        if key_split(f"rag {kind} {names} {people[person].values()}") == split:
            break
    texts = [
        " ".join(_FACTS[k]["told"].format(name=name, **values) for k in pair)
        for name, values, pair in zip(names, people, (kinds[:2], kinds[2:]), strict=True)
    ]
    docs = " ".join(f"[{number}] {text}" for number, text in enumerate(texts, start=1))
    question = pick(rng, _FACTS[kind]["asked"]).format(name=names[person])
    prompt = pick(rng, _RAG["instructions"]).format(docs=docs, question=question)
    claim = _FACTS[kind]["told"].format(name=names[person], **people[person])
    answer = (
        f"The question is about {names[person]}. The documents say that {claim} The other document "
        f"is about {names[1 - person]}. So the answer is {people[person][kind]}."
    )
    return single_turn(prompt, answer, people[person][kind])


def _values(rng: random.Random) -> dict[str, str]:
    return {
        "job": pick(rng, WORDS["jobs"]),
        "city": pick(rng, WORDS["cities"]),
        "thing": f"{pick(rng, WORDS['colors'])} {pick(rng, WORDS['things'])}",
        "pet": pick(rng, WORDS["animals"]),
    }


def draw_summarization(rng: random.Random, split: Split) -> Item:
    """Draw one news item, whose content key is its slots together."""
    while True:
        kind_index = rng.randrange(len(_KINDS))
        slots = _slots(rng)
        if key_split(f"summarization {kind_index} {sorted(slots.items())}") == split:
            break
    kind = _KINDS[kind_index]
    body = [pick(rng, fact) for fact in kind["facts"]]
    body += pick_distinct(rng, _NEWS["fillers"], rng.choice((1, 2)))
    rng.shuffle(body)
    text = " ".join([pick(rng, kind["leads"]), *body]).format(**slots)
    prompt = pick(rng, _NEWS["instructions"]).format(text=text)
    return single_turn(prompt, kind["summary"].format(**slots))


def _slots(rng: random.Random) -> dict[str, str]:
    city, place = pick_distinct(rng, WORDS["cities"], 2)
    building, other = pick_distinct(rng, _NEWS["buildings"].split(), 2)
    team, rival = pick_distinct(rng, _NEWS["teams"].split(), 2)
    return {
        "city": city,
        "place": place,
        "building": building,
        "other": other,
        "team": team,
        "rival": rival,
        "day": pick(rng, WORDS["days"]),
        "n": str(rng.randint(2, 99)),
        "first": pick(rng, NAMES),
        "last": pick(rng, WORDS["surnames"]),
        "color": pick(rng, WORDS["colors"][3:]),
        "animal": pick(rng, WORDS["animals"]),
        "goods": pick(rng, _NEWS["goods"].split()),
        "look": pick(rng, ("stronger", "higher", "longer", "safer")),
    }


def draw_mt_bench(rng: random.Random, split: Split) -> Item:
    """Draw one two-turn conversation, keyed by hero, animal and demanded words."""
    while True:
        name, friend = pick_distinct(rng, NAMES, 2)
        animal = pick(rng, WORDS["animals"])
        words = pick_distinct(rng, WORDS["things"], 3)
        if key_split(f"mt_bench {name} {animal} {words}") == split:
            break
    slots = {"name": name, "friend": friend, "animal": animal, "place": pick(rng, WORDS["places"])}
    for word, pronoun in zip(("he", "his"), pronouns(name), strict=True):
        slots |= {word: pronoun, word.capitalize(): pronoun.capitalize()}
    first = _first_turn(rng, slots, words[:2])
    second = _second_turn(rng, slots, words[2])
    return Item(
        turns=(first[0], second[0]),
        references=(first[1], second[1]),
        responses=(first[2], second[2]),
    )


def _demand(*constraints: tuple[Any, str | int]) -> GoldAnswer:
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
        n=WORDS["number_words"][num], one=words[0], two=words[1], **slots
    )
    text = _write(rng, _WRITING[kind], num, words, slots)
    demands = _demand(
        *(("contains", word) for word in (slots["name"], slots["animal"], *words)),
        ("num_sentences", num),
        *([("starts_with", "Dear diary")] if kind == "diary" else []),
    )
    return prompt, demands, text


def _second_turn(rng: random.Random, slots: dict[str, str], word: str) -> Turn:
    roll, num = rng.random(), rng.choice((3, 4))
    count = WORDS["number_words"][num]
    if roll < 0.4:
        text = _write(rng, _SEQUEL, num, [word], slots)
        demands = _demand(("contains", slots["name"]), ("contains", word), ("num_sentences", num))
        return pick(rng, _PROMPTS["continue"]).format(n=count, word=word), demands, text
    if roll < 0.85:
        text = _write(rng, _WRITING["letter"], num, [word], slots)
        demands = _demand(
            ("starts_with", f"Dear {slots['friend']}"),
            ("ends_with", slots["name"]),
            ("contains", word),
            ("num_sentences", num),
        )
        prompt = pick(rng, _PROMPTS["letter"]).format(n=count, word=word, friend=slots["friend"])
        return prompt, demands, text
    text = _fill(rng, pick(rng, _WRITING["who"]), slots)
    demands = _demand(("contains", slots["name"]), ("contains", slots["animal"]))
    return pick(rng, _PROMPTS["question"]), demands, text
