"""Closed-book questions: training has every fact, but none of the test phrasings.

An answer also gives the country's location and flag, but never another fact that questions may ask
for, which would let a wrong answer score.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from specbench_tasks.generators.base import NAMES, Item, Split, pick, single_turn, texts


class Country(NamedTuple):
    """A country, with questions only for `capital`, `language`, `currency` or `dish`."""

    name: str
    capital: str
    language: str
    currency: str
    dish: str
    region: str
    neighbor: str
    flag: str


_TEXTS = texts("qa")
COUNTRIES = tuple(Country(*line.split("|")) for line in _TEXTS["countries"].splitlines())
TOPICS: dict[str, str] = _TEXTS["topics"]
FRAMES: dict[Split, list[str]] = _TEXTS["frames"]
PHRASINGS: dict[Split, dict[str, list[str]]] = _TEXTS["phrasings"]


def draw(rng: random.Random, split: Split) -> Item:
    """Draw one question about one country."""
    country, kind = pick(rng, COUNTRIES), pick(rng, tuple(TOPICS))
    if rng.random() < 0.6:
        question = pick(rng, FRAMES[split]).format(topic=TOPICS[kind])
    else:
        question = pick(rng, PHRASINGS[split][kind])
    question = question.format(c=country.name)
    if rng.random() < 0.3:
        question = pick(rng, _TEXTS["leads"]).format(q=question, name=pick(rng, NAMES))
    gold = getattr(country, kind)
    details = _TEXTS["details"][len(country.name) % 2].format(c=country.name, **country._asdict())
    claim = _TEXTS["claims"][kind].format(c=country.name, a=gold)
    topic = TOPICS[kind].format(c=country.name)
    answer = f"You ask about {topic}. {claim} {details} So the answer is {gold}."
    return single_turn(question, answer, gold)
