"""Choose by confidence how many drafts a step verifies: the most expected tokens per cost.

A step emits one token, and every draft that is accepted with all drafts before it on its path. It
costs a target call of one row (the unit of all costs), a row for each draft, and its draft calls.
The costs are options, so that no measured time decides anything during a run.

Sources: EAGLE-2 (arXiv 2406.16858) and SpecDec++ (arXiv 2405.19715) stop drafting by confidences;
tokens per time: Leviathan et al. 2023 (arXiv 2211.17192, section 3.5).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Literal

from decoders.core.drafting.tree import DraftTree

NumDrafts = int | Literal["auto"]
"""An option: a number of drafts, or `auto` for as many as are worth their cost in each step."""
AUTO: Literal["auto"] = "auto"
_LIMIT = 24
"""Maximum number of drafts in a step whose number is `auto`."""
_PRIOR_TESTS, _PRIOR_CHANCE = 12.0, 0.8
"""Prior acceptance of an answer: its weight as a number of tested drafts, and its probability."""


def num_worthwhile(chances: Iterable[float], row_cost: float) -> int:
    """Return the number of drafts that gives the most expected tokens per cost.

    `chances` are the probabilities that each draft and all before it are accepted, likeliest first:
    the first draft that does not pay ends the search. `row_cost` is in steps without drafts.
    """
    gain, count = 1.0, 0
    for chance in chances:
        if chance * (1 + row_cost * count) < row_cost * gain:
            break
        gain, count = gain + chance, count + 1
    return count


class Length:
    """Choose the number of drafts in each step of one answer: a fixed `limit`, or `auto`.

    The probability of acceptance is a power of the confidence. The power begins at 1 and is fitted
    to the share of tested drafts that were accepted. Drafts behind these must not count: later
    steps draw from the same uniforms, and such a length would change the distribution.
    """

    def __init__(self, num: NumDrafts, row_cost: float = 0.0, draft_cost: float = 0.0) -> None:
        """Fix the number, or choose it by the costs of a draft's row and of a draft call."""
        self.is_auto, self.limit = num == AUTO, _LIMIT if num == AUTO else num
        self.floor = draft_cost if self.is_auto else 0.0  # of `DraftShape`
        self._row_cost, self._draft_cost = row_cost, draft_cost
        self._tested = _PRIOR_TESTS
        self._accepted = self._expected = _PRIOR_TESTS * _PRIOR_CHANCE

    def observe(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Learn from the tested drafts of a step and from the path of accepted drafts."""
        if self.is_auto and (tested := tree.tested(path)):
            accepted = sum(passed for _, passed in tested)
            self._accepted += accepted
            self._tested += accepted + (not tested[-1][1])
            self._expected += sum(confidence for confidence, _ in tested)

    def next_pays(self, confidences: Sequence[float]) -> bool:
        """Return whether one more draft, not drawn yet, pays if all drafts are verified."""
        if not self.is_auto:
            return True
        rate, power = self._calibration()
        chances = [*itertools.accumulate((each**power for each in confidences), operator.mul)]
        price, gain = self._row_cost + self._draft_cost, 1 + sum(chances)
        return bool(chances[-1] * rate * (1 + price * len(chances)) >= price * gain)

    def worthwhile(self, paths: Sequence[float], num_calls: int = 1) -> int:
        """Return the number of drafts to verify, likeliest first, after some draft calls.

        `paths` are the products of the confidences on each draft's path.
        """
        if not self.is_auto:
            return len(paths)
        _, power = self._calibration()
        row_cost = self._row_cost / (1 + self._draft_cost * num_calls)
        return num_worthwhile((path**power for path in paths), row_cost)

    def _calibration(self) -> tuple[float, float]:
        """Return the share of tested depths with an accepted draft, and the fitted power."""
        sums = (self._accepted, self._expected)
        rate, mean = (min(max(each / self._tested, 0.05), 0.99) for each in sums)
        return rate, math.log(rate) / math.log(mean)
