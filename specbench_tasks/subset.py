"""Which conversations a run takes: fixed seeded subsets, spread evenly over the families.

The order within a family depends on the seed, the use and the family alone, and a subset is a
prefix of it: a smaller limit's choice is contained in a larger one's. Standard library only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from specbench_tasks.task import OTHER, Conversation


def scorable(conversation: Conversation) -> bool:
    """Whether any turn has what its family's scorer needs.

    That is constraints for ``mt_bench``, answers for the others; ``other`` has no scorer.
    """
    return conversation.family != OTHER and any(
        reference is not None
        and (reference.constraints if conversation.family == "mt_bench" else reference.answers)
        for reference in conversation.references
    )


def even_shares(capacities: Sequence[int], total: int) -> list[int]:
    """`total` split evenly over places of given capacity; remainders go to the first places.

    Places that cannot take their even share are filled, and the rest is shared by the others.
    """
    shares = [0] * len(capacities)
    left = min(total, sum(capacities))
    while left:
        open_places = [i for i, cap in enumerate(capacities) if shares[i] < cap]
        even = max(1, left // len(open_places))
        for place in open_places:
            take = min(even, capacities[place] - shares[place], left)
            shares[place] += take
            left -= take
    return shares


def spread(
    by_family: Mapping[str, list[Conversation]], limit: int, seed: int
) -> list[Conversation]:
    """`limit` conversations, evenly from the families, in rounds over them."""
    shares = even_shares([len(pool) for pool in by_family.values()], limit)
    chosen = [
        _shuffled(pool, seed, "timing")[:share]
        for pool, share in zip(by_family.values(), shares, strict=True)
    ]
    longest = max(shares, default=0)
    return [pool[i] for i in range(longest) for pool in chosen if i < len(pool)]


def held_out(pool: Sequence[Conversation], wanted: int, seed: int) -> list[Conversation]:
    """Scorable conversations of one family with `wanted` turns in all (at least one, unless 0)."""
    taken: list[Conversation] = []
    num_turns = 0
    for conversation in _shuffled([c for c in pool if scorable(c)], seed, "quality"):
        if wanted == 0 or (taken and num_turns + len(conversation.turns) > wanted):
            break
        taken.append(conversation)
        num_turns += len(conversation.turns)
    return taken


def _shuffled(pool: Sequence[Conversation], seed: int, use: str) -> list[Conversation]:
    """The pool in an order that depends on the seed, the use and the family alone."""
    shuffled = list(pool)
    if pool:
        random.Random(f"{seed} {use} {pool[0].family}").shuffle(shuffled)
    return shuffled
