"""How a block of masks is filled over several passes: which predictions are kept, which revised.

A pass predicts every position of the block at once. Its predictions fill masks (`commit`) and may
revise tokens that stand already (`revise`); the last pass fills what is left, or leaves it to the
next block (`tail`).

* commit ``cmlm``: fill every mask, then mask the least sure of *all* positions again, so many as
  the schedule leaves (mask-predict, Ghazvininejad et al. 2019, arXiv 1904.09324). ``quota``: fill
  the surest masks, so many that the schedule's number is left (LLaDA, arXiv 2502.09992).
  ``threshold``: fill masks at least so sure, and the surest in any case (Fast-dLLM, arXiv
  2505.22618). ``threshold+quota``: fill what either would.
* revise ``edit``: a token that the pass would replace, and is sure enough to, is replaced
  (LLaDA-2.1); ``remask``: it becomes a mask again, to be filled by a later pass.

Schedules count the answer's positions alone: a block may reach past the first stop token, shown or
predicted, and the stop tokens there are easy and would use up the first passes.

With prefix ``running`` (as WeDLM commits prefixes) the tokens from the block's beginning up to its
first mask are final as soon as they are known: the next pass is fed them as tokens and is about the
rest, so that the target's own distribution gives the token after them. With ``block`` none is final
before all are.

Letters: B positions of a block, T passes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from decoders.core.types import MASKED

Commit = Literal["cmlm", "quota", "threshold", "threshold+quota"]
Schedule = Literal["linear", "cosine"]
Revise = Literal["none", "remask", "edit"]
Prefix = Literal["block", "running"]
Tail = Literal["fill", "defer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How blocks are refined: options of `decoders.idlm.Refinement` under their names there."""

    max_passes: int = 1
    commit: Commit = "quota"
    schedule: Schedule = "linear"
    threshold: float = 0.9
    revise: Revise = "none"
    edit_threshold: float = 0.9
    early_exit: bool = True
    prefix: Prefix = "block"
    tail: Tail = "fill"


def masks_left(num: int, done: int, passes: int, schedule: Schedule) -> int:
    """How many of `num` positions are masks after `done` of T = `passes` passes.

    ``linear``: num (T - t) / T; ``cosine``: num cos(pi t / 2T), which fills few at first (MaskGIT);
    both rounded down.
    """
    if schedule == "linear":
        return num * (passes - done) // passes
    return math.floor(num * math.cos(math.pi / 2 * done / passes))


class MaskBlock:
    """A block on its way: B positions, of which the first is never predicted by a slot.

    Attributes:
        shown: the token of every position, or `MASKED`.
        start: how many positions are final and of no concern to the next pass.
        passes: how many there were.
        decided: the pass that gave every position its token (0: none did, the target itself).
        finished: whether there will be no more.
    """

    def __init__(self, size: int, rules: Rules, stop_ids: Collection[int] = ()) -> None:
        """B = `size` masks; tokens after one of `stop_ids` are of no use."""
        self.shown = [MASKED] * size
        self.start = self.passes = 0
        self.decided = [0] * size
        self.finished = False
        self._rules, self._stop_ids = rules, stop_ids
        # a single position is not predicted at all
        self._most = 1 if size == 1 else rules.max_passes or size - 1
        self._sureness = [0.0] * size

    @property
    def tokens(self) -> tuple[int, ...]:
        """What is known from the first position on without a gap."""
        known = self.shown.index(MASKED) if MASKED in self.shown else len(self.shown)
        return tuple(self.shown[:known])

    def begin(self, token: int) -> None:
        """The token of the first position that is not final yet, which is exact."""
        self.shown[self.start] = token
        self.decided[self.start] = 0

    def take(self, picks: Sequence[int], confidences: Sequence[float]) -> None:
        """A pass predicted all positions after the first it was about."""
        self.passes += 1
        read = dict(enumerate(zip(picks, confidences, strict=True), self.start + 1))
        open_places = [place for place in read if self.shown[place] == MASKED]
        is_last = self.passes == self._most
        fills_rest = is_last and self._rules.tail == "fill"
        revised = self._revise(read, fills_rest)
        fills_all = fills_rest or self._rules.commit == "cmlm"
        for place in open_places if fills_all else self._fillable(read, open_places):
            self.shown[place], self._sureness[place] = read[place]
            self.decided[place] = self.passes
        if self._rules.commit == "cmlm" and not is_last:
            for place in self._least_sure():
                self.shown[place] = MASKED
        is_done = self._rules.early_exit and not revised and not self._lacks_a_token()
        self.finished = is_last or is_done
        if self.finished or self._rules.prefix == "running":
            self.start = len(self.tokens)
            self.finished |= self.start == len(self.shown)

    def _revise(self, read: dict[int, tuple[int, float]], fills_rest: bool) -> bool:
        """Edit or mask again what the pass is sure to predict otherwise; whether there was any."""
        rules = self._rules
        if rules.revise == "none" or (fills_rest and rules.revise == "remask"):
            return False
        wrong = [
            place
            for place, (token, confidence) in read.items()
            if self.shown[place] not in (MASKED, token) and confidence >= rules.edit_threshold
        ]
        for place in wrong:
            token, confidence = read[place]
            self.shown[place] = token if rules.revise == "edit" else MASKED
            self.decided[place] = self.passes
            self._sureness[place] = confidence
        return bool(wrong)

    def _fillable(
        self, read: dict[int, tuple[int, float]], open_places: list[int]
    ) -> Sequence[int]:
        """The masks of the answer that this pass fills; at least one, if the target gives none."""
        rules = self._rules
        filled = list(self.shown)
        for place in open_places:
            filled[place] = read[place][0]
        num = self._answer_length(filled[1:])
        masked = [place for place in open_places if place <= num]
        surest_first = sorted(masked, key=lambda place: -read[place][1])
        count = 1 if rules.prefix == "block" else 0
        if rules.commit != "threshold":
            left = masks_left(num, self.passes, self._most, rules.schedule)
            count = max(count, len(masked) - left)
        if rules.commit != "quota":
            sure = sum(read[place][1] >= rules.threshold for place in masked)
            count = max(count, sure)
        return surest_first[:count]

    def _least_sure(self) -> Sequence[int]:
        """The positions that mask-predict masks again: least sure when they were last filled."""
        num = self._answer_length(self.shown[1:])
        count = masks_left(num, self.passes, self._most, self._rules.schedule)
        places = range(self.start + 1, num + 1)
        return sorted(places, key=lambda place: (self._sureness[place], -place))[:count]

    def _answer_length(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` are the answer's: up to the first stop token, if there is one."""
        ends = (place for place, token in enumerate(tokens, 1) if token in self._stop_ids)
        return next(ends, len(tokens))

    def _lacks_a_token(self) -> bool:
        """Whether a mask is left before the first stop token."""
        return MASKED in self.shown[: self._answer_length(self.shown)]
