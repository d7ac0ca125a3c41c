"""Draw short prompts with a right answer: word problems, facts of countries, translations, lists.

*Word problems* have one to three steps on numbers below 100, and the working is written out. Sums
are split into tens and ones (``47 + 25 = 60 + 12 = 72``, ``72 - 18 = 62 - 8 = 54``), so each digit
depends on few others. The question determines the whole answer.

*Closed-book questions*: training has every fact, but none of the test phrasings. An answer also
gives the country's location and flag, but never another fact that questions ask for, so that a
wrong answer cannot score.

*English to German*: two to five plain sentences, each with one right translation in this grammar,
which covers gender, the accusative, adjective endings, verb-second order after a fronted time, the
perfect tense and modal verbs (with the verb at the end).

*Lists* of letters to copy, change in one place or reorder show parallel prediction's cost, as the
dependence between the items of an answer is known (the idea of ParallelBench, arXiv 2510.04767).
``copy`` has one right answer, ``replace`` one for each item, and ``shuffle`` one for each other
order. Lists are not part of the zoo's default, and the zoo's models never learned them.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from typing import NamedTuple

from specbench_tasks.generators.base import (
    NAMES,
    Item,
    Split,
    key_split,
    pick,
    pick_distinct,
    pronouns,
    single_turn,
    texts,
)

_MATH, _QA, _TRANSLATION = texts("math_reasoning"), texts("qa"), texts("translation")
_LISTS = texts("lists")
_DRILL_SHARE = 0.15
"""Share of bare sums among the training items (never among the held-out items)."""


def working(value: int, step: int) -> tuple[str, int]:
    """Write out the working of one change of `value` and return it with the new value."""
    amount, total = abs(step), value + step
    tens, ones = amount // 10 * 10, amount % 10
    if step > 0:
        parts = f"{value // 10 * 10 + tens} + {value % 10 + ones}"
        return f"{value} + {amount} = {parts} = {total}", total
    middle = f" = {value - tens} - {ones}" if tens else ""
    return f"{value} - {amount}{middle} = {total}", total


def draw_math(rng: random.Random, split: Split) -> Item:
    """Draw one word problem, or sometimes a bare sum (only in training)."""
    drill = split == "train" and rng.random() < _DRILL_SHARE
    while True:
        packed = not drill and rng.random() < 0.35
        num_steps = 1 if drill or packed else 2
        num_steps += not drill and rng.random() < 0.2
        boxes, each = rng.randint(2, 9), rng.randint(2, 9)
        start = boxes * each if packed else rng.randint(8, 90)
        value, steps = start, list[int]()
        for _ in range(num_steps):  # the running value stays between 1 and 99
            low = value < 20 or (value < 80 and rng.random() < 0.5)
            amount = rng.randint(2, min(99 - value, 60) if low else min(value - 1, 60))
            steps.append(amount if low else -amount)
            value += steps[-1]
        if drill and rng.random() < 0.3:
            if key_split(f"math {boxes}*{each}") == split:
                text, total = f"{boxes} * {each}", boxes * each
                answer = f"{text} = {total}. The answer is {total}."
                return single_turn(f"What is {text}?", answer, str(total))
            continue
        key = (f"{boxes}*{each}" if packed else str(start)) + "".join(f"{s:+}" for s in steps)
        if key_split(f"math {key}") == split:
            break
    if not drill:
        return _story(rng, start, (boxes, each) if packed else None, steps)
    text, total = working(start, steps[0])
    opening = pick(rng, ("What is", "Work out", "Calculate"))
    mark = "?" if opening == "What is" else "."
    prompt = f"{opening} {start} {'+' if steps[0] > 0 else '-'} {abs(steps[0])}{mark}"
    return single_turn(prompt, f"{text}. The answer is {total}.", str(total))


def _story(
    rng: random.Random, start: int, packed: tuple[int, int] | None, steps: list[int]
) -> Item:
    name = pick(rng, NAMES)
    items, boxes = pick(rng, _MATH["items"].split()), pick(rng, _MATH["boxes"].split())
    he, _ = pronouns(name)
    if packed:
        a, b = packed
        prompt = [pick(rng, _MATH["packed"]).format(name=name, a=a, b=b, boxes=boxes, items=items)]
        answer = [f"{name} has {a} {boxes} with {b} {items} each: {a} * {b} = {start}."]
    else:
        prompt = [pick(rng, _MATH["starts"]).format(name=name, n=start, items=items)]
        answer = [f"{name} starts with {start} {items}."]
    value = start
    for index, step in enumerate(steps):
        verb, tail = pick(rng, _MATH["more" if step > 0 else "less"])
        action = f"{verb} {abs(step)} {tail}".rstrip()
        opener = ("", "Then ", "After that, ")[index]
        he_now = he if opener else he.capitalize()
        text, value = working(value, step)
        prompt.append(f"{opener}{he_now} {action}.")
        answer.append(f"{opener}{he_now} {action}: {text}.")
    prompt.append(pick(rng, _MATH["questions"]).format(name=name, items=items))
    answer.append(f"So {name} has {value} {items} now. The answer is {value}.")
    return single_turn(" ".join(prompt), " ".join(answer), str(value))


class Country(NamedTuple):
    """Describe a country. Only `capital`, `language`, `currency` and `dish` have questions."""

    name: str
    capital: str
    language: str
    currency: str
    dish: str
    region: str
    neighbor: str
    flag: str


COUNTRIES = tuple(Country(*line.split("|")) for line in _QA["countries"].splitlines())
TOPICS: dict[str, str] = _QA["topics"]
FRAMES: dict[Split, list[str]] = _QA["frames"]
PHRASINGS: dict[Split, dict[str, list[str]]] = _QA["phrasings"]


def draw_qa(rng: random.Random, split: Split) -> Item:
    """Draw one question about one country."""
    country, kind = pick(rng, COUNTRIES), pick(rng, tuple(TOPICS))
    if rng.random() < 0.6:
        question = pick(rng, FRAMES[split]).format(topic=TOPICS[kind])
    else:
        question = pick(rng, PHRASINGS[split][kind])
    question = question.format(c=country.name)
    if rng.random() < 0.3:
        question = pick(rng, _QA["leads"]).format(q=question, name=pick(rng, NAMES))
    gold = getattr(country, kind)
    details = _QA["details"][len(country.name) % 2].format(c=country.name, **country._asdict())
    claim = _QA["claims"][kind].format(c=country.name, a=gold)
    topic = TOPICS[kind].format(c=country.name)
    answer = f"You ask about {topic}. {claim} {details} So the answer is {gold}."
    return single_turn(question, answer, gold)


class Noun(NamedTuple):
    """Hold a noun: English, German, and gender ``m``, ``f`` or ``n`` (all decline regularly)."""

    english: str
    german: str
    gender: str


_PEOPLE, OBJECTS = (
    [Noun(*entry.split(":")) for entry in _TRANSLATION[name].split()]
    for name in ("people", "objects")
)
_TRAITS, _LOOKS, _VERBS = (
    [entry.split(":") for entry in _TRANSLATION[name].split()]
    for name in ("traits", "looks", "verbs")
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


def draw_translation(rng: random.Random, split: Split) -> Item:
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
    return single_turn(pick(rng, _TRANSLATION["instructions"]).format(text=english), german)


def noun_phrase(noun: Noun, adjective: str, case: str, definite: bool) -> str:
    """Return article, declined adjective and noun, e.g. ``einen roten Apfel``.

    Args:
        noun: the noun, in the singular.
        adjective: its stem, e.g. ``rot``; empty: none.
        case: ``nom`` or ``acc``.
        definite: whether the article is ``der`` rather than ``ein``.
    """
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
    (sees, saw, see, sieht, gesehen, sehen), place = (
        pick(rng, _VERBS),
        pick(rng, _TRANSLATION["places"]),
    )
    form = rng.randrange(4)
    if form == 0:
        english = f"{subject[0]} {sees} {thing[0]} {place[0]}"
        german = f"{subject[1]} {sieht} {thing[1]} {place[1]}"
    elif form == 1:
        time = pick(rng, _TRANSLATION["times"])
        english = f"{time[0]}, {subject[0]} {sees} {thing[0]}"
        german = f"{time[1]} {sieht} {subject[1]} {thing[1]}"
    elif form == 2:
        time = pick(rng, _TRANSLATION["past_times"])
        english = f"{time[0]}, {subject[0]} {saw} {thing[0]}"
        german = f"{time[1]} hat {subject[1]} {thing[1]} {gesehen}"
    else:
        modal = pick(rng, _TRANSLATION["modals"])
        english = f"{subject[0]} {modal[0]} {see} {thing[0]} {place[0]}"
        german = f"{subject[1]} {modal[1]} {thing[1]} {place[1]} {sehen}"
    return f"{english[0].upper()}{english[1:]}.", f"{german[0].upper()}{german[1:]}."


NUM_ITEMS = 6
"""Number of items in every list."""


def draw_copy(rng: random.Random, split: Split) -> Item:
    """Draw a list with one right answer: itself."""
    items = ", ".join(_letters(rng, split, "copy")[:NUM_ITEMS])
    return single_turn(pick(rng, _LISTS["copy"]).format(items=items), items)


def draw_replace(rng: random.Random, split: Split) -> Item:
    """Draw a list and a new item, with a right answer for each item that it may replace."""
    *letters, new = _letters(rng, split, "replace")
    prompt = pick(rng, _LISTS["replace"]).format(items=", ".join(letters), new=new)
    answers = [", ".join([*letters[:i], new, *letters[i + 1 :]]) for i in range(NUM_ITEMS)]
    return single_turn(prompt, pick(rng, answers), *answers)


def draw_shuffle(rng: random.Random, split: Split) -> Item:
    """Draw a list whose gold answer is the list itself. Any other order of the list is right."""
    letters = _letters(rng, split, "shuffle")[:NUM_ITEMS]
    prompt = pick(rng, _LISTS["shuffle"]).format(items=", ".join(letters))
    response = letters
    while response == letters:
        response = pick_distinct(rng, letters, NUM_ITEMS)
    return single_turn(prompt, ", ".join(response), ", ".join(letters))


def _letters(rng: random.Random, split: Split, family: str) -> list[str]:
    """Draw different letters, one more than a list has."""
    while True:
        letters = pick_distinct(rng, string.ascii_uppercase, NUM_ITEMS + 1)
        if key_split(f"{family} {letters}") == split:
            return letters
