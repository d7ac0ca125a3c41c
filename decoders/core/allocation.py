"""How many slots each branch of a propose-and-verify call gets (Partial Quadratic Decoding).

A call verifies n drafts and proposes what comes next from n + 1 places at once: branch m is the one
that counts if exactly the first m drafts stand. Slots are rows, rows cost time, and only one branch
will be used, so they go where they are likely to be needed.

Source: PTP (arXiv 2512.21323), Partial Quadratic Decoding; the value of b slots is the expected
useful length E[min(G, b)], see `Survival`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


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

    def worth(self, price: float) -> int:
        """How many proposals have a chance above `price`."""
        return bisect.bisect_left(self.chances, -price, key=lambda chance: -chance)


def best_length(survival: Survival, longest: int, lead: int, row_cost: float) -> int:
    """How many slots a proposal should have that is verified in a call of its own.

    Maximises tokens per cost of a round of two calls: its own token, the verifying call's, and the
    proposals that stand; every slot is a row, and every proposal a row of the verifying call. May
    be `lead`: none pays.
    """
    most = max(lead, min(longest, len(survival.chances) + lead))
    return max(
        range(lead, most + 1),
        key=lambda size: (
            (2 + survival.values[size - lead]) / (2 + row_cost * (2 + 2 * size - lead))
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
    lead: int,
    row_cost: float,
) -> list[int]:
    """Slots of every branch: the most expected proposals that stand per unit of call cost.

    Maximises ``(1 + sum_m chances[m] * value(B_m)) / (1 + row_cost * rows)`` by Dinkelbach's
    method, where a branch of B slots proposes B - lead tokens; then, if that is more than the
    budget, raises the price of a slot until it fits.

    Args:
        chances: of each branch, see `branch_chances`.
        survival: of proposals.
        budget: most slots of all branches together.
        longest: most slots of a branch.
        lead: slots at the head of a branch that propose nothing of use (1 in O-PTP).
        row_cost: what one more row adds to a call, in calls of one row.
    """
    fixed = row_cost * len(chances)
    price, sizes = 0.0, [0] * len(chances)
    for _ in range(4):
        sizes = _at_price(chances, survival, price, longest, lead)
        gain = 1.0 + sum(
            chance * survival.values[max(0, size - lead)]
            for chance, size in zip(chances, sizes, strict=True)
        )
        better = row_cost * gain / (1.0 + fixed + row_cost * sum(sizes))
        if better <= price * (1 + 1e-6):
            break
        price = better
    if sum(sizes) <= budget:
        return sizes
    low, high = price, 1.0
    for _ in range(12):
        price = math.sqrt(max(low, 1e-9) * high)
        sizes = _at_price(chances, survival, price, longest, lead)
        low, high = (price, high) if sum(sizes) > budget else (low, price)
    sizes = _at_price(chances, survival, high, longest, lead)
    return _filled(sizes, _at_price(chances, survival, low, longest, lead), chances, budget, lead)


def _filled(
    sizes: list[int], wanted: Sequence[int], chances: Sequence[float], budget: int, lead: int
) -> list[int]:
    """Spend what is left of a budget on the likeliest branches that want more."""
    left = budget - sum(sizes)
    for m in sorted(range(len(sizes)), key=lambda m: -chances[m]):
        size = min(wanted[m], sizes[m] + left)
        if size > max(sizes[m], lead):
            left -= size - sizes[m]
            sizes[m] = size
    return sizes


def _at_price(
    chances: Sequence[float], survival: Survival, price: float, longest: int, lead: int
) -> list[int]:
    """The best size of each branch where a slot costs `price` expected tokens."""
    most = min(longest - lead, len(survival.chances))
    sizes = []
    for chance in chances:
        count = min(most, survival.worth(price / chance)) if chance > 0 else 0
        pays = chance * survival.values[count] > price * (count + lead)
        sizes.append(count + lead if count and pays else 0)
    return sizes
