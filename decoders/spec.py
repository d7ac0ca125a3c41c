"""Draft-model speculative decoding (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023).

A step: the draft model proposes up to K tokens one by one, one target call over the last committed
token and the drafts verifies them all, and the accepted ones plus one token of the target's own
(recovered or bonus) are emitted. Lossless: `rejection` keeps the target's distribution, `coupled`
accepts while the draft is the target's own pick for the same uniform and emits AR's very tokens.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.verification import Verification, settle
from decoders.core.registry import register
from decoders.core.types import Call, CallResult, Emit

_Proposal = tuple[list[int], list[Tensor]]


@register("spec")
@dataclass(frozen=True, kw_only=True)
class Speculative(Decoder):
    """Draft K tokens with a small model, verify them in one target call. Lossless.

    Args:
        k: tokens drafted per step (fewer where the budget ends sooner).
        verify: acceptance rule above temperature 0 (greedy: both accept the target's argmax).
    """

    k: int = 4
    verify: Literal["rejection", "coupled"] = "rejection"

    needs = ("draft",)

    def __post_init__(self) -> None:
        """`ValueError` on k below 1."""
        self.demand(self.k >= 1, "k", "1 or above")

    @property
    def coupled(self) -> bool:
        """Coupled verification emits AR's tokens for the same seed."""
        return self.verify == "coupled"

    @property
    def _verification(self) -> Verification:
        return Verification(rule="coupled" if self.coupled else "strict")

    def steps(self, request: Request) -> Steps:
        """Prefill the target, then draft, verify, roll both caches back."""
        target, draft = request.target, request.draft
        assert draft is not None
        left = request.sampling.max_new_tokens

        result = yield target.call(request.prompt_ids)
        sequence = [*request.prompt_ids, *result.picks]
        yield Emit(tokens=result.picks)
        left -= 1
        rule = self._verification
        while True:
            # the verifying call adds one token itself: draft at most what the budget still holds
            drafts, distributions = yield from self._propose(
                request, sequence, min(self.k, left - 1)
            )
            result = yield target.call(
                (sequence[-1], *drafts),
                want=rule.want(request.sampling),
                read=range(len(drafts) + 1),
                drafts=drafts,
                draft_probs=distributions,
            )
            acceptance = rule.acceptance(result, drafts)
            emitted = settle(target, drafts, acceptance)
            sequence += emitted
            # every token but the last is in the target's cache; the draft may lack some at its end
            draft.truncate(min(draft.length, len(sequence) - 1))
            yield Emit(
                tokens=emitted,
                drafted=len(drafts),
                accepted=acceptance.accepted,
                acceptance=result.acceptance,
                rejected=tuple(drafts[acceptance.accepted :]),
            )
            left -= len(emitted)

    def _propose(
        self, request: Request, sequence: list[int], num_drafts: int
    ) -> Generator[Call | Emit, CallResult, _Proposal]:
        """Draft tokens with their distributions.

        The first call also feeds what the draft's cache lacks.

        The last draft is never fed to the draft model: after full acceptance it is caught up
        together with the bonus token, so that no draft call is wasted.
        """
        draft = request.draft
        assert draft is not None
        drafts: list[int] = []
        distributions: list[Tensor] = []
        keep_distributions = not self._verification.by_picks(request.sampling)
        while len(drafts) < num_drafts:
            known = draft.length - len(sequence)  # drafts already in the cache, if positive
            unseen = drafts[known:] if known >= 0 else [*sequence[known:], *drafts]
            result = yield draft.call(unseen, want="probs" if keep_distributions else "picks")
            drafts += result.picks
            if result.probs is not None:
                distributions.append(result.probs[-1])
        return drafts, distributions
