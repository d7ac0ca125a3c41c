"""Speculative decoding with a parallel drafter: PTP (arXiv 2512.21323) on a small draft model.

A step: one call of the draft model proposes the next tokens through slots that carry their
uniforms; one target call verifies all of them. Drafting k tokens costs one call instead of k. The
drafts do not follow the draft model's own distribution: its adapter predicts the target's pick for
a uniform, best if trained on the target's picks (``[model] teacher`` in its recipe). A draft is
accepted if it is the target's own pick, so the output is AR's for the same seed, token for token.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.proposer import Proposer
from decoders.core.drafting.tree import DraftTree
from decoders.core.model import Call
from decoders.core.registry import register
from decoders.core.types import CallResult

_OWN_CHANCE = 0.75  # assumed acceptance of the draft model's own next token, to weigh rows


@register("ptp_spec")
@dataclass(frozen=True, kw_only=True)
class ParallelSpeculative(DraftAndVerify):
    """Draft many tokens in one call of a small model, verify them in one of the target. Lossless.

    Args:
        slots: maximum number of slots of a proposal; 0: as many as the adapter was trained with.
        row_cost: cost of one more row in a target call, in calls of one row.
        adapter: name of the draft model's adapter, see ``--adapter``.
    """

    slots: int = 0
    row_cost: float = 0.02
    adapter: str = "ptp-draft"

    needs = ("draft", "adapter")
    variants = ("o-ptp", "c-ptp")
    adapter_of: ClassVar[Literal["target", "draft"]] = "draft"
    combines = False

    def __post_init__(self) -> None:
        self.demand(self.slots >= 0, "slots", "0 (the adapter's) or above")
        self.demand(self.row_cost >= 0, "row_cost", "0 or above")

    def drafter(self, request: Request) -> Drafter:
        """Draft with slots of the draft model."""
        return _ChainDrafter(self, request)


class _ChainDrafter(Drafter):
    """Make each proposal by one draft model call, which also feeds the new text."""

    def __init__(self, options: ParallelSpeculative, request: Request) -> None:
        assert request.adapter is not None
        assert request.draft is not None
        self._draft = request.draft
        slots: Any = {"row_cost": options.row_cost, "alone": True, "exact_row": False}
        self._proposer = Proposer(request, options.adapter, options.slots, **slots)
        # the first slot of O-PTP predicts the next token; in C-PTP the row of the last token does
        self._guesses = request.adapter.variant == "c-ptp"

    def draft(self, text: Text, most: int) -> Generator[Call, CallResult, DraftTree]:
        """Propose in one call and return as many tokens as pay."""
        proposer, result = self._proposer, CallResult()
        slots = proposer.one_branch(text, most - int(self._guesses))
        if most and (slots is not None or self._guesses):
            unseen = text.tokens[self._draft.length : len(text.tokens) - int(proposer.alone)]
            positions = proposer.positions(self._draft.length, len(unseen), slots)
            read = (-1,) if self._guesses else ()
            result = yield self._draft.call(unseen, read=read, slots=slots, positions=positions)
        proposer.take(
            CallResult(
                slot_picks=(*result.picks, *result.slot_picks),
                slot_confidences=(*[_OWN_CHANCE] * len(result.picks), *result.slot_confidences),
            )
        )
        return DraftTree.chain(text.last, proposer.worthwhile(most), proposer.chances)

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Learn how many drafts are accepted."""
        if not verdict.is_prompt:
            self._proposer.observe(verdict.tree.num_drafts, verdict.accepted)
