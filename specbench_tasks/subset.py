"""Fixed seeded subsets of conversations, spread evenly over the families.

The order within a family depends on the seed, the use and the family alone, and a subset is a
prefix of it: a smaller limit's choice is contained in a larger one's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from specbench_tasks.task import OTHER, Conversation


def scorable(conversation: Conversation) -> bool:
    """Tell whether any turn has what its family's scorer needs; ``other`` has no scorer."""
    return conversation.family != OTHER and any(
        reference is not None
        and (reference.constraints if conversation.family == "mt_bench" else reference.answers)
        for reference in conversation.references
    )


def even_shares(capacities: Sequence[int], total: int) -> list[int]:
    """Split `total` evenly over pools of given capacity; remainders go to the first ones.

    Pools that cannot take their even share are filled, and the rest is shared by the others.
    """
    shares = [0] * len(capacities)
    left = min(total, sum(capacities))
    while left:
        unfilled = [i for i, capacity in enumerate(capacities) if shares[i] < capacity]
        even = max(1, left // len(unfilled))
        for index in unfilled:
            take = min(even, capacities[index] - shares[index], left)
            shares[index] += take
            left -= take
    return shares


def spread(
    by_family: Mapping[str, list[Conversation]], limit: int, seed: int
) -> list[Conversation]:
    """Choose `limit` conversations, evenly from the families, in rounds over them."""
    shares = even_shares([len(pool) for pool in by_family.values()], limit)
    chosen = [
        _shuffled(pool, seed, "timing")[:share]
        for pool, share in zip(by_family.values(), shares, strict=True)
    ]
    longest = max(shares, default=0)
    return [pool[i] for i in range(longest) for pool in chosen if i < len(pool)]


def held_out(pool: Sequence[Conversation], wanted: int, seed: int) -> list[Conversation]:
    """Choose scorable conversations of one family with about `wanted` turns in all."""
    taken: list[Conversation] = []
    num_turns = 0
    for conversation in _shuffled([c for c in pool if scorable(c)], seed, "quality"):
        if wanted == 0 or (taken and num_turns + len(conversation.turns) > wanted):
            break
        taken.append(conversation)
        num_turns += len(conversation.turns)
    return taken


def _shuffled(pool: Sequence[Conversation], seed: int, use: str) -> list[Conversation]:
    shuffled = list(pool)
    if pool:
        random.Random(f"{seed} {use} {pool[0].family}").shuffle(shuffled)
    return shuffled
