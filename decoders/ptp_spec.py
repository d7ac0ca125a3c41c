"""Speculative decoding with a parallel drafter: PTP (arXiv 2512.21323) on a small draft model.

A step: one call of the draft model gives its own next token and, through slots that carry the next
uniforms, the ones after it; one target call verifies them all. Drafting k tokens costs one call
instead of k. A draft stands if it is the target's own pick for that uniform, so the output is AR's
for the same seed, token for token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.proposer import Proposer
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import CallResult, Emit


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
        if self.slots < 0 or self.row_cost < 0:
            raise ValueError(
                f"options 'slots' ({self.slots}) and 'row_cost' ({self.row_cost}) of decoder "
                "'ptp_spec' must be 0 or above"
            )

    @property
    def coupled(self) -> bool:
        """Every token is the target's own pick for its uniform."""
        return True

    def steps(self, request: Request) -> Steps:
        """Prefill the target, then propose in one call of the draft and verify in one of both."""
        target, draft, sampling = request.target, request.draft, request.sampling
        assert draft is not None
        assert request.adapter is not None
        proposer = Proposer(self.adapter, request.adapter, sampling, request.uniforms, self.slots)
        left = sampling.max_new_tokens

        result = yield target.call(request.prompt_ids)
        sequence = [*request.prompt_ids, *result.picks]
        yield Emit(tokens=result.picks)
        left -= 1
        while True:
            drafts: tuple[int, ...] = ()
            if left > 1:
                output = sampling.max_new_tokens - left
                slots = proposer.one_branch(left - 2, sequence[-1], output, self.row_cost)
                unseen = sequence[draft.length :]
                positions = proposer.positions(draft.length, len(unseen), slots)
                result = yield draft.call(unseen, slots=slots, positions=positions)
                proposer.take(_with_own(result))
                drafts = proposer.worthwhile(left - 1, self.row_cost)
            result = yield target.call((sequence[-1], *drafts), read=range(len(drafts) + 1))
            verdict = verify_picks(result.picks, drafts)
            emitted = (*drafts[: verdict.accepted], verdict.token)
            sequence += emitted
            target.truncate(len(sequence) - 1)
            proposer.observe(len(drafts), verdict.accepted)
            yield Emit(tokens=emitted, drafted=len(drafts), accepted=verdict.accepted)
            left -= len(emitted)


def _with_own(result: CallResult) -> CallResult:
    """The draft model's own next token in front of what its slots propose."""
    return CallResult(
        slot_picks=(*result.picks, *result.slot_picks),
        slot_confidences=(_OWN_CHANCE, *result.slot_confidences),
    )


_OWN_CHANCE = 0.75  # of the draft model's own next token to stand; only weighs rows
