"""Draft in parallel from known u by a few layers on the target's hidden states.

The layers draft K tokens in one pass, each from the uniform by which the target will pick it. This
is PTP's idea (arXiv 2512.21323) at a fraction of the cost of a target pass, with a body like
DFlash's and a bias like DSpark's (docs/decoders/shallow.md). One call verifies the drafts by the
target's own picks.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Generator
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.length import AUTO, Length, NumDrafts
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.states import StatesDrafter
from decoders.core.drafting.tree import DraftTree
from decoders.core.model import DraftCall
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, CallResult, DraftShape


@register("shallow")
@dataclass(frozen=True, kw_only=True)
class Shallow(DraftAndVerify):
    """Draft in one pass of layers that know the uniforms of the target's picks. Lossless.

    Args:
        slots: maximum number of drafts; 0: as many as the layers were trained for; `auto`: of
            these, as many as pay by their confidences and `row_cost`, which replaces `stop`.
        row_cost: with ``slots=auto``, cost of a draft's row, in target calls of one row.
        stop: drafting ends before the chance that all drafts are accepted falls below this.
        adapter: name of the adapter that holds the layers, see ``--adapter``.
    """

    slots: NumDrafts = 0
    row_cost: float = 0.02
    stop: float = 0.1
    adapter: str = "shallow"

    needs = ("adapter",)
    variants = ("shallow",)
    by_default = False

    def __post_init__(self) -> None:
        fits = self.slots == AUTO or 0 <= self.slots <= MAX_DRAFTS
        self.demand(fits, "slots", f"0 (all slots) to {MAX_DRAFTS}, or auto")
        self.demand_read("slots", {AUTO: ("row_cost",)})
        self.demand(self.row_cost >= 0, "row_cost", "0 or above")
        self.demand(0 <= self.stop < 1, "stop", "0 or above, below 1")
        fits = self.slots != AUTO or self.stop == Shallow.stop
        self.demand(fits, "stop", "left out with slots=auto")

    def drafter(self, request: Request) -> Drafter:
        """Draft from the target's hidden states of the text."""
        return _SlotsDrafter(self, request)


class _SlotsDrafter(StatesDrafter):
    """Make the drafts of one answer."""

    def __init__(self, options: Shallow, request: Request) -> None:
        assert request.adapter is not None
        self._options, self._request = options, request
        super().__init__(Length(options.slots or request.adapter.num_slots, options.row_cost))
        self.hidden_layers = request.adapter.sizes.get("hidden_layers", ())
        self._slots = min(self._length.limit, request.adapter.num_slots)

    def draft(self, text: Text, most: int) -> Generator[DraftCall, CallResult, DraftTree]:
        """Run all slots, and return the drafts up to the first that is unlikely to be accepted."""
        request = self._request
        if most < 1:  # the answer's last call
            return DraftTree(text.last)
        uniforms = [request.uniforms.at("draw", text.output + slot) for slot in range(self._slots)]
        about = {"sampling": request.sampling, "uniforms": uniforms, **self.unfed(text)}
        shape = DraftShape(depth=self._slots)
        result = yield request.target.draft(self._options.adapter, shape=shape, **about)
        stop = 0.0 if self._length.is_auto else self._options.stop
        reached = itertools.accumulate(result.confidences[:most], operator.mul)
        stands = [*itertools.takewhile(lambda chance: chance >= stop, reached)]
        drafts = result.picks[: self._length.worthwhile(stands)]
        return DraftTree.chain(text.last, drafts, result.confidences)
