"""Allot slots to the branches of a propose-and-verify call (Partial Quadratic Decoding).

A call verifies n drafts and proposes after n + 1 rows at once: branch m is used if exactly the
first m drafts are accepted. Slots are rows, rows cost time, and only one branch will be used.
Source: PTP (arXiv 2512.21323); the value of b slots is E[min(G, b)], see `Survival`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Survival:
    """P(the first g proposals of a branch are accepted) for g = 1, 2, …, non-increasing.

    E[min(G, b)], the expected number of accepted leading proposals out of b, is the sum of the
    first b chances: `values[b]`.
    """

    chances: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, chances: Sequence[float]) -> Survival:
        """Make probabilities non-increasing, as estimates may be noisy."""
        falling = tuple(itertools.accumulate((min(1.0, max(0.0, c)) for c in chances), min))
        return cls(falling, (0.0, *itertools.accumulate(falling)))

    def scaled(self, power: float) -> Survival:
        """Make acceptance rarer (`power` above 1) or more frequent (below 1) than usual."""
        # g proposals that were always accepted so far may be rejected too
        return Survival.of(
            [min(chance, 0.995**g) ** power for g, chance in enumerate(self.chances, 1)]
        )

    @property
    def mean_chance(self) -> float:
        """Chance that a proposal is accepted after all its predecessors were accepted."""
        if not self.chances:
            return 0.0
        return self.values[-1] / (1.0 + self.values[-1] - self.chances[-1])


def best_length(
    survival: Survival, max_size: int, num_unused_slots: int, row_cost: float, per_round: int = 2
) -> int:
    """Choose the number of slots of a proposal verified by a second call: most tokens per cost.

    A round of two calls gives `per_round` tokens and the accepted proposals. Every slot is a row,
    and every proposal a row of the verifying call. Returns `num_unused_slots` if none pays.
    """
    max_slots = max(num_unused_slots, min(max_size, len(survival.chances) + num_unused_slots))
    return max(
        range(num_unused_slots, max_slots + 1),
        key=lambda size: (
            (per_round + survival.values[size - num_unused_slots])
            / (2 + row_cost * (2 + 2 * size - num_unused_slots))
        ),
    )


def branch_chances(confidences: Sequence[float]) -> list[float]:
    """Return P(exactly the first m drafts are accepted) for m = 0 … n, from the drafts' chances."""
    chances, stand = [], 1.0
    for confidence in confidences:
        chances.append(stand * (1 - confidence))
        stand *= confidence
    return [*chances, stand]


def allocate(
    chances: Sequence[float],
    survival: Survival,
    *,
    budget: int,
    max_size: int,
    num_unused_slots: int,
    row_cost: float,
) -> list[int]:
    """Allot slots to branches: maximise expected accepted proposals per unit of call cost.

    Slots are bought one by one, the best expected return per row first, until
    ``(1 + sum_m chances[m] * value(B_m)) / (1 + row_cost * rows)`` is highest or the budget is
    spent. The `num_unused_slots` at the head of a branch (1 in O-PTP) return nothing, so a branch
    is judged by its best average (the concave envelope of its value). Branches are therefore
    bought whole and in order; the budget may cut the last branch short.
    """
    num_branches, limit = len(chances), min(max_size - num_unused_slots, len(survival.chances))
    if limit <= 0:
        return [0] * num_branches
    stands = np.array(survival.chances[:limit])
    average = stands.cumsum() / (np.arange(1, limit + 1) + num_unused_slots)
    best = int(average.argmax())
    returns = np.where(np.arange(limit) <= best, average[best], stands)
    order = np.argsort(-np.outer(chances, returns), axis=None, kind="stable")
    gains = np.outer(chances, stands).ravel()[order].cumsum()
    rows = np.arange(1, len(order) + 1) + num_unused_slots * (order % limit == 0).cumsum()
    worth = (1 + gains) / (1 + row_cost * (num_branches + rows))
    worth = worth[rows <= budget]
    if not len(worth) or worth.max() <= 1 / (1 + row_cost * num_branches):
        return [0] * num_branches
    proposals = np.bincount(order[: worth.argmax() + 1] // limit, minlength=num_branches)
    return [int(count) + num_unused_slots if count else 0 for count in proposals]
