"""Choose how many drafts a step verifies by their confidences: the most expected tokens per cost.

A step emits one token, and every draft that is accepted with all drafts before it on its path. It
costs a target call of one row (the unit of all costs), a row for each draft, and its draft calls.
The costs are options, so that no measured time decides anything during a run.

Sources: EAGLE-2 (arXiv 2406.16858) and SpecDec++ (arXiv 2405.19715) stop drafting by the drafter's
confidence; the aim of tokens per time is that of Leviathan et al. (arXiv 2211.17192, section 3.5).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Literal

NumDrafts = int | Literal["auto"]
"""An option: a number of drafts, or as many as pay in each step."""
AUTO: Literal["auto"] = "auto"
_LIMIT = 24
"""Most drafts of a step whose number is `auto`."""
_PRIOR_TESTS, _PRIOR_CHANCE = 12.0, 0.8
"""Weight (in tested drafts) and chance of the acceptance that is assumed before an answer."""


def num_worthwhile(stands: Iterable[float], row_cost: float, spent: float = 1.0) -> int:
    """Return how many drafts gain more than their rows cost.

    Args:
        stands: chance of each draft to be accepted with all before it, likeliest first.
        row_cost: cost of a draft's row.
        spent: cost of the step without drafts' rows.

    Returns:
        The number of drafts with the most expected tokens per cost: as chances fall, the first
        draft that lowers this ratio is followed by none that raises it.
    """
    gain, count = 1.0, 0
    for stand in stands:
        if stand * (spent + row_cost * count) < row_cost * gain:
            break
        gain, count = gain + stand, count + 1
    return count


class Length:
    """The number of drafts of one answer's steps: fixed, or what pays by confidences and costs.

    Confidences become chances by a power, at first 1, which gives the tested drafts of the answer
    their share of acceptances. Only tested drafts count: those behind them were drawn from uniforms
    of positions that later steps draw again, and a length that depends on these would change the
    distribution of answers.

    Attributes:
        limit: most drafts of a step.
        is_auto: the number is chosen in each step.
    """

    def __init__(self, num: NumDrafts, row_cost: float = 0.0, draft_cost: float = 0.0) -> None:
        """Fix the number, or choose it by the costs of a draft's row and of a draft call."""
        self.is_auto, self.limit = num == AUTO, _LIMIT if num == AUTO else num
        self._row_cost, self._draft_cost = row_cost, draft_cost
        self._tested, self._sum = _PRIOR_TESTS, _PRIOR_TESTS * _PRIOR_CHANCE
        self._accepted = self._sum

    @property
    def floor(self) -> float:
        """See `DraftShape.floor`: a level that gains less than its call costs is left out."""
        return self._draft_cost if self.is_auto else 0.0

    @property
    def rate(self) -> float:
        """The share of depths, among those tested so far, at which a draft was accepted."""
        return min(max(self._accepted / self._tested, 0.05), 0.99)

    @property
    def power(self) -> float:
        """The power that turns confidences into chances, also on paths of several drafts."""
        mean = min(max(self._sum / self._tested, 0.05), 0.99)
        return math.log(self.rate) / math.log(mean)

    def observe(self, tested: Sequence[tuple[float, bool]]) -> None:
        """Learn from a step's tested drafts (`Emit.confidences`)."""
        if tested:
            accepted = sum(stood for _, stood in tested)
            self._accepted += accepted
            self._tested += accepted + (not tested[-1][1])
            self._sum += sum(sure for sure, _ in tested)

    def another(self, confidences: Sequence[float]) -> bool:
        """Tell whether a further draft pays after drafts in a row, which it cannot judge itself.

        All of these are verified, so each is drawn before anything depends on it.
        """
        if not self.is_auto:
            return True
        stands = [*itertools.accumulate((c**self.power for c in confidences), operator.mul)]
        price, gain = self._row_cost + self._draft_cost, 1 + sum(stands)
        return bool(stands[-1] * self.rate * (1 + price * len(stands)) >= price * gain)

    def worthwhile(self, paths: Sequence[float], num_calls: int = 1) -> int:
        """Return how many drafts to verify after some draft calls.

        `paths` are the products of the confidences on each draft's path, likeliest first.
        """
        if not self.is_auto:
            return len(paths)
        chances = (path**self.power for path in paths)
        return num_worthwhile(chances, self._row_cost, 1 + self._draft_cost * num_calls)
