"""Lists of letters to copy, change in one place or reorder, which show parallel prediction's cost.

Source: the idea of ParallelBench (arXiv 2510.04767): how much the items of an answer depend on each
other is known, and so is the loss of a predictor that draws them independently. ``copy`` has one
right answer, ``replace`` one for each item, and ``shuffle`` one for each other order. The tasks are
not part of the zoo's default, and the zoo's models never learned them.

A predictor that fills several slots in one pass draws each slot from its own distribution, given
the earlier text. The best such distributions are the task's marginals (only they minimise the
loss). A list of n items drawn from them in one pass is right with these probabilities:

    copy      1
    replace   (1 - 1/n)^(n-1)                exactly one slot takes the new item
    shuffle   sum over the other orders of the product of marginals; without "other", n! / n^n

Filling slots in groups, each of which sees the earlier groups, can be better; filling them one by
one gives 1. These are ceilings of drawing from the task's distribution at temperature 1;
always giving the same right answer may do better. The groups are our own addition.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from functools import cache
from math import comb, factorial, perm

from specbench_tasks.generators.base import Item, Split, key_split, pick, pick_distinct, single_turn
from specbench_tasks.task import LISTS

NUM_ITEMS = 6
"""Number of items in every list."""

_QUESTIONS = {
    "copy": (
        "Repeat this list as it is: {items}",
        "{items} - write the same list again, and nothing else.",
    ),
    "replace": (
        "Replace one item of this list, drawn at random, by {new}: {items}. Write the list alone.",
        "{items} - put {new} in the place of one random item and write the list alone.",
    ),
    "shuffle": (
        "Write this list in another, random order, and nothing else: {items}",
        "{items} - shuffle this list and write it alone.",
    ),
}


def written(items: list[str]) -> str:
    """Write a list in the form of prompts and answers."""
    return ", ".join(items)


def split_items(text: str) -> list[str]:
    """Return an answer's comma-separated items, but no single letters of other text."""
    return [part.strip() for part in text.strip().removesuffix(".").split(",")]


def draw_copy(rng: random.Random, split: Split) -> Item:
    """Draw a list with one right answer: itself."""
    letters = _letters(rng, split, "copy")[:NUM_ITEMS]
    prompt = pick(rng, _QUESTIONS["copy"]).format(items=written(letters))
    return single_turn(prompt, written(letters))


def draw_replace(rng: random.Random, split: Split) -> Item:
    """Draw a list and a new item, with a right answer for each item that it may replace."""
    *letters, new = _letters(rng, split, "replace")
    prompt = pick(rng, _QUESTIONS["replace"]).format(items=written(letters), new=new)
    answers = [written([*letters[:i], new, *letters[i + 1 :]]) for i in range(NUM_ITEMS)]
    return single_turn(prompt, pick(rng, answers), *answers)


def draw_shuffle(rng: random.Random, split: Split) -> Item:
    """Draw a list whose gold answer is the list itself, any other order of which is right."""
    letters = _letters(rng, split, "shuffle")[:NUM_ITEMS]
    prompt = pick(rng, _QUESTIONS["shuffle"]).format(items=written(letters))
    response = letters
    while response == letters:
        response = pick_distinct(rng, letters, NUM_ITEMS)
    return single_turn(prompt, written(response), written(letters))


def _letters(rng: random.Random, split: Split, family: str) -> list[str]:
    """Draw different letters, one more than a list has."""
    while True:
        letters = pick_distinct(rng, string.ascii_uppercase, NUM_ITEMS + 1)
        if key_split(f"{family} {letters}") == split:
            return letters


def ceiling(family: str, groups: Sequence[int]) -> float:
    """Return the probability that a list filled in groups of these sizes is right.

    Raises:
        ValueError: another family, or bad groups.
    """
    if family not in LISTS:
        raise ValueError(f"no ceiling is known of {family!r}; of {', '.join(LISTS)} it is")
    if not groups or min(groups) < 1 or sum(groups) < 2:
        raise ValueError(f"groups are {list(groups)}; give sizes of 1 or above, 2 items in all")
    sizes = tuple(groups)
    return {"copy": 1.0, "replace": _replaced(sizes), "shuffle": _reordered(sizes)}[family]


@cache
def _replaced(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if no earlier slot has the new item."""
    left = sum(groups)
    if not left:
        return 0.0
    size, rest = groups[0], groups[1:]
    none = (1 - 1 / left) ** size
    one = size / left * (1 - 1 / left) ** (size - 1)
    return one + none * _replaced(rest)  # once it is placed, all other items are certain


@cache
def _reordered(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if all earlier slots kept their item."""
    left = sum(groups)
    if left < 2:
        return 0.0
    size, rest = groups[0], groups[1:]
    kept = (factorial(left - 1) - 1) / (factorial(left) - 1)
    moved = (1 - kept) / (left - 1)
    total = kept**size * _reordered(rest)
    for num_kept in range(size):
        ways = comb(size, num_kept) * _without_fixed(size - num_kept, left - num_kept)
        total += ways * kept**num_kept * moved ** (size - num_kept) * _any_order(rest)
    return total


def _any_order(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if every order of the remaining items is right."""
    chance, left = 1.0, sum(groups)
    for size in groups:
        chance *= perm(left, size) / left**size
        left -= size
    return chance


def _without_fixed(slots: int, items: int) -> int:
    """Count the ways to give different items to the slots so that no slot gets its own item."""
    return sum(
        (-1) ** fixed * comb(slots, fixed) * perm(items - fixed, slots - fixed)
        for fixed in range(slots + 1)
    )
