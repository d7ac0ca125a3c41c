"""How a decoder lets the target decide on its drafts, exactly or with lenience.

Letters: p the target's distribution of a place, q the distribution its draft was drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from decoders.core.model import Session
from decoders.core.sampling import verify_picks
from decoders.core.types import Acceptance, AcceptanceRule, CallResult, Sampling, SlotWant, Want

Verify = Literal["strict", "coupled", "relaxed", "topk", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What of a draft's fate is asked of the verifying call, and read off its result.

    Attributes:
        rule: ``strict``: speculative sampling, the target's distribution (greedy: its very tokens);
            ``coupled``: the target's own picks, AR's very tokens for the same seed. Lossy:
            ``relaxed``: a draft stands with probability min(1, p / (lenience q)); ``topk``: it
            stands among the target's `top` likeliest; ``none``: it stands.
        lenience: of ``relaxed``.
        top: of ``topk``.
    """

    rule: Verify = "strict"
    lenience: float = 1.0
    top: int = 0

    def by_picks(self, sampling: Sampling) -> bool:
        """Whether the target's picks alone decide, so that no distribution has to be kept."""
        exact = self.rule == "strict" and sampling.greedy
        return exact or self.rule in ("coupled", "none")

    def want(self, sampling: Sampling) -> Want:
        """What the verifying call's rows are read as."""
        return "picks" if self.by_picks(sampling) else "acceptance"

    def draft_want(self, sampling: Sampling) -> SlotWant:
        """What drafts are read off slots as.

        Drawn from the very distribution they are verified with.
        """
        if sampling.greedy:
            return "argmax"
        return "draws" if self.by_picks(sampling) else "probs"

    @property
    def acceptance_rule(self) -> AcceptanceRule:
        """For a call that is read as an acceptance."""
        return AcceptanceRule(
            lenience=self.lenience if self.rule == "relaxed" else 1.0,
            top=self.top if self.rule == "topk" else 0,
        )

    def acceptance(self, result: CallResult, drafts: Sequence[int]) -> Acceptance:
        """How many drafts stand, and the token that follows them."""
        if result.acceptance is not None:
            return result.acceptance
        if self.rule == "none":
            return Acceptance(len(drafts), result.picks[-1])
        return verify_picks(result.picks, drafts)


def settle(target: Session, drafts: Sequence[int], acceptance: Acceptance) -> tuple[int, ...]:
    """The tokens that the last call's acceptance makes final; drafts that fell leave the cache."""
    target.truncate(target.length - len(drafts) + acceptance.accepted)
    return (*drafts[: acceptance.accepted], acceptance.token)
