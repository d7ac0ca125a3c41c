"""Mask probing: masks after the text, read by the model as it is, predict the tokens to draft.

    bench run --decoders lookup,examples/esp.py:Probing:k=3

Source: Embedding-Space Probing (ESP, arXiv 2603.17942). The mask is the mean of the prompt's last
embeddings. The drafts are one chain of likeliest tokens, where ESP has a pruned tree.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from decoders.core import masks
from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.mask_slots import branch_positions, vector_slots
from decoders.core.drafting.verification import Exact
from decoders.core.registry import register


@register("esp")
@dataclass(frozen=True, kw_only=True)
class Probing(DraftAndVerify):
    """Draft what masks after the text predict. Lossless, training-free."""

    k: int = 2
    verify: Exact = "coupled"
    combines = False  # a call's masks follow this drafter's drafts

    def __post_init__(self) -> None:
        self.demand(1 <= self.k <= 10, "k", "1 to 10 (more masks exceed the cache)")

    def drafter(self, request: Request) -> Drafter:
        return Masks(self.k, request)


class Masks(Drafter):
    """The drafts of one answer, each from a mask of the call before."""

    hidden, hidden_layers = 256, (0,)  # the embeddings of the prompt's last 256 tokens

    def __init__(self, k: int, request: Request) -> None:
        self.k, self.target, self.drafts, self.mask = k, request.target, list[int](), Tensor()

    def propose(self, text: Text, most: int) -> list[int]:
        return self.drafts

    def carry(self, text: Text, tree: Any) -> dict[str, Any]:
        if not text.output:  # the prompt's call gives the mask
            return {}
        sizes = [self.k] * len(tree)  # k masks after each row at which verification may stop
        slots = vector_slots(self.mask.expand(sum(sizes), -1), sizes=sizes)
        positions = branch_positions(self.target.length, len(tree), sizes)
        return {"slots": slots, "positions": positions, "mask": masks.branches(sizes)}

    def observe(self, text: Text, verdict: Verdict) -> None:
        if verdict.is_prompt:
            self.mask = verdict.states[:, 0].mean(0)
        self.drafts = [*verdict.result.slot_picks[verdict.accepted * self.k :][: self.k]]
