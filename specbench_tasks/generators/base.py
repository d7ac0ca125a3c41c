"""What every generator shares: the split rule, the drawn item, and small helpers for picking words.

A *content key* names what a prompt is about (its numbers, its facts, its sentence), without the
phrasing around it. Its checksum alone decides the split, so nothing held out can appear in training
text, whatever the seed. Standard library only.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from specbench_tasks.task import GoldAnswer

T = TypeVar("T")
Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
_TEST_SHARE = 8
"""One content key in this many is held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One drawn conversation before it gets an id: turns, references and responses, in step."""

    turns: tuple[str, ...]
    references: tuple[GoldAnswer, ...]
    responses: tuple[str, ...]


Draw = Callable[[random.Random, Split], Item]
"""A family: draws one item of a split, taking every random choice from the given generator."""


def words(text: str) -> tuple[str, ...]:
    """The blank-separated words of a pool written as one text."""
    return tuple(text.split())


def split_of(key: str) -> Split:
    """The split a content key belongs to: a checksum decides, so it never depends on a seed."""
    return "test" if zlib.crc32(key.encode()) % _TEST_SHARE == 0 else "train"


def pick(rng: random.Random, pool: Sequence[T]) -> T:
    """One element of `pool`, uniformly; `pool` must not be empty."""
    return pool[int(rng.random() * len(pool))]


def pick_distinct(rng: random.Random, pool: Sequence[T], num: int) -> list[T]:
    """`num` different elements of `pool` in random order; `num` is at most ``len(pool)``."""
    chosen: list[T] = []
    while len(chosen) < num:
        candidate = pick(rng, pool)
        if candidate not in chosen:
            chosen.append(candidate)
    return chosen


def single_turn(prompt: str, response: str, *answers: str) -> Item:
    """An item of one turn whose gold answers are `answers` (the response itself if none)."""
    reference = GoldAnswer(answers=answers or (response,))
    return Item(turns=(prompt,), references=(reference,), responses=(response,))
