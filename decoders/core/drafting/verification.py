"""Define verification rules, by which the target accepts drafts, and the two usual rules.

A decoder's rule is its `DraftAndVerify.verification`. Letters: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from decoders.core.device import upload
from decoders.core.drafting.tree import DraftTree
from decoders.core.sampling import Uniforms, pick
from decoders.core.types import EXACT, Acceptance, AcceptanceRule, CallResult, Output, Sampling

Verify = Literal["rejection", "coupled", "relaxed", "topk", "none"]
Exact = Literal["rejection", "coupled"]
Decision = tuple[Sequence[int], int] | tuple[Sequence[int], int, Acceptance]
ExactChain = Literal["rejection", "coupled", "block"]  # `block` verifies a chain alone


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Describe a turn of the loop to a rule: drafts, and the result of their verifying call.

    Attributes:
        tree: the drafts; row 0 is the last token before them.
        result: the result of the call, in the form that the rule requests.
        uniforms: uniforms of the sequence, or for a `fresh` rule those of this step alone.
        output: output position of the first drafts.
    """

    tree: DraftTree
    result: CallResult
    uniforms: Uniforms
    output: int

    def recover(self, weights: Tensor, accepted: int) -> int:
        """Draw the token after `accepted` drafts from weights ``[V]``."""
        u = [self.uniforms.at("recover", self.output + accepted)]
        return int(pick(weights[None], upload(u, weights.device, torch.float64)))


class Rule:
    """Define a rule that verifies drafts, by `decide` and the output form that it reads.

    Attributes:
        lossless: answers follow the target's distribution (greedy: they are exactly its tokens).
        coupled: answers are exactly AR's tokens for the same seed.
        fresh: drafts behind the accepted ones influence decisions. Then drafts, tests and recovered
            tokens of each step have uniforms that no other step has.
        acceptance_rule: parameters of calls with ``output="acceptance"``.
    """

    lossless: bool = True
    coupled: bool = False
    fresh: bool = False
    acceptance_rule: AcceptanceRule = EXACT

    def draws(self, sampling: Sampling) -> bool:
        """Return whether drafts are drawn from distributions, which are then kept."""
        del sampling
        return False

    def output(self, sampling: Sampling, *, branches: bool) -> Output | Sequence[str]:
        """Return the output form, or forms, of the verifying call's rows."""
        del branches
        return "probs" if self.draws(sampling) else "picks"

    def decide(self, turn: Turn) -> Decision:
        """Return the accepted rows of a turn's tree, row 0 first, and the token after them.

        A third value may replace the result's `acceptance`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define decide(turn)")


class Coupled(Rule):
    """Accept the target's picks: exactly AR's tokens for the same seed."""

    coupled = True

    def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
        """Follow the target's picks."""
        path = turn.tree.path(turn.result.picks)
        return path, turn.result.picks[path[-1]]


class Rejection(Coupled):
    """Verify by speculative sampling, which keeps the distribution (greedy: exactly the tokens)."""

    coupled = False

    def draws(self, sampling: Sampling) -> bool:
        """Return whether distributions decide: not if greedy, as the target's picks suffice."""
        return not sampling.greedy

    def output(self, sampling: Sampling, *, branches: bool) -> Output:
        """Return the form that verifies a chain or a tree at once."""
        if not self.draws(sampling):
            return "picks"
        return "tree" if branches else "acceptance"

    def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
        """Return the acceptance in the call's result, or follow the target's picks if greedy."""
        result = turn.result
        if result.acceptance is not None:
            return range(result.acceptance.accepted + 1), result.acceptance.token
        assert result.probs is None, "a rule that requests probs must decide by them itself"
        return (result.path, result.picks[0]) if result.path else super().decide(turn)
