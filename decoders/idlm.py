"""Refine iteratively: a block of masks is predicted several times, then emitted. Lossy.

A block is predicted at once, then predicted again with more of it filled in, two to five times, so
that unsure positions see their neighbours. The next predicting call, for this block or the one
after it, feeds the final tokens of the block. The other decoder of this name, verified strides
(``mode=isd``), is in `decoders/isd.py`.

Letters: B tokens of a block, T passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.mask_slots import block_call, mask_slots
from decoders.core.drafting.refinement import (
    Commit,
    MaskBlock,
    Prefix,
    Revise,
    Rules,
    Schedule,
    Tail,
)
from decoders.core.registry import register
from decoders.core.types import Confidence, Emit


@register("idlm")
@dataclass(frozen=True, kw_only=True)
class Refinement(Decoder):
    """Predict a block of masks repeatedly until its tokens are certain enough. Lossy.

    Args:
        mode: `refine`; `isd` selects the decoder `isd`, which has its own options.
        block: B, number of tokens refined together.
        max_passes: T; 0: one less than the tokens of a block (for thresholds).
        commit: rule by which a pass keeps predictions, see `decoders.core.drafting.refinement`.
        schedule: number of masks left after each pass (`cmlm` and quotas).
        threshold: confidence that a prediction needs to be kept (thresholds).
        revise: treatment of kept tokens that a later pass predicts differently.
        edit_threshold: confidence that the later prediction needs for a revision.
        confidence: the measure: probability, lead over the likeliest other token, or exp(-H).
        early_exit: stop refining once nothing is left to do.
        prefix: `running`: the known beginning of a block is final at once, so that the target
            itself gives the token after it; `block`: no token is final before the whole block.
        tail: tokens of which the last pass is unsure: the pass fills them in (`fill`), or leaves
            them to the next block, which begins with them (`defer`).
        adapter: name of the adapter, see ``--adapter``.
    """

    mode: Literal["refine", "isd"] = "refine"
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
    adapter: str = "refine"

    needs = ("adapter",)
    variants = ("refine",)
    lossless = False
    modes: ClassVar[Mapping[str, str]] = {"isd": "isd"}
    showcase: ClassVar[Mapping[str, Mapping[str, str]]] = {"isd": {"mode": "isd", "stride": "8"}}

    def __post_init__(self) -> None:
        self.demand(self.mode == "refine", "mode", "refine (isd is the decoder `isd`)")
        self.demand(self.block >= 1, "block", "1 or above")
        self.demand(self.max_passes >= 0, "max_passes", "1 or above, or 0 for a block's tokens")
        self.demand(0 <= self.threshold <= 1, "threshold", "from 0 to 1")
        self.demand(0 <= self.edit_threshold <= 1, "edit_threshold", "from 0 to 1")
        reads = {
            "threshold": ("threshold",),
            "threshold+quota": ("threshold", "schedule"),
            "quota": ("schedule",),
            "cmlm": ("schedule",),
        }
        self.demand_read("commit", reads)
        self.demand_read("revise", dict.fromkeys(("remask", "edit"), ("edit_threshold",)))

    def steps(self, request: Request) -> Steps:
        """Refine block after block in up to T passes each, which all feed new final tokens."""
        target, sampling = request.target, request.sampling
        pending, left = request.prompt_ids, sampling.max_new_tokens
        anchor = pending[-1]
        rules = Rules(**{field.name: getattr(self, field.name) for field in fields(Rules)})
        while True:
            block = MaskBlock(min(self.block, left), rules, sampling.stop_ids)
            emitted = 0
            while not block.finished:
                start = block.start
                tokens = block.slot_tokens[start:]
                slots = mask_slots(
                    self.adapter,
                    tokens,
                    anchors=[anchor],
                    output="argmax" if sampling.greedy else "draws",
                    read=len(tokens) - 1,  # the last slot predicts the next block's first token
                    confidence=self.confidence,
                )
                result = yield block_call(target, pending, slots)
                if pending:
                    block.begin(result.picks[0])
                block.take(result.slot_picks, result.slot_confidences)
                # the first token is final at once, later tokens by the block's rules
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
