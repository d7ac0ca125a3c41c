"""Share parts of the generators: the split rule, the drawn item, texts, and word pickers.

A *content key* names the content of a prompt (its numbers, its facts, its sentence), without the
phrasing. Only the key's checksum decides the split, so held-out content never appears in training
text, for any seed.
"""

from __future__ import annotations

import random
import tomllib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, TypeVar

from specbench_tasks.task import GoldAnswer

T = TypeVar("T")
Split = Literal["train", "test"]
_TEST_SHARE = 8
"""One content key in this many is held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Hold one drawn conversation: its turns, their references, and the responses to learn."""

    turns: tuple[str, ...]
    references: tuple[GoldAnswer, ...]
    responses: tuple[str, ...]


Draw = Callable[[random.Random, Split], Item]
"""Draws one item of a family's split. All random choices come from the generator argument."""


def texts(name: str) -> dict[str, Any]:
    """Read a family's sentences and words (``NAME.toml``), whose order decides the draws."""
    file = files("specbench_tasks") / "generators" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def key_split(key: str) -> Split:
    """Return the split of a content key, by its checksum and independent of seeds."""
    return "test" if zlib.crc32(key.encode()) % _TEST_SHARE == 0 else "train"


def pick(rng: random.Random, pool: Sequence[T]) -> T:
    """Draw one element of a `pool` that is not empty, uniformly."""
    return pool[int(rng.random() * len(pool))]


def pick_distinct(rng: random.Random, pool: Sequence[T], num: int) -> list[T]:
    """Draw `num` different elements of `pool`, at most ``len(pool)``, in random order."""
    picks: list[T] = []
    while len(picks) < num:
        candidate = pick(rng, pool)
        if candidate not in picks:
            picks.append(candidate)
    return picks


def single_turn(prompt: str, response: str, *answers: str) -> Item:
    """Return an item of one turn with gold answers `answers` (by default the response)."""
    reference = GoldAnswer(answers=answers or (response,))
    return Item(turns=(prompt,), references=(reference,), responses=(response,))


WORDS = {name: tuple(text.split()) for name, text in texts("vocab").items()}
NAMES = (*WORDS["women"], *WORDS["men"])


def pronouns(name: str) -> tuple[str, str]:
    """Return the subject pronoun and the possessive pronoun of a name of `NAMES`."""
    return ("she", "her") if name in WORDS["women"] else ("he", "his")
