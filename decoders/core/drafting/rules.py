"""Map the values of the option ``verify`` to verification rules, and define the rarer rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from decoders.core.drafting.verification import Coupled, Rejection, Rule, Turn
from decoders.core.types import AcceptanceRule, Output, Sampling


class BlockVerification(Rejection):
    """Verify a chain as a block, which keeps the distribution and accepts more (`verify_block`).

    On average a step emits at least as many tokens as with `Rejection`.
    """

    fresh = True

    def output(self, sampling: Sampling, *, branches: bool) -> Output:
        """Return the form that verifies a chain at once."""
        return "block" if self.draws(sampling) else "picks"


class Lenient(Rejection):
    """Verify by rejection with a relaxed test (`AcceptanceRule`), which alters the distribution."""

    lossless = False

    def __init__(self, acceptance_rule: AcceptanceRule) -> None:
        """Begin with the acceptance rule, which also holds if greedy."""
        self.acceptance_rule = acceptance_rule

    def draws(self, sampling: Sampling) -> bool:
        """Return True: distributions decide, also if greedy."""
        return True


class Unverified(Rule):
    """Accept all drafts."""

    lossless = False

    def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
        """Accept every row."""
        return range(len(turn.tree)), turn.result.picks[-1]


RULES: Mapping[str, Rule] = {
    "rejection": Rejection(),
    "coupled": Coupled(),
    "block": BlockVerification(),
    "none": Unverified(),
}
"""Rules by the value of a decoder's option ``verify``."""
