"""Tokens drafted one by one by a model of its own, and verified by the target in one call.

What `spec` and `exit` share: they differ in whose session drafts.
Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from torch import Tensor

from decoders.core.decoder import Request, Steps
from decoders.core.drafting.verification import Verification, settle
from decoders.core.types import Call, CallResult, Emit, Sampling, Want

_Proposal = tuple[list[int], list[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainDrafting:
    """How a step drafts and verifies.

    Attributes:
        k: most tokens drafted per step (fewer where the budget ends sooner).
        stop: a draft less probable than this, in the draft model, is the last of its step.
        coupled: verify by the target's own picks; False: by speculative sampling.
    """

    k: int
    stop: float
    coupled: bool

    @property
    def _verification(self) -> Verification:
        return Verification(rule="coupled" if self.coupled else "strict")

    def steps(self, request: Request) -> Steps:
        """Prefill the target, then draft in `Request.draft`, verify, roll both caches back."""
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
        want = self._draft_want(request.sampling)
        keep_distributions = not self._verification.by_picks(request.sampling)
        while len(drafts) < num_drafts:
            known = draft.length - len(sequence)  # drafts already in the cache, if positive
            unseen = drafts[known:] if known >= 0 else [*sequence[known:], *drafts]
            result = yield draft.call(unseen, want=want)
            drafts += result.picks
            if keep_distributions:
                assert result.probs is not None
                distributions.append(result.probs[-1])
            if self.stop and _probability(result) < self.stop:
                break
        return drafts, distributions

    def _draft_want(self, sampling: Sampling) -> Want:
        """The form in which drafts are read: with their distributions where these are needed."""
        if not self._verification.by_picks(sampling):
            return "probs"
        if not self.stop:
            return "picks"
        return "argmax" if sampling.greedy else "probs"


def _probability(result: CallResult) -> float:
    """Of the draft that a call gave."""
    if result.probs is None:
        return result.confidences[-1]
    return float(result.probs[-1, result.picks[-1]])
