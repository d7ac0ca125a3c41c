"""Make the slots of a call and choose which of their proposals to verify (PTP).

Source: PTP (arXiv 2512.21323). Letters: B_m slots of branch m, n drafts.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

from decoders.core.decoder import Request
from decoders.core.drafting.allocation import Survival, best_length
from decoders.core.drafting.length import num_worthwhile
from decoders.core.drafting.mask_slots import branch_positions
from decoders.core.types import NO_UNIFORM, CallResult, Slots

NOT_GREEDY = 0.5
"""Uniform of slots at temperature 0 if the adapter was not trained on greedy text."""

_MAX_SLOTS = 64
"""Most slots of a branch: the branch must fit into the cache after the longest answer."""

_PRIOR_TESTS = 12.0
"""Weight of the usual survival against an answer's own, as a number of tested proposals."""

_NOT_CALIBRATED = (1.0, 0.0)
_GUESS = 0.85  # acceptance chance of each further proposal if none was measured


class Proposer:
    """The proposals of one answer.

    Attributes:
        longest: most slots of a branch.
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
        alone: bool = False,
        exact_row: bool = True,
    ) -> None:
        """Prepare proposals of at most `num_slots` slots (0: as many as the adapter has).

        `alone`: call a standalone adapter's slots without the token before them. `exact_row`: this
        token's row gives the next token exactly (the row of a draft model only guesses it).
        """
        assert request.adapter is not None
        config, sampling = request.adapter, request.sampling
        self._name, self._config = adapter, config
        self._sampling, self._uniforms = sampling, request.uniforms
        self.max_size = min(num_slots or config.num_slots, _MAX_SLOTS)
        self.standalone = config.standalone
        self.alone = alone and config.standalone
        self._per_round = 2 if exact_row and not self.alone else 1
        self.num_unused_slots = 1 if config.variant == "o-ptp" and self._per_round == 2 else 0
        kind = "greedy_" if sampling.greedy and config.greedy else ""
        measured = config.measured
        self._calibration: tuple[float, float] = (
            measured.get(f"{kind}calibration") or _NOT_CALIBRATED
        )
        self._usual = _survival(
            measured.get(f"{kind}survival"), self.num_unused_slots, self.max_size
        )
        self.survival = self._usual
        self._num_accepted, self._tested = _PRIOR_TESTS * self._usual.mean_chance, _PRIOR_TESTS
        self._greedy_u = NO_UNIFORM if config.greedy else NOT_GREEDY
        self.drafts: tuple[int, ...] = ()
        self.chances: list[float] = []

    def take(self, result: CallResult, branch: slice = slice(None)) -> None:
        """Make the predictions of read slots (those of one `branch`) the new proposal."""
        self.drafts = result.slot_picks[branch]
        confidences = result.slot_confidences[branch]
        self.chances = [_calibrated(c, *self._calibration) for c in confidences]

    def observe(self, num_drafts: int, accepted: int) -> None:
        """Adjust `survival` to this answer: `accepted` of `num_drafts` drafts were accepted."""
        self._num_accepted += accepted
        self._tested += accepted + (accepted < num_drafts)
        usual = min(self._usual.mean_chance, 0.99)
        seen = min(self._num_accepted / self._tested, 0.99)
        self.survival = self._usual.scaled(math.log(max(seen, 0.05)) / math.log(max(usual, 0.05)))

    def worthwhile(self, max_proposals: int, row_cost: float) -> tuple[int, ...]:
        """Return the drafts to verify: as many as gain more than their row costs."""
        stands = itertools.accumulate(self.chances[: max(0, max_proposals)], operator.mul)
        return self.drafts[: num_worthwhile(stands, row_cost)]

    def one_branch(self, room: int, anchor: int, output: int, row_cost: float) -> Slots | None:
        """Make the slots after `anchor` that pay for up to `room` proposals (None if none pays)."""
        best = best_length(
            self.survival, self.max_size, self.num_unused_slots, row_cost, self._per_round
        )
        count = min(best, room + self.num_unused_slots)
        return self.branches([count], [anchor], output) if count > self.num_unused_slots else None

    def branches(self, sizes: Sequence[int], anchors: Sequence[int], output: int) -> Slots:
        """Make branches of slots, of which branch m starts at output position `output` + m."""
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
        """Return positions of `num_tokens` tokens from `start` on and one branch after them.

        None for O-PTP slots that are not `alone`: they have a call's default positions.
        """
        if slots is None or (self._config.variant == "o-ptp" and not self.alone):
            return None
        return branch_positions(start, num_tokens, slots.sizes)


def _survival(measured: Sequence[float] | None, num_unused_slots: int, max_size: int) -> Survival:
    if not measured:
        return Survival.of([_GUESS**g for g in range(1, max_size + 1)])
    head = measured[num_unused_slots - 1] if num_unused_slots else 1.0
    return Survival.of([chance / max(head, 1e-6) for chance in measured[num_unused_slots:max_size]])


def _calibrated(confidence: float, slope: float, offset: float) -> float:
    c = min(max(confidence, 1e-6), 1 - 1e-6)
    return 1 / (1 + math.exp(-slope * math.log(c / (1 - c)) - offset))
