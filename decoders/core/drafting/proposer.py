"""Allot and make the slots of a call, and choose which of their proposals to verify (PTP).

In Partial Quadratic Decoding a call verifies n drafts and proposes after n + 1 rows at once: branch
m is used if exactly the first m drafts are accepted. Slots are rows, rows cost time, and only one
branch will be used. The value of b slots is E[min(G, b)], see `Survival`.
Source: PTP (arXiv 2512.21323). Letters: B_m slots of branch m, n drafts.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Text
from decoders.core.drafting.length import num_worthwhile
from decoders.core.drafting.mask_slots import branch_positions
from decoders.core.types import NO_UNIFORM, CallResult, Slots


@dataclass(frozen=True, slots=True)
class Survival:
    """Hold P(the first g proposals of a branch are accepted) for g = 1, 2, …, non-increasing.

    E[min(G, b)], the expected number of accepted leading proposals out of b, is the sum of the
    first b chances: `values[b]`.
    """

    chances: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, chances: Sequence[float]) -> Survival:
        """Make survival of noisy estimates, which are lowered until none exceeds an earlier one."""
        falling = tuple(itertools.accumulate([min(1.0, max(0.0, c)) for c in chances], min))
        return cls(falling, (0.0, *itertools.accumulate(falling)))

    def scaled(self, power: float) -> Survival:
        """Make acceptance rarer (`power` above 1) or more frequent (below 1)."""
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


def _best_length(
    survival: Survival, max_size: int, num_unused_slots: int, row_cost: float, per_round: int = 2
) -> int:
    """Choose the number of slots with the most tokens per cost if a second call verifies them.

    A round of two calls gives `per_round` tokens and the accepted proposals. Every slot is a row,
    and every proposal a row of the verifying call. `num_unused_slots` means that no slot pays.
    """
    max_slots = max(num_unused_slots, min(max_size, len(survival.chances) + num_unused_slots))
    worth = [
        (per_round + survival.values[size - num_unused_slots])
        / (2 + row_cost * (2 + 2 * size - num_unused_slots))
        for size in range(num_unused_slots, max_slots + 1)
    ]
    return num_unused_slots + worth.index(max(worth))


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
    spent. Unused slots return nothing, so a branch is judged by its best average (the concave
    envelope of its value). Branches are therefore bought whole and in order; the budget may cut
    the last branch short.

    Args:
        chances: chance of each branch to be used (`branch_chances`).
        survival: acceptance of the proposals of any branch.
        budget: maximum number of slots of all branches.
        max_size: maximum number of slots of a branch.
        num_unused_slots: slots at the head of a branch without a useful proposal (1 in O-PTP).
        row_cost: cost of a row, in calls of one row.
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


NOT_GREEDY = 0.5
"""Uniform that slots carry at temperature 0 if the adapter was not trained on greedy text."""

_MAX_SLOTS = 64
"""Maximum number of slots of a branch, which must fit into the cache after the longest answer."""

_PRIOR_TESTS = 12.0
"""Weight of the measured survival against the answer's own, as a number of tested proposals."""

_GUESS = 0.85  # acceptance chance of each further proposal if none was measured


class Proposer:
    """Make the proposals of one answer.

    Attributes:
        max_size: maximum number of slots of a branch.
        standalone: slots can run without the base row of the token before them.
        alone: slots are called without that row.
        num_unused_slots: slots at the head of a branch with a useless proposal. In O-PTP the first
            slot predicts a token that the row before it, if there is one, gives exactly.
        survival: acceptance chances, measured on held-out text and adjusted to this answer.
        drafts: the last proposal.
        chances: calibrated acceptance chance of each draft.
    """

    def __init__(
        self,
        request: Request,
        adapter: str,
        num_slots: int = 0,
        *,
        row_cost: float,
        alone: bool = False,
        exact_row: bool = True,
    ) -> None:
        """Prepare proposals of at most `num_slots` slots (0: as many as the adapter has).

        A row of the target costs `row_cost` calls of one row. `alone`: call a standalone adapter's
        slots without the token before them. `exact_row`: this token's row gives the next token
        exactly (the row of a draft model only guesses it).
        """
        assert request.adapter is not None
        config, sampling = request.adapter, request.sampling
        self._name, self._config = adapter, config
        self._sampling, self._uniforms = sampling, request.uniforms
        self._row_cost = row_cost
        self.max_size = min(num_slots or config.num_slots, _MAX_SLOTS)
        self.standalone = config.standalone
        self.alone = alone and config.standalone
        self._per_round = 2 if exact_row and not self.alone else 1
        self.num_unused_slots = 1 if config.variant == "o-ptp" and self._per_round == 2 else 0
        kind = "greedy_" if sampling.greedy and config.greedy else ""
        measured = config.measured
        self._calibration: tuple[float, float] = measured.get(f"{kind}calibration") or (1.0, 0.0)
        head, chances = self.num_unused_slots, [_GUESS**g for g in range(1, self.max_size + 1)]
        if stands := measured.get(f"{kind}survival"):  # given that the unused slots are right
            before = stands[head - 1] if head else 1.0
            chances = [chance / max(before, 1e-6) for chance in stands[head : self.max_size]]
        self.survival = self._usual = Survival.of(chances)
        self._num_accepted, self._tested = _PRIOR_TESTS * self._usual.mean_chance, _PRIOR_TESTS
        self._greedy_u = NO_UNIFORM if config.greedy else NOT_GREEDY
        self.drafts: tuple[int, ...] = ()
        self.chances: list[float] = []

    def take(self, result: CallResult, branch: slice = slice(None)) -> None:
        """Make the predictions of read slots (those of one `branch`) the new proposal."""
        self.drafts = result.slot_picks[branch]
        (slope, offset), confidences = self._calibration, result.slot_confidences[branch]
        clipped = [min(max(chance, 1e-6), 1 - 1e-6) for chance in confidences]
        logits = [slope * math.log(chance / (1 - chance)) + offset for chance in clipped]
        self.chances = [1 / (1 + math.exp(-logit)) for logit in logits]

    def observe(self, num_drafts: int, accepted: int) -> None:
        """Adjust `survival` to this answer: `accepted` of `num_drafts` drafts were accepted."""
        self._num_accepted += accepted
        self._tested += accepted + (accepted < num_drafts)
        usual = min(self._usual.mean_chance, 0.99)
        seen = min(self._num_accepted / self._tested, 0.99)
        self.survival = self._usual.scaled(math.log(max(seen, 0.05)) / math.log(max(usual, 0.05)))

    def worthwhile(self, max_proposals: int) -> tuple[int, ...]:
        """Return the drafts to verify: those that gain more tokens than their rows cost."""
        stands = itertools.accumulate(self.chances[: max(0, max_proposals)], operator.mul)
        return self.drafts[: num_worthwhile(stands, self._row_cost)]

    def one_branch(self, text: Text, room: int) -> Slots | None:
        """Make the slots after a text that pay, for up to `room` proposals (None: none pays)."""
        num_unused = self.num_unused_slots
        best = _best_length(
            self.survival, self.max_size, num_unused, self._row_cost, self._per_round
        )
        count = min(best, room + num_unused)
        return self.branches([count], [text.last], text.output) if count > num_unused else None

    def branches(self, sizes: Sequence[int], anchors: Sequence[int], output: int) -> Slots:
        """Make branches of slots.

        Args:
            sizes: number of slots of each branch.
            anchors: the token before each branch.
            output: output position of the first slot's uniform in branch 0; in branch m, m later.
        """
        uniforms: list[float] = []
        read: list[int] = []
        for m, size in enumerate(sizes):
            read += range(len(uniforms) + self.num_unused_slots, len(uniforms) + size)
            if self._sampling.greedy:
                uniforms += [self._greedy_u] * size
            else:
                uniforms += [self._uniforms.at("draw", output + m + s) for s in range(size)]
        return Slots(
            adapter=self._name,
            uniforms=tuple(uniforms),
            sizes=tuple(sizes),
            anchors=tuple(anchors),
            read=tuple(read),
            output="argmax" if self._config.variant == "o-ptp" else "draws",
            warp=(self._sampling.temperature, self._sampling.top_p),
        )

    def positions(self, start: int, num_tokens: int, slots: Slots | None) -> tuple[int, ...] | None:
        """Return positions of tokens and one branch after them (None: the defaults of a call).

        Args:
            start: position of the first token.
            num_tokens: number of tokens.
            slots: the branch, or None.
        """
        if slots is None or (self._config.variant == "o-ptp" and not self.alone):
            return None
        return branch_positions(start, num_tokens, slots.sizes)
