"""Speculative decoding with a parallel drafter: PTP (arXiv 2512.21323) on a small draft model.

A step: one call of the draft model proposes the next tokens through slots that carry their
uniforms; one target call verifies them all. Drafting k tokens costs one call instead of k, and none
of it is the draft model's own distribution: the adapter learns the target's pick for a uniform best
where it was trained on the target's uniforms (``[model] teacher`` in its recipe). A draft stands if
it is the target's own pick, so the output is AR's for the same seed, token for token.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from decoders.core.adapter.config import Variant
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.proposer import Proposer
from decoders.core.drafting.verification import settle
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import Call, CallResult, Emit


@register("ptp_spec")
@dataclass(frozen=True, kw_only=True)
class ParallelSpeculative(Decoder):
    """Draft many tokens in one call of a small model, verify them in one of the target. Lossless.

    Args:
        slots: most slots of a proposal; 0 is as many as the adapter was trained with.
        row_cost: what one more row adds to a target call, in calls of one row.
        adapter: name of the draft model's adapter, see ``--adapter``.
    """

    slots: int = 0
    row_cost: float = 0.02
    adapter: str = "ptp-draft"

    needs = ("draft", "adapter")
    adapter_of: ClassVar[Literal["target", "draft"]] = "draft"

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range."""
        self.demand(self.slots >= 0, "slots", "0 (the adapter's) or above")
        self.demand(self.row_cost >= 0, "row_cost", "0 or above")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Slots that carry uniforms."""
        return ("o-ptp", "c-ptp")

    @property
    def coupled(self) -> bool:
        """Every token is the target's own pick for its uniform."""
        return True

    def steps(self, request: Request) -> Steps:
        """Prefill the target, then propose in one call of the draft and verify in one of both."""
        target, sampling = request.target, request.sampling
        assert request.adapter is not None
        proposer = Proposer(
            self.adapter,
            request.adapter,
            sampling,
            request.uniforms,
            self.slots,
            alone=True,
            exact_row=False,
        )
        left = sampling.max_new_tokens

        result = yield target.call(request.prompt_ids)
        sequence = [*request.prompt_ids, *result.picks]
        yield Emit(tokens=result.picks)
        left -= 1
        while True:
            yield from self._propose(request, proposer, sequence, left)
            drafts = proposer.worthwhile(left - 1, self.row_cost)
            result = yield target.call((sequence[-1], *drafts), read=range(len(drafts) + 1))
            acceptance = verify_picks(result.picks, drafts)
            emitted = settle(target, drafts, acceptance)
            sequence += emitted
            proposer.observe(len(drafts), acceptance.accepted)
            yield Emit(
                tokens=emitted,
                drafted=len(drafts),
                accepted=acceptance.accepted,
                rejected=drafts[acceptance.accepted :],
            )
            left -= len(emitted)

    def _propose(
        self, request: Request, proposer: Proposer, sequence: Sequence[int], left: int
    ) -> Generator[Call, CallResult, None]:
        """One call of the draft model: the text it has not seen yet, and slots for what follows.

        The first slot of O-PTP predicts the next token. In C-PTP that is left to the model's row of
        the last token.
        """
        draft = request.draft
        assert draft is not None
        assert request.adapter is not None
        guesses = request.adapter.variant == "c-ptp"
        output = request.sampling.max_new_tokens - left
        room = left - 1 - int(guesses)
        slots = proposer.one_branch(room, sequence[-1], output, self.row_cost)
        if left == 1 or (slots is None and not guesses):
            proposer.take(CallResult())
            return
        unseen = sequence[draft.length : len(sequence) - int(proposer.alone)]
        positions = proposer.positions(draft.length, len(unseen), slots)
        read = (-1,) if guesses else ()
        result = yield draft.call(unseen, read=read, slots=slots, positions=positions)
        proposer.take(_with_own(result) if guesses else result)


def _with_own(result: CallResult) -> CallResult:
    """The draft model's own next token in front of what its slots propose."""
    return CallResult(
        slot_picks=(*result.picks, *result.slot_picks),
        slot_confidences=(_OWN_CHANCE, *result.slot_confidences),
    )


_OWN_CHANCE = 0.75  # of the draft model's own next token to stand; only weighs rows
