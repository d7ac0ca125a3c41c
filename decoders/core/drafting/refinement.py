"""Fill a block of masks over several passes, by rules that keep or revise predictions.

* commit ``cmlm``: fill every mask, then mask the least confident of *all* positions again, as many
  as the schedule says (mask-predict, Ghazvininejad et al. 2019, arXiv 1904.09324). ``quota``: fill
  the most confident masks until the schedule's number is left (LLaDA, arXiv 2502.09992).
  ``threshold``: fill masks with at least this confidence (Fast-dLLM, arXiv 2505.22618).
  ``threshold+quota``: fill what either fills. With prefix ``block``, all fill at least one mask.
* revise ``edit``: replace a token if the pass predicts another one with enough confidence
  (LLaDA-2.1). ``remask``: turn such a token into a mask again, which a later pass fills.

Schedules only count positions up to the first stop token: later positions are easy and would use up
the first passes. The last pass fills the rest, or leaves it to the next block (`tail`). With
prefix ``running`` (WeDLM commits prefixes likewise), tokens before the block's first mask are final
once known, and are fed as tokens. With ``block``, no token is final before all of them are.

Letters: B positions of a block, T passes.
"""

from __future__ import annotations

import itertools
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
    """Hold the options of refinement, under their names in `decoders.idlm.Refinement`."""

    max_passes: int = 1
    commit: Commit = "quota"
    schedule: Schedule = "linear"
    threshold: float = 0.9
    revise: Revise = "none"
    edit_threshold: float = 0.9
    early_exit: bool = True
    prefix: Prefix = "block"
    tail: Tail = "fill"


def _masks_left(num: int, done: int, passes: int, schedule: Schedule) -> int:
    """Return the number of masks left of `num` after `done` of T = `passes` passes.

    ``linear``: num (T - t) / T; ``cosine``: num cos(pi t / 2T), which fills few at first (MaskGIT).
    Both are rounded down.
    """
    if schedule == "linear":
        return num * (passes - done) // passes
    return math.floor(num * math.cos(math.pi / 2 * done / passes))


class MaskBlock:
    """Refine a block of B positions, the first of which no slot predicts.

    Attributes:
        slot_tokens: the token of every position, or `MASKED`.
        start: number of final positions, which the next pass skips.
        passes: number of passes up to now.
        decided: pass that gave each position its token (0: the target itself, or no token yet).
        finished: no more passes will follow.
    """

    def __init__(self, size: int, rules: Rules, stop_ids: Collection[int]) -> None:
        """Begin with B = `size` masks (tokens after one of `stop_ids` do not count)."""
        self.slot_tokens = [MASKED] * size
        self.start = self.passes = 0
        self.decided = [0] * size
        self.finished = False
        self._rules, self._stop_ids = rules, stop_ids
        # a single position is never predicted by a slot
        self._max_passes = 1 if size == 1 else rules.max_passes or size - 1
        self._sureness = [0.0] * size

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens before the first mask."""
        return tuple(itertools.takewhile(lambda token: token != MASKED, self.slot_tokens))

    def begin(self, token: int) -> None:
        """Set the first position that is not final to the target's own token."""
        self.slot_tokens[self.start] = token
        self.decided[self.start] = 0

    def take(self, picks: Sequence[int], confidences: Sequence[float]) -> None:
        """Apply the predictions that a pass made for the positions after `start`."""
        self.passes += 1
        read = dict(enumerate(zip(picks, confidences, strict=True), self.start + 1))
        open_indices = [index for index in read if self.slot_tokens[index] == MASKED]
        is_last = self.passes == self._max_passes
        fills_rest = is_last and self._rules.tail == "fill"
        revised = self._revise(read, fills_rest)
        fills_all = fills_rest or self._rules.commit == "cmlm"
        for index in open_indices if fills_all else self._fillable(read, open_indices):
            self.slot_tokens[index], self._sureness[index] = read[index]
            self.decided[index] = self.passes
        if self._rules.commit == "cmlm" and not is_last:
            num = self._answer_length(self.slot_tokens[1:])
            count = _masks_left(num, self.passes, self._max_passes, self._rules.schedule)
            indices = range(self.start + 1, num + 1)
            for index in sorted(indices, key=lambda i: (self._sureness[i], -i))[:count]:
                self.slot_tokens[index] = MASKED
        is_open = MASKED in self.slot_tokens[: self._answer_length(self.slot_tokens)]
        is_done = self._rules.early_exit and not (revised or is_open)
        self.finished = is_last or is_done
        if self.finished or self._rules.prefix == "running":
            self.start = len(self.tokens)
            self.finished |= self.start == len(self.slot_tokens)

    def _revise(self, read: dict[int, tuple[int, float]], fills_rest: bool) -> bool:
        rules = self._rules
        if rules.revise == "none" or (fills_rest and rules.revise == "remask"):
            return False
        wrong = [
            index
            for index, (token, confidence) in read.items()
            if self.slot_tokens[index] not in (MASKED, token) and confidence >= rules.edit_threshold
        ]
        for index in wrong:
            token, confidence = read[index]
            self.slot_tokens[index] = token if rules.revise == "edit" else MASKED
            self.decided[index] = self.passes
            self._sureness[index] = confidence
        return bool(wrong)

    def _fillable(self, read: dict[int, tuple[int, float]], open_indices: list[int]) -> list[int]:
        rules = self._rules
        filled = list(self.slot_tokens)
        for index in open_indices:
            filled[index] = read[index][0]
        num = self._answer_length(filled[1:])
        masked = [index for index in open_indices if index <= num]
        surest_first = sorted(masked, key=lambda index: -read[index][1])
        count = 1 if rules.prefix == "block" else 0
        if rules.commit != "threshold":
            left = _masks_left(num, self.passes, self._max_passes, rules.schedule)
            count = max(count, len(masked) - left)
        if rules.commit != "quota":
            num_confident = sum(read[index][1] >= rules.threshold for index in masked)
            count = max(count, num_confident)
        return surest_first[:count]

    def _answer_length(self, tokens: Sequence[int]) -> int:
        ends = (index for index, token in enumerate(tokens, 1) if token in self._stop_ids)
        return next(ends, len(tokens))
