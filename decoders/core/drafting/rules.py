"""Verification rules by the value of a decoder's option ``verify``, and those that few use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from decoders.core.drafting.verification import Coupled, Rejection, Rule, Turn
from decoders.core.types import AcceptanceRule, Output, Sampling


class BlockVerification(Rejection):
    """Block verification of a chain: keeps the distribution, accepts more drafts (`verify_block`).

    On average a step has at least as many tokens as by `Rejection`.
    """

    fresh = True

    def output(self, sampling: Sampling, *, branches: bool) -> Output:
        """Return the form that verifies a chain at once."""
        return "block" if self.draws(sampling) else "picks"


class Lenient(Rejection):
    """Rejection with a lenient test (`AcceptanceRule`), which accepts what the target would not."""

    lossless = False

    def __init__(self, acceptance_rule: AcceptanceRule) -> None:
        """Accept drafts by an acceptance rule, also if greedy."""
        self.acceptance_rule = acceptance_rule

    def draws(self, sampling: Sampling) -> bool:
        """Tell that distributions decide, also if greedy."""
        return True


class Unverified(Rule):
    """Accepts all drafts."""

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
