"""A confidence head as a network of a decoder's own: lookup drafts only where the target was sure.

bench run --decoders lookup,examples/sure.py:SureLookup:sure=0.5
"""

from dataclasses import dataclass

from decoders.core.adapter.draft_pass import DraftPass
from decoders.core.adapter.module import HiddenAdapter
from decoders.core.drafting.drafter import Drafter
from decoders.core.registry import register
from decoders.core.types import CallResult, DraftShape
from decoders.lookup import PromptLookup


class CertaintyPass(DraftPass):
    def __call__(self, name, inputs, planes):
        return (self.layers.head(inputs["states"][0]).float().softmax(-1).max(-1).values,)

    def draft(self, texts, run, size):
        (chances,) = run(None, {"states": texts.last_states()}, ())
        return [CallResult(confidences=(chance,)) for chance in chances.tolist()]


class Certainty(HiddenAdapter):
    variant, work, drafts, plane_shapes = "certainty", CertaintyPass, False, ()

    @classmethod
    def build(cls, target):
        network = super().build(target)
        network.head = target.head  # the target's, so it takes no memory
        return network


class Gated(Drafter):
    hidden = 1

    def __init__(self, inner, sure, request):
        self.inner, self.sure, self.request = inner, sure, request

    def observe(self, text, verdict):
        self.state = verdict.states[-1:]

    def draft(self, text, most):
        new, sampling = (self.state, [text.last]), self.request.sampling
        result = yield self.request.target.draft("certainty", *new, DraftShape(depth=1), sampling)
        return self.inner.propose(text, most) if result.confidences[0] >= self.sure else []


@register("sure")
@dataclass(frozen=True, kw_only=True)
class SureLookup(PromptLookup):
    """Propose what followed the last tokens before, where the target was sure. Lossless."""

    sure: float = 0.5
    needs = ("network",)
    variants = ("certainty",)

    def drafter(self, request):
        return Gated(super().drafter(request), self.sure, request)
