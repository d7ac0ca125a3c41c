"""English to German: two to five plain sentences, each with one right translation in this grammar.

The grammar covers gender, the accusative, adjective endings, verb-second order after a fronted
time, the perfect tense and modal verbs (with the verb at the end).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from specbench_tasks.generators.base import NAMES, Item, Split, key_split, pick, single_turn, texts


class Noun(NamedTuple):
    """A noun: English, German, and gender ``m``, ``f`` or ``n`` (all decline regularly)."""

    english: str
    german: str
    gender: str


_TEXTS = texts("translation")
_PEOPLE, OBJECTS = (
    [Noun(*entry.split(":")) for entry in _TEXTS[name].split()] for name in ("people", "objects")
)
_TRAITS, _LOOKS, _VERBS = (
    [entry.split(":") for entry in _TEXTS[name].split()] for name in ("traits", "looks", "verbs")
)
_ARTICLES = {
    ("nom", True): {"m": "der", "f": "die", "n": "das"},
    ("acc", True): {"m": "den", "f": "die", "n": "das"},
    ("nom", False): {"m": "ein", "f": "eine", "n": "ein"},
    ("acc", False): {"m": "einen", "f": "eine", "n": "ein"},
}
_ENDINGS = {
    ("nom", True): {"m": "e", "f": "e", "n": "e"},
    ("acc", True): {"m": "en", "f": "e", "n": "e"},
    ("nom", False): {"m": "er", "f": "e", "n": "es"},
    ("acc", False): {"m": "en", "f": "e", "n": "es"},
}
"""Endings of adjectives after ``der`` (weak) and ``ein`` (mixed)."""


def draw(rng: random.Random, split: Split) -> Item:
    """Draw one short text, every sentence of which belongs to the split."""
    num = rng.choices((2, 3, 4, 5), (1, 2, 4, 3))[0]
    if split == "test":
        num = max(num, 3)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < num:
        pair = _sentence(rng)
        if key_split(f"translation {pair[0]}") == split:
            pairs.append(pair)
    english, german = (" ".join(sentences) for sentences in zip(*pairs, strict=True))
    return single_turn(pick(rng, _TEXTS["instructions"]).format(text=english), german)


def noun_phrase(noun: Noun, adjective: str, case: str, definite: bool) -> str:
    """Return article, declined adjective (none if empty) and noun, e.g. ``einen roten Apfel``."""
    article = _ARTICLES[case, definite][noun.gender]
    if not adjective:
        return f"{article} {noun.german}"
    return f"{article} {adjective}{_ENDINGS[case, definite][noun.gender]} {noun.german}"


def _phrase(
    rng: random.Random, pool: Sequence[Noun], adjectives: Sequence[Sequence[str]], case: str
) -> tuple[str, str]:
    noun, definite = pick(rng, pool), rng.random() < 0.5
    english, german = pick(rng, adjectives) if rng.random() < 0.6 else ("", "")
    words = f"{english} {noun.english}".strip()
    article = "the" if definite else "an" if words[0] in "aeiou" else "a"
    return f"{article} {words}", noun_phrase(noun, german, case, definite)


def _sentence(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.35:
        name = pick(rng, NAMES)
        subject = (name, name)
    else:
        subject = _phrase(rng, _PEOPLE, _TRAITS, "nom")
    thing = _phrase(rng, OBJECTS, _LOOKS, "acc")
    (sees, saw, see, sieht, gesehen, sehen), place = pick(rng, _VERBS), pick(rng, _TEXTS["places"])
    form = rng.randrange(4)
    if form == 0:
        english = f"{subject[0]} {sees} {thing[0]} {place[0]}"
        german = f"{subject[1]} {sieht} {thing[1]} {place[1]}"
    elif form == 1:
        time = pick(rng, _TEXTS["times"])
        english = f"{time[0]}, {subject[0]} {sees} {thing[0]}"
        german = f"{time[1]} {sieht} {subject[1]} {thing[1]}"
    elif form == 2:
        time = pick(rng, _TEXTS["past_times"])
        english = f"{time[0]}, {subject[0]} {saw} {thing[0]}"
        german = f"{time[1]} hat {subject[1]} {thing[1]} {gesehen}"
    else:
        modal = pick(rng, _TEXTS["modals"])
        english = f"{subject[0]} {modal[0]} {see} {thing[0]} {place[0]}"
        german = f"{subject[1]} {modal[1]} {thing[1]} {place[1]} {sehen}"
    return f"{english[0].upper()}{english[1:]}.", f"{german[0].upper()}{german[1:]}."
