"""Early exit: the target's own first layers draft (Elhoushi et al. 2024, LayerSkip, 2404.16710).

A trained block reads the hidden state after the first layers and hands it to the target's own last
norm and head: so these layers are a draft model that shares its weights with the target. A step is
that of `spec`: up to K tokens drafted one by one, one call of the whole target that verifies them.

The target's layers are not trained as in LayerSkip: answers are the target's own. The block beside
them is what Kangaroo's adapter is (Liu et al. 2024, arXiv 2404.18911), without its attention. The
first layers have a cache of their own for drafting, and do not hand it to the verifying call.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.chain import ModelDrafter
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.verification import Exact
from decoders.core.registry import register


@register("exit")
@dataclass(frozen=True, kw_only=True)
class EarlyExit(DraftAndVerify):
    """Draft K tokens with the target's first layers, verify them in one target call. Lossless.

    Args:
        k: most tokens drafted per step (fewer where the budget ends sooner).
        stop: a draft less probable than this, at the exit, is the last of its step (as in Kangaroo,
            by default at its threshold); 0: k tokens are drafted. It is verified like the others.
        verify: acceptance rule above temperature 0 (greedy: both accept the target's argmax).
        adapter: name of the adapter that holds the exit, see ``--adapter``.
    """

    k: int = 6
    stop: float = 0.6
    verify: Exact = "rejection"
    adapter: str = "exit"

    needs = ("adapter",)
    variants = ("exit",)
    by_default = False

    def __post_init__(self) -> None:
        self.demand(self.k >= 1, "k", "1 or above")
        self.demand(0 <= self.stop < 1, "stop", "0 (off) or above, and below 1")

    def drafter(self, request: Request) -> Drafter:
        """Draft in a session of the first layers."""
        return ModelDrafter(request, self.verification, self.k, self.stop)
