"""Introspective strided decoding (Introspective Diffusion Language Models, arXiv 2604.11035).

One call verifies the last stride with the target's own rows and proposes the next with masks after
it. After a rejection these masks followed a wrong token, so the next round only proposes (*cold*).
With ``branches=all`` masks follow every spec, as in PTP's Partial Quadratic Decoding, and no round
is cold. The adapter is gated: the target is the base model itself, and the output keeps its
distribution. ``idlm:mode=isd`` is the same decoder.

Letters: N the stride, K = N - 1 specs (proposed tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from decoders.core import masks
from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.mask_slots import branch_positions, mask_slots
from decoders.core.drafting.rules import Lenient
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Rule, Verify
from decoders.core.registry import register
from decoders.core.types import MASKED, AcceptanceRule, Output


@register("isd")
@dataclass(frozen=True, kw_only=True)
class StridedDecoding(DraftAndVerify):
    """Verify a stride and propose the next in the same call. Lossless unless an option relaxes it.

    A run that names no decoders measures it as ``idlm@isd``.

    Args:
        mode: `isd`; `refine` selects the decoder `idlm`, which has its own options.
        stride: N, maximum number of tokens per call, cut to the adapter's slots plus 1.
        branches: place of the masks: after the last spec (`end`, as published), or after each spec,
            so that there are proposals wherever verification stops (`all`, with N times the masks).
        verify: verification rule, see `decoders.core.drafting.verification`: `rejection` keeps the
            distribution, `coupled` gives exactly AR's tokens; `relaxed`, `topk` and `none` are
            lossy.
        proposal: draw specs from their distributions (`sample`), or take the likeliest (`argmax`).
        lenience: lenience of `relaxed`.
        top: number of likeliest tokens that `topk` always accepts.
        adapter: name of the adapter, see ``--adapter``.
    """

    mode: Literal["isd", "refine"] = "isd"
    stride: int = 4
    branches: Literal["end", "all"] = "end"
    verify: Verify = "rejection"
    proposal: Literal["sample", "argmax"] = "sample"
    lenience: float = 0.5
    top: int = 2
    adapter: str = "isd"

    needs = ("adapter",)
    variants = ("isd",)
    by_default = False
    combines = False
    modes: ClassVar[Mapping[str, str]] = {"refine": "idlm"}

    def __post_init__(self) -> None:
        self.demand(self.mode == "isd", "mode", "isd (refine is the decoder `idlm`)")
        self.demand(self.stride >= 2, "stride", "2 or above")
        self.demand(0 < self.lenience <= 1, "lenience", "above 0 and at most 1 (exact)")
        self.demand(self.top >= 1, "top", "1 or above")
        self.demand_read("verify", {"relaxed": ("lenience",), "topk": ("top",)})

    @property
    def verification(self) -> Rule:
        """The verification rule, with the parameters of a lenient rule."""
        relaxed, top = AcceptanceRule(lenience=self.lenience), AcceptanceRule(top=self.top)
        rules = {"relaxed": relaxed, "topk": top}
        return Lenient(rules[self.verify]) if self.verify in rules else super().verification

    def drafter(self, request: Request) -> Drafter:
        """Draft with masks in the verifying call."""
        return _Masks(self, request)


class _Masks(Drafter):
    """Make the specs of one answer, each proposed by a mask of the previous call."""

    judges_prompt = True

    def __init__(self, options: StridedDecoding, request: Request) -> None:
        assert request.adapter is not None
        self._options, self._target = options, request.target
        # with more slots than in training, an adapter would guess blindly
        self._max_masks = min(options.stride - 1, request.adapter.num_slots)
        draws, greedy = options.verification.draws(request.sampling), request.sampling.greedy
        # specs are drawn from the distributions that verification uses
        self._output: Output = "probs" if draws and not greedy else "draws"
        if options.proposal == "argmax":
            self._output = "argmax"
        self._specs: tuple[int, ...] = ()
        self._probs: dict[int, Tensor] = {}
        self._confidences: tuple[float, ...] = ()

    def propose(self, text: Text, most: int) -> DraftTree:
        """Return the specs after the accepted tokens (a round without specs is cold)."""
        tree = DraftTree.chain(text.last, self._specs, self._confidences)
        tree.probs = self._probs
        return tree

    def carry(self, text: Text, tree: DraftTree) -> Mapping[str, Any]:
        """Put masks after the last row, or with ``branches=all`` wherever verification may stop."""
        fed = [text.last] if text.output else text.tokens
        tokens = (*fed, *tree.tokens[1:])
        at_end, num_branches = self._options.branches == "end", tree.num_drafts + 1
        most = (self._target.room - len(tokens)) // (1 if at_end else num_branches)
        # with m accepted specs this call emits m + 1 tokens, and the next call adds one itself
        rooms = (min(most, text.left - m - 2) for m in range(num_branches))
        self._sizes = sizes = [max(0, min(self._max_masks, room)) for room in rooms]
        if at_end:
            sizes[:-1] = [0] * tree.num_drafts
        is_causal = not any(sizes[:-1])
        masked, anchors = [MASKED] * sum(sizes), tokens[-len(sizes) :]
        return {
            "slots": mask_slots(
                self._options.adapter, masked, anchors=anchors, output=self._output, sizes=sizes
            ),
            "positions": branch_positions(self._target.length, len(tokens), sizes),
            "mask": None if is_causal else masks.branches([0] * (len(fed) - 1) + sizes),
        }

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Take the proposals of the masks after the last accepted token."""
        start, result = sum(self._sizes[: verdict.accepted]), verdict.result
        behind = slice(start, start + self._sizes[verdict.accepted])
        self._specs = result.slot_picks[behind]
        self._confidences = result.slot_confidences[behind]
        probs = () if result.slot_probs is None else result.slot_probs[behind].unbind()
        self._probs = dict(enumerate(probs))
