"""A shallow parallel drafter that knows u: a few layers on the target's hidden states.

The layers draft K tokens in one pass, each from the uniform by which the target will pick it. This
is PTP's idea (arXiv 2512.21323) at a fraction of the cost of a target pass, with a body like
DFlash's and a bias like DSpark's (docs/decoders/shallow.md). One call verifies the drafts by the
target's own picks.

A draft call is one run of the layers.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Generator
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, StatesDrafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.model import DraftCall
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, CallResult, DraftShape


@register("shallow")
@dataclass(frozen=True, kw_only=True)
class Shallow(DraftAndVerify):
    """Draft in one pass of layers that know the uniforms of the target's picks. Lossless.

    Args:
        slots: most drafts; 0: as many as the layers were trained for.
        stop: drafting ends before the chance that all drafts are accepted falls below this.
        adapter: name of the adapter that holds the layers, see ``--adapter``.
    """

    slots: int = 0
    stop: float = 0.1
    adapter: str = "shallow"

    needs = ("adapter",)
    variants = ("shallow",)
    by_default = False

    def __post_init__(self) -> None:
        self.demand(0 <= self.slots <= MAX_DRAFTS, "slots", f"0 (all slots) to {MAX_DRAFTS}")
        self.demand(0 <= self.stop < 1, "stop", "0 or above, below 1")

    def drafter(self, request: Request) -> Drafter:
        """Draft from the target's hidden states of the text."""
        assert request.adapter is not None
        trained = request.adapter.num_slots
        shape = DraftShape(depth=min(self.slots or trained, trained))
        return _ExitDrafter(request, self.adapter, shape, self.stop)


class _ExitDrafter(StatesDrafter):
    """The drafts of one answer."""

    def __init__(self, request: Request, name: str, shape: DraftShape, stop: float) -> None:
        super().__init__(request, name, shape)
        self._stop = stop

    def draft(self, text: Text, most: int) -> Generator[DraftCall, CallResult, list[int]]:
        """Run all slots and return the drafts up to the first that is unlikely to be reached."""
        request = self._request
        if most < 1:  # the answer's last call
            return []
        states, tokens = self.unfed(text)
        slots = range(self._shape.depth)
        uniforms = [request.uniforms.at("draw", text.output + slot) for slot in slots]
        result = yield request.target.draft(
            self._name, states, tokens, self._shape, request.sampling, uniforms
        )
        reached = itertools.accumulate(result.confidences, operator.mul)
        stands = itertools.takewhile(lambda chance: chance >= self._stop, reached)
        return list(result.picks[: min(most, len(list(stands)))])
