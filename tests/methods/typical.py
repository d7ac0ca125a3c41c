"""Typical acceptance: a draft stands if it is likely enough, given how unsure the target is.

Source: Medusa (arXiv 2401.10774, section 2.3.1), here on drafts of a draft model. The answers no
longer follow the target's distribution, so the decoder is lossy, and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from decoders.core.drafting.verification import Rule, Turn
from decoders.core.registry import register
from decoders.core.types import Output, Sampling
from decoders.spec import Speculative


class Typical(Rule):
    """Accept drafts above a threshold that falls with the target's entropy."""

    lossless = False

    def output(self, sampling: Sampling, *, branches: bool) -> Output:
        return "probs"

    def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
        probs, path = turn.result.probs, [0]
        assert probs is not None
        while children := turn.tree.children(path[-1]):
            law = probs[path[-1]]
            entropy = float(-(law * law.clamp(min=1e-9).log()).sum())
            threshold = min(0.09, 0.3 * 2.718281828**-entropy)
            (token, row), *_ = children.items()
            if float(law[token]) <= threshold:
                break
            path.append(row)
        return path, turn.recover(probs[path[-1]], len(path) - 1)


@register("typical")
@dataclass(frozen=True, kw_only=True)
class TypicalAcceptance(Speculative):
    """`spec`, verified by typical acceptance. Lossy."""

    verification = Typical()
