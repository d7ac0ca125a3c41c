"""A cascade: a small model drafts for the draft model, whose picks the target verifies.

    bench run --decoders tests/methods/cascade.py:Cascade --draft MIDDLE --models small=SMALL

Source: staged speculative decoding (arXiv 2308.04623). All three models pick with the uniforms of
the same positions, so the output is AR's for the same seed.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.registry import register


@register("my-cascade")
@dataclass(frozen=True, kw_only=True)
class Cascade(DraftAndVerify):
    """Draft k tokens with two models. Lossless, coupled."""

    k: int = 4
    inner: int = 2

    needs = ("draft", "model:small")

    def drafter(self, request: Request) -> Drafter:
        return Staged(request, self.k, self.inner)


class Staged(Drafter):
    def __init__(self, request: Request, k: int, inner: int) -> None:
        self.middle: Any = request.draft
        self.small = request.models["small"]
        self.k, self.inner = k, inner

    def draft(self, text: Text, most: int) -> Generator[Any, Any, list[int]]:
        limit = len(text.tokens) + min(self.k, most)
        tokens = [*text.tokens]
        while len(tokens) < limit:
            guesses = list[int]()
            while len(guesses) < min(self.inner, limit - len(tokens) - 1):
                unseen = [*tokens, *guesses][self.small.length :]
                guesses += (yield self.small.call(unseen)).picks
            unseen = tokens[self.middle.length :]
            read = range(len(unseen) - 1, len(unseen) + len(guesses))
            picks = (yield self.middle.call([*unseen, *guesses], read=read)).picks
            num = next((i for i, g in enumerate(guesses) if g != picks[i]), len(guesses))
            tokens += picks[: num + 1]
            self.keep(len(tokens) - 1)
        return tokens[len(text.tokens) :]

    def keep(self, length: int) -> None:
        for session in (self.middle, self.small):
            session.truncate(min(session.length, length))

    def observe(self, text: Text, verdict: Verdict) -> None:
        self.keep(len(text.tokens) - 1)
