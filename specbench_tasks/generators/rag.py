"""Questions over a few short documents: find the person asked about, and say what is told of them.

Each document tells two facts of one person and no two facts of a prompt are of one kind; the
question asks one of them. The answer never tells the others, which would let a wrong answer score.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from specbench_tasks.generators.base import Item, Split, pick, pick_distinct, single_turn, split_of
from specbench_tasks.generators.vocab import ANIMALS, CITIES, COLORS, JOBS, NAMES, THINGS

INSTRUCTIONS = (
    "{docs} Question: {question}",
    "Here are some documents. {docs} Use them to answer. {question}",
    "Read the documents. {docs} {question}",
    "{docs} Answer from the documents: {question}",
    "Use the documents to answer the question. {docs} {question}",
)


@dataclass(frozen=True, slots=True)
class _Fact:
    """A kind of fact: how a document and the answer tell it, and how it is asked."""

    told: str
    asked: tuple[str, ...]


_FACTS = {
    "job": _Fact(
        told="{name} works as a {job}.",
        asked=("What is the job of {name}?", "What does {name} work as?"),
    ),
    "city": _Fact(
        told="{name} lives in {city}.",
        asked=("Where does {name} live?", "In which city does {name} live?"),
    ),
    "thing": _Fact(
        told="{name} owns a {thing}.",
        asked=("What does {name} own?", "Which thing does {name} own?"),
    ),
    "pet": _Fact(
        told="{name} has a {pet}.",
        asked=("Which animal does {name} have?", "What animal does {name} keep?"),
    ),
}


def draw(rng: random.Random, split: Split) -> Item:
    """Two documents of two facts each, all four of different kinds, and one question."""
    while True:
        names = pick_distinct(rng, NAMES, 2)
        people = [_values(rng), _values(rng)]
        kinds = pick_distinct(rng, tuple(_FACTS), len(_FACTS))
        place = rng.randrange(len(kinds))
        asked, kind = place // 2, kinds[place]
        if split_of(f"rag {kind} {names} {people[asked].values()}") == split:
            break
    docs = " ".join(
        f"[{index + 1}] {_document(names[index], people[index], kinds[2 * index : 2 * index + 2])}"
        for index in range(2)
    )
    question = pick(rng, _FACTS[kind].asked).format(name=names[asked])
    prompt = pick(rng, INSTRUCTIONS).format(docs=docs, question=question)
    answer = _answer(names[asked], names[1 - asked], kind, people[asked])
    return single_turn(prompt, answer, people[asked][kind])


def _values(rng: random.Random) -> dict[str, str]:
    return {
        "job": pick(rng, JOBS),
        "city": pick(rng, CITIES),
        "thing": f"{pick(rng, COLORS)} {pick(rng, THINGS)}",
        "pet": pick(rng, ANIMALS),
    }


def _document(name: str, values: dict[str, str], kinds: list[str]) -> str:
    return " ".join(_FACTS[kind].told.format(name=name, **values) for kind in kinds)


def _answer(name: str, other: str, kind: str, values: dict[str, str]) -> str:
    claim = _FACTS[kind].told.format(name=name, **values)
    return (
        f"The question is about {name}. The documents say that {claim} The other document is about "
        f"{other}. So the answer is {values[kind]}."
    )
