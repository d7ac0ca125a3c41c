"""An MTP head as a network of a decoder's own: it drafts the token after the next one.

    bench run --decoders tests/methods/mtp_head.py:HeadDrafts

The head joins the state that predicted a token with that token's embedding, as in DeepSeek-V3
(arXiv 2412.19437, section 2.2), with a matrix in place of its layer. Weights would come from a file
or from the checkpoint (`target.read("mtp.")`); here they copy the state, untrained.
"""

from dataclasses import dataclass

import torch
from torch import nn

from decoders.core.adapter.draft_pass import DraftPass, normed
from decoders.core.adapter.module import HiddenAdapter
from decoders.core.drafting.length import Length
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.states import TreeDrafter
from decoders.core.registry import register
from decoders.core.types import CallResult, DraftShape


class HeadPass(DraftPass):
    def __call__(self, name, inputs, planes):
        states, ids = inputs["states"][0], inputs["ids"][0]
        joined = torch.cat([normed(self.embed(ids)), normed(states)], -1)
        return self.head(joined @ self.layers.join).float().softmax(-1).max(-1)

    def draft(self, texts, run, size):
        calls = [call for call in texts.calls if call is not None]
        states = texts.last_states()
        ids = torch.tensor([[call.tokens[-1] for call in calls]], device=states.device)
        chances, drafts = run(None, {"states": states, "ids": ids}, ())
        pairs = zip(drafts.tolist(), chances.tolist(), strict=True)
        return [CallResult(picks=(d,), confidences=(c,), parents=(-1,)) for d, c in pairs]


class Head(HiddenAdapter):
    variant, work, plane_shapes = "mtp-head", HeadPass, ()  # no keys and values

    def __init__(self, config, seed=0):
        super().__init__(config, seed)
        self.join = nn.Parameter(torch.eye(2 * config.width)[:, config.width :].clone())


@register("mtp-head")
@dataclass(frozen=True, kw_only=True)
class HeadDrafts(DraftAndVerify):
    """Draft one token with the head and verify it. Lossless, coupled."""

    needs, variants = ("network",), ("mtp-head",)

    def drafter(self, request):
        drafter = TreeDrafter(request, "mtp-head", DraftShape(depth=1), Length(1), branches=False)
        drafter.hidden = 1  # the state that predicted the last token
        return drafter
