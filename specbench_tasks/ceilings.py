"""Ceilings of lists drawn item by item, without a look at one another: exact probabilities.

A predictor that fills several slots in one pass draws each from its own distribution given what
was there before. The best such distributions are the task's own marginals (they alone minimise its
loss); drawn from them, a list is right with these probabilities, for n items in one pass:

    copy      1
    replace   (1 - 1/n)^(n-1)                exactly one slot takes the new item
    shuffle   sum over the other orders of the product of marginals; without "other", n! / n^n

Filled in groups, each seeing those before it, more is possible; one by one, 1. These are ceilings
of drawing from the task's distribution, at temperature 1: always giving one right answer may do
better. Source: ParallelBench (arXiv 2510.04767), for one pass; groups are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb, factorial, perm

from specbench_tasks.task import LISTS


def ceiling(family: str, groups: Sequence[int]) -> float:
    """Return the probability that a list is right whose slots are filled in groups of these sizes.

    Raises:
        ValueError: another family, or no groups.
    """
    if family not in LISTS:
        raise ValueError(f"no ceiling is known of {family!r}; of {', '.join(LISTS)} it is")
    if not groups or min(groups) < 1 or sum(groups) < 2:
        raise ValueError(f"groups are {list(groups)}; give sizes of 1 or above, 2 items in all")
    sizes = tuple(groups)
    return {"copy": 1.0, "replace": _replaced(sizes), "shuffle": _reordered(sizes)}[family]


@cache
def _replaced(groups: tuple[int, ...]) -> float:
    """Return the chance where no slot before has the new item."""
    left = sum(groups)
    if not left:
        return 0.0
    size, rest = groups[0], groups[1:]
    none = (1 - 1 / left) ** size
    one = size / left * (1 - 1 / left) ** (size - 1)
    return one + none * _replaced(rest)  # once it is placed, all other items are certain


@cache
def _reordered(groups: tuple[int, ...]) -> float:
    """Return the chance where all slots before kept their item: an other order of the rest."""
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
    """Return the chance where every order of the items left is right."""
    chance, left = 1.0, sum(groups)
    for size in groups:
        chance *= perm(left, size) / left**size
        left -= size
    return chance


def _without_fixed(slots: int, items: int) -> int:
    """Count the ways to give so many of the items to slots, none to its own slot."""
    return sum(
        (-1) ** fixed * comb(slots, fixed) * perm(items - fixed, slots - fixed)
        for fixed in range(slots + 1)
    )
