"""I-DLM: both things of that name.

* `refine`: a block is predicted at once and predicted again with more of it filled in, two to five
  times, so that unsure positions see their neighbours. Lossy. What is final of a block is fed as
  tokens by the next call that predicts, of this block or of the one after it.
* `isd`, introspective strided decoding (Introspective Diffusion Language Models, arXiv 2604.11035):
  one call verifies the last stride with the target's own rows and proposes the next with masks
  behind it. After a rejection these masks followed a wrong token, so the next round only proposes
  (*cold*); with ``branches=all`` masks stand behind every spec, as in PTP's Partial Quadratic
  Decoding, and no round is. The adapter is gated: the target is the base model itself, and the
  output keeps its distribution.

Letters: B tokens of a block, T passes, N the stride, K = N - 1 specs (proposed tokens).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from decoders.core.adapter.config import Variant
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.mask_slots import (
    block_call,
    branch_mask,
    branch_places,
    branch_slots,
    mask_slots,
)
from decoders.core.drafting.refinement import (
    Commit,
    MaskBlock,
    Prefix,
    Revise,
    Rules,
    Schedule,
    Tail,
)
from decoders.core.drafting.verification import Verification, Verify, settle
from decoders.core.registry import register
from decoders.core.types import Confidence, Emit, Sampling, Slots

_Mode = Literal["refine", "isd"]
_Branches = Literal["end", "all"]
_READS = {
    "refine": (
        *("block", "max_passes", "commit", "schedule", "threshold", "revise", "edit_threshold"),
        *("confidence", "early_exit", "prefix", "tail"),
    ),
    "isd": ("stride", "branches", "verify", "proposal", "lenience", "top"),
}
_COMMIT_READS = {
    "threshold": ("threshold",),
    "threshold+quota": ("threshold", "schedule"),
    "quota": ("schedule",),
    "cmlm": ("schedule",),
}
_REVISE_READS = {"remask": ("edit_threshold",), "edit": ("edit_threshold",)}
_VERIFY_READS = {"relaxed": ("lenience",), "topk": ("top",)}


@register("idlm")
@dataclass(frozen=True, kw_only=True)
class IterativeDiffusion(Decoder):
    """Refine blocks over several passes, or propose strides and verify them. Lossless by mode.

    Args:
        mode: `refine` (lossy) or `isd` (lossless unless an option relaxes it). What follows down to
            `tail` is read by `refine` alone, then down to `top` by `isd` alone; an option that
            nothing reads is refused.
        block: B, tokens refined together.
        max_passes: T; 0: as many as a block has tokens (for thresholds).
        commit: which predictions a pass keeps, see `decoders.core.drafting.refinement`.
        schedule: how many masks are left after each pass (`cmlm` and quotas).
        threshold: how sure a prediction must be to be kept (thresholds).
        revise: what happens to kept tokens that a later pass predicts otherwise.
        edit_threshold: how sure it must be of that.
        confidence: how sure a prediction is: its probability, its lead over the next, or exp(-H).
        early_exit: stop refining once there is nothing left to do.
        prefix: whether the beginning of a block is final once it is known (`running`), so that the
            target itself says what comes after it, or not before the whole `block` is.
        tail: what becomes of tokens the last pass is not sure of: it fills them in, or they are
            deferred to the next block, which begins with them.
        stride: N: at most N tokens a call, and no more than the adapter has slots and 1.
        branches: where masks stand: behind the last spec (`end`, as published), or behind each, so
            that there are proposals wherever verification stops (`all`; N times the masks).
        verify: how the target decides, see `decoders.core.drafting.verification`: `strict` keeps
            the distribution, `coupled` gives AR's very tokens; `relaxed`, `topk` and `none` are
            lossy.
        proposal: specs are drawn from their distributions (`sample`), or the likeliest (`argmax`).
        lenience: of `relaxed`.
        top: of `topk`.
        adapter: name of the adapter, see ``--adapter``; empty: the mode's own name.
    """

    mode: _Mode = "refine"
    block: int = 16
    max_passes: int = 5
    commit: Commit = "threshold"
    schedule: Schedule = "linear"
    threshold: float = 0.95
    revise: Revise = "remask"
    edit_threshold: float = 0.9
    confidence: Confidence = "prob"
    early_exit: bool = True
    prefix: Prefix = "running"
    tail: Tail = "defer"
    stride: int = 4
    branches: _Branches = "end"
    verify: Verify = "strict"
    proposal: Literal["sample", "argmax"] = "sample"
    lenience: float = 0.5
    top: int = 2
    adapter: str = ""

    needs = ("adapter",)
    showcase: ClassVar[Mapping[str, Mapping[str, str]]] = {"isd": {"mode": "isd", "stride": "8"}}

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range, or one that nothing reads as others are set."""
        self.demand(self.mode in _READS, "mode", "refine or isd (`jacobi` is a decoder of its own)")
        self.demand(self.block >= 1, "block", "1 or above")
        self.demand(self.max_passes >= 0, "max_passes", "1 or above, or 0 for a block's tokens")
        self.demand(0 <= self.threshold <= 1, "threshold", "from 0 to 1")
        self.demand(0 <= self.edit_threshold <= 1, "edit_threshold", "from 0 to 1")
        self.demand(self.stride >= 2, "stride", "2 or above")
        self.demand(0 < self.lenience <= 1, "lenience", "above 0 and at most 1 (exact)")
        self.demand(self.top >= 1, "top", "1 or above")
        self.demand_read("mode", _READS)
        self.demand_read("commit", _COMMIT_READS)
        self.demand_read("revise", _REVISE_READS)
        self.demand_read("verify", _VERIFY_READS)

    @property
    def adapter_name(self) -> str:
        """An adapter of the mode's own name, unless another is given."""
        return self.adapter or self.mode

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The mode's own."""
        return (self.mode,)

    @property
    def lossless(self) -> bool:
        """All but refinement and relaxed acceptance."""
        return self.coupled or (self.mode == "isd" and self.verify == "strict")

    @property
    def coupled(self) -> bool:
        """Every token is the target's own pick for its uniform."""
        return self.mode == "isd" and self.verify == "coupled"

    def steps(self, request: Request) -> Steps:
        """Those of the mode."""
        return self._refine(request) if self.mode == "refine" else self._strides(request)

    # Refinement.

    def _refine(self, request: Request) -> Steps:
        """Block after block: up to T passes each, whose calls feed what became final before."""
        target, sampling = request.target, request.sampling
        pending, left = request.prompt_ids, sampling.max_new_tokens
        anchor = pending[-1]
        while True:
            block = MaskBlock(min(self.block, left), self._rules, sampling.stop_ids)
            emitted = 0
            while not block.finished:
                start = block.start
                slots = self._block_slots(block.shown[start:], anchor, sampling)
                result = yield block_call(target, pending, slots)
                if pending:
                    block.begin(result.picks[0])
                block.take(result.slot_picks, result.slot_confidences)
                # the first token is final at once, the others when the block's rules say so
                fresh = block.tokens[emitted : max(1, block.start)]
                yield Emit(
                    tokens=fresh,
                    passes=block.passes if block.finished else 0,
                    decided=tuple(block.decided[emitted : emitted + len(fresh)]),
                )
                emitted += len(fresh)
                pending = block.tokens[start : block.start]
                anchor = pending[-1] if pending else anchor
            left -= len(block.tokens)

    def _block_slots(self, shown: Sequence[int], anchor: int, sampling: Sampling) -> Slots | None:
        return mask_slots(
            self.adapter_name,
            shown,
            anchor=anchor,
            want="argmax" if sampling.greedy else "draws",
            read=len(shown) - 1,  # the last slot predicts the next block's first token
            confidence=self.confidence,
        )

    @property
    def _rules(self) -> Rules:
        return Rules(
            max_passes=self.max_passes,
            commit=self.commit,
            schedule=self.schedule,
            threshold=self.threshold,
            revise=self.revise,
            edit_threshold=self.edit_threshold,
            early_exit=self.early_exit,
            prefix=self.prefix,
            tail=self.tail,
        )

    # Introspective strided decoding.

    def _strides(self, request: Request) -> Steps:
        """Verify the specs and propose the next in one call; the prompt's call proposes too."""
        target, sampling = request.target, request.sampling
        rule, by_argmax = self._verification, self.proposal == "argmax"
        most_masks = self.stride - 1  # an adapter guesses blindly beyond what it was trained for
        if request.adapter is not None:
            most_masks = min(most_masks, request.adapter.num_slots)
        fed, left = request.prompt_ids, sampling.max_new_tokens
        specs: tuple[int, ...] = ()
        distributions: Sequence[Tensor] | None = None
        while True:
            sizes = self._mask_counts(most_masks, len(specs), left)
            slots = branch_slots(
                self.adapter_name,
                sizes,
                (*fed, *specs),
                want="argmax" if by_argmax else rule.draft_want(sampling),
            )
            result = yield target.call(
                (*fed, *specs),
                slots=slots,
                positions=branch_places(target.length, len(fed) + len(specs), sizes),
                mask=branch_mask(len(fed), sizes),
                want=rule.want(sampling),
                read=range(-1 - len(specs), 0),
                drafts=specs,
                draft_probs=distributions,
                acceptance_rule=rule.acceptance_rule,
            )
            acceptance = rule.acceptance(result, specs)
            emitted = settle(target, specs, acceptance)
            yield Emit(
                tokens=emitted,
                drafted=len(specs),
                accepted=acceptance.accepted,
                acceptance=result.acceptance,
                rejected=specs[acceptance.accepted :],
            )
            left -= len(emitted)
            fed = emitted[-1:]
            # only masks behind the tokens that stood are of use: without any the next round is cold
            start = sum(sizes[: acceptance.accepted])
            behind = slice(start, start + sizes[acceptance.accepted])
            specs = result.slot_picks[behind]
            probs = result.slot_probs
            distributions = None if probs is None or not specs else probs[behind].unbind()

    def _mask_counts(self, most: int, num_specs: int, left: int) -> list[int]:
        """Masks behind the last final token and behind each spec."""
        # with m specs this call gives m + 1 tokens, and the call that verifies its own one more
        counts = [max(0, min(most, left - m - 2)) for m in range(num_specs + 1)]
        if self.branches == "end":
            counts[:-1] = [0] * num_specs
        return counts

    @property
    def _verification(self) -> Verification:
        return Verification(rule=self.verify, lenience=self.lenience, top=self.top)
