"""Rules by which the target accepts or rejects drafts, exact or lenient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from decoders.core.drafting.tree import DraftTree, verify_strict
from decoders.core.sampling import Uniforms
from decoders.core.types import EXACT, AcceptanceRule, CallResult, Output, Sampling

Verify = Literal["rejection", "coupled", "relaxed", "topk", "none"]
Exact = Literal["rejection", "coupled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The rule by which a call verifies drafts (p: the target's probability, q: the draft's).

    Attributes:
        rule: ``rejection``: speculative sampling, keeps the target's distribution (greedy: exactly
            its tokens); ``coupled``: accepts the target's own picks, exactly AR's tokens for the
            same seed. Lossy: ``relaxed``: accepts with probability min(1, p / (lenience q));
            ``topk``: always accepts the target's `top` likeliest tokens; ``none``: accepts all.
        acceptance_rule: parameters of ``relaxed`` and ``topk``.
    """

    rule: Verify = "rejection"
    acceptance_rule: AcceptanceRule = EXACT

    def by_picks(self, sampling: Sampling) -> bool:
        """Tell whether the target's picks suffice, so that no distribution has to be kept."""
        greedy = self.rule == "rejection" and sampling.greedy
        return greedy or self.rule in ("coupled", "none")

    def output(self, sampling: Sampling, *, branches: bool) -> Output:
        """Return the output form of the verifying call's rows."""
        if self.by_picks(sampling):
            return "picks"
        return "probs" if branches else "acceptance"

    def decide(
        self, tree: DraftTree, result: CallResult, uniforms: Uniforms, output: int
    ) -> tuple[Sequence[int], int]:
        """Return the accepted rows of a tree, and the token that follows them.

        `output` is the output position of the first drafts.
        """
        if result.acceptance is not None:
            return range(result.acceptance.accepted + 1), result.acceptance.token
        if result.probs is not None:
            return verify_strict(tree, result.probs, tree.probs, uniforms, output)
        if len(tree) == 1 or self.rule == "none":
            return range(len(tree)), result.picks[-1]
        path = tree.path(result.picks)
        return path, result.picks[path[-1]]
