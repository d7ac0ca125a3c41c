"""How often lists drawn item by item, without a look at one another, can be right: exactly.

A predictor that fills several places in one pass draws each from its own distribution given what
was there before. The best such distributions are the task's own marginals (they alone minimise its
loss); drawn from them, a list is right with these probabilities, for n items in one pass:

    copy      1
    replace   (1 - 1/n)^(n-1)                exactly one place takes the new item
    shuffle   sum over the other orders of the product of marginals; without "other", n! / n^n

Filled in groups, each seeing those before it, more is possible; one by one, 1. A predictor that has
forgotten the task's distribution and always gives one right answer may do better: these are
ceilings of drawing from it, at temperature 1.

Source: the analysis of list operations in ParallelBench (arXiv 2510.04767), for one pass; groups,
and the order that is not allowed, are ours. Standard library only.
Letters: n items, r of them (or places) left, m of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb, factorial, perm

from specbench_tasks.task import LISTS


def ceiling(family: str, groups: Sequence[int]) -> float:
    """The probability that a list is right whose places are filled in groups of these sizes.

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
    """The new item is in none of the places before; each place left has it with 1 / r."""
    left = sum(groups)
    if not left:
        return 0.0
    size, rest = groups[0], groups[1:]
    none = (1 - 1 / left) ** size
    one = size / left * (1 - 1 / left) ** (size - 1)
    return one + none * _replaced(rest)  # once it is placed, all other items are certain


@cache
def _reordered(groups: tuple[int, ...]) -> float:
    """All places before have their old item: one of the r! - 1 other orders of the rest."""
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
    """Every order of the items left is right: those of a group are all different."""
    chance, left = 1.0, sum(groups)
    for size in groups:
        chance *= perm(left, size) / left**size
        left -= size
    return chance


def _without_fixed(places: int, items: int) -> int:
    """Ways to give so many of the items to places, each place's own item to another or to none."""
    return sum(
        (-1) ** fixed * comb(places, fixed) * perm(items - fixed, places - fixed)
        for fixed in range(places + 1)
    )
