"""How many slots each branch of a propose-and-verify call gets (Partial Quadratic Decoding).

A call verifies n drafts and proposes what comes next from n + 1 places at once: branch m is the one
that counts if exactly the first m drafts stand. Slots are rows, rows cost time, and only one branch
will be used, so they go where they are likely to be needed.

Source: PTP (arXiv 2512.21323), Partial Quadratic Decoding; the value of b slots is the expected
useful length E[min(G, b)], see `Survival`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Survival:
    """P(the first g proposals of a branch stand) for g = 1, 2, …, non-increasing.

    The expected number of leading proposals that stand out of b is E[min(G, b)], which is the sum
    of the first b of them: `values[b]`.
    """

    chances: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, chances: Sequence[float]) -> Survival:
        """From probabilities, made non-increasing where an estimate was noisy."""
        falling = tuple(itertools.accumulate((min(1.0, max(0.0, c)) for c in chances), min))
        return cls(falling, (0.0, *itertools.accumulate(falling)))

    def scaled(self, power: float) -> Survival:
        """Where proposals stand more rarely (above 1) or more often (below 1) than usual."""
        # g proposals that always stood so far may fall too
        return Survival.of(
            [min(chance, 0.995**g) ** power for g, chance in enumerate(self.chances, 1)]
        )

    @property
    def mean_chance(self) -> float:
        """How often a proposal stands whose predecessors stood."""
        if not self.chances:
            return 0.0
        return self.values[-1] / (1.0 + self.values[-1] - self.chances[-1])


def best_length(
    survival: Survival, longest: int, num_unused_slots: int, row_cost: float, given: int = 2
) -> int:
    """How many slots a proposal should have that is verified in a call of its own.

    Maximises tokens per cost of a round of two calls: the `given` tokens that they give themselves
    and the proposals that stand; every slot is a row, and every proposal a row of the verifying
    call. May be `num_unused_slots`: none pays.
    """
    most = max(num_unused_slots, min(longest, len(survival.chances) + num_unused_slots))
    return max(
        range(num_unused_slots, most + 1),
        key=lambda size: (
            (given + survival.values[size - num_unused_slots])
            / (2 + row_cost * (2 + 2 * size - num_unused_slots))
        ),
    )


def branch_chances(confidences: Sequence[float]) -> list[float]:
    """P(exactly the first m drafts stand) for m = 0 … n, from each draft's own chance to stand."""
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
    longest: int,
    num_unused_slots: int,
    row_cost: float,
) -> list[int]:
    """Slots of every branch: the most expected proposals that stand per unit of call cost.

    Slots are bought one after another, the best expected return per row first, up to the point
    where ``(1 + sum_m chances[m] * value(B_m)) / (1 + row_cost * rows)`` is highest or the budget
    is spent. A branch of B slots proposes B - num_unused_slots tokens. As the leading slots return
    nothing, a branch is judged by its best average (the concave envelope of its value), so that
    whole branches are bought in the right order; the last one may be cut short by the budget.

    Args:
        chances: of each branch, see `branch_chances`.
        survival: of proposals.
        budget: most slots of all branches together.
        longest: most slots of a branch.
        num_unused_slots: slots at the head of a branch that propose nothing of use (1 in O-PTP).
        row_cost: what one more row adds to a call, in calls of one row.
    """
    num_branches, most = len(chances), min(longest - num_unused_slots, len(survival.chances))
    if most <= 0:
        return [0] * num_branches
    stands = np.array(survival.chances[:most])
    average = stands.cumsum() / (np.arange(1, most + 1) + num_unused_slots)
    best = int(average.argmax())
    returns = np.where(np.arange(most) <= best, average[best], stands)
    bought = np.argsort(-np.outer(chances, returns), axis=None, kind="stable")
    gains = np.outer(chances, stands).ravel()[bought].cumsum()
    rows = np.arange(1, len(bought) + 1) + num_unused_slots * (bought % most == 0).cumsum()
    worth = (1 + gains) / (1 + row_cost * (num_branches + rows))
    worth = worth[rows <= budget]
    if not len(worth) or worth.max() <= 1 / (1 + row_cost * num_branches):
        return [0] * num_branches
    proposals = np.bincount(bought[: worth.argmax() + 1] // most, minlength=num_branches)
    return [int(count) + num_unused_slots if count else 0 for count in proposals]
