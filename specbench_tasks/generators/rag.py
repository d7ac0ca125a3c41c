"""Questions over two short documents: find the right person, and state a fact about them.

Each document states two facts about one person; all facts of a prompt are of different kinds. The
question asks for one fact. The answer states no other, which would let a wrong answer score.
"""

from __future__ import annotations

import random

from specbench_tasks.generators.base import (
    ANIMALS,
    CITIES,
    COLORS,
    JOBS,
    NAMES,
    THINGS,
    Item,
    Split,
    key_split,
    pick,
    pick_distinct,
    single_turn,
    texts,
)

_TEXTS = texts("rag")
_FACTS = _TEXTS["facts"]


def draw(rng: random.Random, split: Split) -> Item:
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
    prompt = pick(rng, _TEXTS["instructions"]).format(docs=docs, question=question)
    claim = _FACTS[kind]["told"].format(name=names[person], **people[person])
    answer = (
        f"The question is about {names[person]}. The documents say that {claim} The other document "
        f"is about {names[1 - person]}. So the answer is {people[person][kind]}."
    )
    return single_turn(prompt, answer, people[person][kind])


def _values(rng: random.Random) -> dict[str, str]:
    return {
        "job": pick(rng, JOBS),
        "city": pick(rng, CITIES),
        "thing": f"{pick(rng, COLORS)} {pick(rng, THINGS)}",
        "pet": pick(rng, ANIMALS),
    }
