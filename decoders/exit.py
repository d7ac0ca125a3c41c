"""Early exit: the target's own first layers draft (Elhoushi et al. 2024, LayerSkip, 2404.16710).

A trained block maps the hidden state after the first layers to the input of the target's own final
norm and head, so the first layers act as a draft model that shares its weights with the target.
A step is as in `spec`: draft up to K tokens one by one, verify them in one call of the full target.

The target's layers are not trained, unlike in LayerSkip, so answers are the target's own. The block
is Kangaroo's adapter (Liu et al. 2024, arXiv 2404.18911) without its attention. For drafting, the
first layers have their own cache, which the verifying call does not reuse.
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
        k: most tokens drafted per step (fewer if the budget ends sooner).
        stop: a draft below this probability at the exit is the last of its step (as in Kangaroo,
            whose threshold is the default); 0: draft k tokens. It is verified like the others.
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
        """Draft with the target's first layers."""
        return ModelDrafter(request, self.verification, self.k, self.stop)
