"""Draw prompts with references from seeded grammars (standard library only).

The zoo has six families; lists are used only if named. A prompt's split depends only on its
content (see `base.key_split`).
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator

from specbench_tasks.generators import documents, questions
from specbench_tasks.generators.base import Draw, Item, Split
from specbench_tasks.task import Conversation

DRAWS: dict[str, Draw] = {
    "mt_bench": documents.draw_mt_bench,
    "translation": questions.draw_translation,
    "summarization": documents.draw_summarization,
    "qa": questions.draw_qa,
    "math_reasoning": questions.draw_math,
    "rag": documents.draw_rag,
    "copy": questions.draw_copy,
    "replace": questions.draw_replace,
    "shuffle": questions.draw_shuffle,
}
NUM_ZOO_CONVERSATIONS = 120
ZOO_SEED = 20_240_115
"""Seed of the fixed test set; changing it changes every published number."""


def generate(family: str, split: Split, seed: int) -> Iterator[Item]:
    """Return endless examples of one family and split, the same for equal arguments.

    An unknown family raises `ValueError`.
    """
    if family not in DRAWS:
        raise ValueError(f"unknown family {family!r}; use one of {', '.join(DRAWS)}")
    rng = random.Random(f"{family} {split} {seed}")
    return (DRAWS[family](rng, split) for _ in itertools.count())


@functools.cache
def zoo_conversations(family: str) -> tuple[Conversation, ...]:
    """Return the fixed held-out test set: the first 120 distinct conversations of a family."""
    by_turns: dict[tuple[str, ...], Conversation] = {}
    examples = generate(family, "test", ZOO_SEED)
    while len(by_turns) < NUM_ZOO_CONVERSATIONS:
        item, name = next(examples), f"zoo-{family}-{len(by_turns):05d}"
        entry = Conversation(id=name, family=family, turns=item.turns, references=item.references)
        by_turns.setdefault(item.turns, entry)
    return tuple(by_turns.values())
