"""English to German: three to five plain sentences, each with exactly one right translation here.

The grammar covers gender, the accusative, adjective endings, verb-second order after a fronted
time, the perfect tense and modal verbs (with the verb at the end).
"""

from __future__ import annotations

import random

from specbench_tasks.generators import german
from specbench_tasks.generators.base import Item, Split, pick, single_turn, split_of
from specbench_tasks.generators.vocab import NAMES

INSTRUCTIONS = (
    "Translate into German: {text}",
    "Translate the text into German. {text}",
    "Please translate this into German: {text}",
    "What is this in German? {text}",
    "How do you say this in German? {text}",
    "Give the German translation of this text: {text}",
    "Write this text in German: {text}",
)


def draw(rng: random.Random, split: Split) -> Item:
    """One short text; each of its sentences belongs to the split on its own."""
    num = rng.choices((2, 3, 4, 5), (1, 2, 4, 3))[0]
    if split == "test":
        num = max(num, 3)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < num:
        pair = _sentence(rng)
        if split_of(f"translation {pair[0]}") == split:
            pairs.append(pair)
    text = " ".join(english for english, _ in pairs)
    return single_turn(
        pick(rng, INSTRUCTIONS).format(text=text), " ".join(other for _, other in pairs)
    )


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _phrase(
    rng: random.Random,
    pool: tuple[german.Noun, ...],
    adjectives: tuple[tuple[str, ...], ...],
    case: str,
) -> tuple[str, str]:
    noun, definite = pick(rng, pool), rng.random() < 0.5
    adjective = pick(rng, adjectives) if rng.random() < 0.6 else ("", "")
    words = f"{adjective[0]} {noun.english}".strip()
    article = "the" if definite else _article(words)
    return f"{article} {words}", german.noun_phrase(noun, adjective[1], case, definite)


def _sentence(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.35:
        name = pick(rng, NAMES)
        subject = (name, name)
    else:
        subject = _phrase(rng, german.PEOPLE, german.TRAITS, "nom")
    thing = _phrase(rng, german.OBJECTS, german.LOOKS, "acc")
    verb, place = pick(rng, german.VERBS), pick(rng, german.PLACES)
    form = rng.randrange(4)
    if form == 0:
        english = f"{subject[0]} {verb.english} {thing[0]} {place[0]}"
        other = f"{subject[1]} {verb.german} {thing[1]} {place[1]}"
    elif form == 1:
        time = pick(rng, german.TIMES)
        english = f"{time[0]}, {subject[0]} {verb.english} {thing[0]}"
        other = f"{time[1]} {verb.german} {subject[1]} {thing[1]}"
    elif form == 2:
        time = pick(rng, german.PAST_TIMES)
        english = f"{time[0]}, {subject[0]} {verb.past} {thing[0]}"
        other = f"{time[1]} hat {subject[1]} {thing[1]} {verb.participle}"
    else:
        modal = pick(rng, german.MODALS)
        english = f"{subject[0]} {modal[0]} {verb.base} {thing[0]} {place[0]}"
        other = f"{subject[1]} {modal[1]} {thing[1]} {place[1]} {verb.infinitive}"
    return f"{english[0].upper()}{english[1:]}.", f"{other[0].upper()}{other[1:]}."
