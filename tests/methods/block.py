"""Block verification: the drafts of a step are tested jointly, the longest tested prefix stands.

Source: Sun et al. 2024 (arXiv 2403.10444), Algorithm 2. Its tests behind the accepted drafts decide
too, so that each step needs uniforms of its own (`fresh`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from decoders.core.drafting.verification import Rejection, Turn
from decoders.core.registry import register
from decoders.core.types import Output, Sampling
from decoders.spec import Speculative


class Joint(Rejection):
    """Accept the longest prefix whose own test holds."""

    fresh = True

    def output(self, sampling: Sampling, *, branches: bool) -> Output:
        return "probs" if self.draws(sampling) else "picks"

    def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
        target, draft = turn.result.probs, turn.tree.probs
        if target is None:  # greedy
            return super().decide(turn)
        accepted, share = 0, 1.0  # min(1, …) of the drafts' ratios p / q, one after another
        weights = self.rest(share, target[0], draft.get(0))
        for row, token in enumerate(turn.tree.tokens[1:], 1):
            share = min(1.0, share * float(target[row - 1, token] / draft[row - 1][token]))
            rest = self.rest(share, target[row], draft.get(row))
            u = turn.uniforms.at("accept", turn.output + row - 1)
            if u < self.chance(share, float(rest.sum())):
                accepted, weights = row, rest
        return range(accepted + 1), turn.recover(
            weights if float(weights.sum()) else target[accepted], accepted
        )

    def rest(self, share: float, target: Tensor, draft: Tensor | None) -> Tensor:
        """Return what drafts of a share leave of the target: all of it behind the last."""
        return share * target if draft is None else (share * target - draft).clamp(min=0)

    def chance(self, share: float, mass: float) -> float:
        return mass / max(mass + 1 - share, 1e-30)


@register("my-block")
@dataclass(frozen=True, kw_only=True)
class Block(Speculative):
    """`spec`, verified by blocks. Lossless."""

    verification = Joint()
