"""Lists of letters to copy, to change in one place, or to reorder: what parallel prediction costs.

Source: the idea of ParallelBench (arXiv 2510.04767): how much the items of an answer depend on one
another is known, and so is what a predictor loses that draws them independently
(`specbench_tasks.ceilings`). ``copy`` has one right answer, ``replace`` one for each item, and
``shuffle`` one for each other order. Not part of the zoo's default; its models never learned them.
"""

from __future__ import annotations

import random
import string

from specbench_tasks.generators.base import Item, Split, pick, pick_distinct, single_turn, split_of

NUM_ITEMS = 6
"""Items of every list."""

_ASKED = {
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
    """Write a list as prompts and answers have it."""
    return ", ".join(items)


def items_of(text: str) -> list[str]:
    """Return the items that an answer names; text that is no list gives no letters alone."""
    return [part.strip() for part in text.strip().removesuffix(".").split(",")]


def draw_copy(rng: random.Random, split: Split) -> Item:
    """Draw a list with one right answer: itself."""
    letters = _letters(rng, split, "copy")[:NUM_ITEMS]
    prompt = pick(rng, _ASKED["copy"]).format(items=written(letters))
    return single_turn(prompt, written(letters))


def draw_replace(rng: random.Random, split: Split) -> Item:
    """Draw a list with a right answer for each item that the new one may replace."""
    *letters, new = _letters(rng, split, "replace")
    prompt = pick(rng, _ASKED["replace"]).format(items=written(letters), new=new)
    answers = [written([*letters[:i], new, *letters[i + 1 :]]) for i in range(NUM_ITEMS)]
    return single_turn(prompt, pick(rng, answers), *answers)


def draw_shuffle(rng: random.Random, split: Split) -> Item:
    """Draw a list of which any other order is right; the gold answer is the list itself."""
    letters = _letters(rng, split, "shuffle")[:NUM_ITEMS]
    prompt = pick(rng, _ASKED["shuffle"]).format(items=written(letters))
    response = letters
    while response == letters:
        response = pick_distinct(rng, letters, NUM_ITEMS)
    return single_turn(prompt, written(response), written(letters))


def _letters(rng: random.Random, split: Split, family: str) -> list[str]:
    """Draw one letter more than a list has, all different."""
    while True:
        letters = pick_distinct(rng, string.ascii_uppercase, NUM_ITEMS + 1)
        if split_of(f"{family} {letters}") == split:
            return letters
