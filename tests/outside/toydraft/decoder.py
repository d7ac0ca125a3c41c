"""The decoder that drafts with the bigram head."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.model import DraftCall
from decoders.core.registry import register
from decoders.core.types import CallResult, DraftShape


@register("bigram")
@dataclass(frozen=True, kw_only=True)
class BigramDrafts(DraftAndVerify):
    """Draft by a bigram head. Lossless."""

    adapter: str = "bigram"

    needs = ("adapter",)
    variants = ("bigram",)

    def drafter(self, request: Request) -> Drafter:
        return _Chain(self.adapter, request)


class _Chain(Drafter):
    hidden = 1

    def __init__(self, name: str, request: Request) -> None:
        assert request.adapter is not None
        steps = request.adapter.sizes["steps"]
        self._name, self._request = name, request
        self._shape = DraftShape(depth=steps, nodes=steps)

    def draft(self, text: Text, most: int) -> Generator[DraftCall, CallResult, list[int]]:
        if most < 1:
            return []
        new, sampling = (self._state, [text.last]), self._request.sampling
        result = yield self._request.target.draft(self._name, *new, self._shape, sampling)
        return list(result.picks[:most])

    def observe(self, text: Text, verdict: Verdict) -> None:
        self._state = verdict.states[-1:]
