"""Decoders as third parties wrote them against decoding-bench 0.1. Frozen: never edit this file.

It uses all that docs/adding-a-decoder.md promised then: both kinds of verification, sessions of
target and draft, an adapter's slots, every field of an emit, options and their checks.
"""
# mypy: ignore-errors

from dataclasses import dataclass
from typing import Literal

from decoders.core import masks
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import BLANK, HIDDEN, AcceptanceRule, Emit, Slots


@register("frozen-copies")
@dataclass(frozen=True, kw_only=True)
class Copies(Decoder):
    """Proposes copies of the text, verified by the target's picks."""

    k: int = 3
    mode: Literal["last", "all"] = "last"
    width: int = 2

    def __post_init__(self) -> None:
        self.demand(self.k >= 1, "k", "1 or above")
        self.demand_read("mode", {"all": ("width",)})

    @property
    def coupled(self) -> bool:
        return True

    def steps(self, request: Request) -> Steps:
        target, sampling = request.target, request.sampling
        result = yield target.call(request.prompt_ids)
        text = [*request.prompt_ids, *result.picks]
        yield Emit(tokens=result.picks)
        while True:
            left = sampling.max_new_tokens - (len(text) - len(request.prompt_ids))
            drafts = text[-self.k - 1 : -1][: left - 1]
            result = yield target.call((text[-1], *drafts), read=range(len(drafts) + 1))
            acceptance = verify_picks(result.picks, drafts)
            emitted = (*drafts[: acceptance.accepted], acceptance.token)
            text += emitted
            target.truncate(len(text) - 1)
            yield Emit(
                tokens=emitted,
                drafted=len(drafts),
                accepted=acceptance.accepted,
                undrafted=0,
                rejected=tuple(drafts[acceptance.accepted :]),
                decided=(0,) * len(emitted),
            )


@dataclass(frozen=True, kw_only=True)
class Drafts(Decoder):
    """Proposes one token of a draft model, verified by rejection sampling."""

    needs = ("draft",)
    lossless = True

    def steps(self, request: Request) -> Steps:
        target, draft = request.target, request.draft
        greedy, left = request.sampling.greedy, request.sampling.max_new_tokens - 1
        result = yield target.call(request.prompt_ids, read=(-1,), want="picks")
        text = [*request.prompt_ids, *result.picks]
        yield Emit(tokens=result.picks)
        while True:
            drafts, probs = [], []
            if left > 1:
                result = yield draft.call(text[draft.length :], want="probs")
                drafts, probs = list(result.picks), [result.probs[-1]]
            result = yield target.call(
                (text[-1], *drafts),
                read=range(len(drafts) + 1),
                want="picks" if greedy else "acceptance",
                drafts=drafts,
                draft_probs=probs,
                acceptance_rule=AcceptanceRule(lenience=1.0, top=0),
            )
            acceptance = result.acceptance or verify_picks(result.picks, drafts)
            emitted = (*drafts[: acceptance.accepted], acceptance.token)
            text += emitted
            target.truncate(len(text) - 1)
            draft.truncate(min(draft.length, len(text) - 1))
            left -= len(emitted)
            yield Emit(
                tokens=emitted,
                drafted=len(drafts),
                accepted=acceptance.accepted,
                acceptance=result.acceptance,
            )


@dataclass(frozen=True, kw_only=True)
class Tree(Decoder):
    """Two guesses for the next token as a tree of one level; keeps the row of the right one."""

    @property
    def coupled(self) -> bool:
        return True

    def steps(self, request: Request) -> Steps:
        target, prompt = request.target, request.prompt_ids
        result = yield target.call(prompt)
        text = [*prompt, *result.picks]
        yield Emit(tokens=result.picks)
        while True:
            if request.sampling.max_new_tokens - (len(text) - len(prompt)) < 2:
                result = yield target.call(text[-1:])
                text += result.picks
                yield Emit(tokens=result.picks)
                continue
            guesses = (text[-1], prompt[0])
            start = len(text) - 1
            result = yield target.call(
                (text[-1], *guesses),
                positions=(start, start + 1, start + 1),
                mask=masks.tree((-1, 0, 0)),
                read=(0, 1, 2),
            )
            first = result.picks[0]
            if first in guesses:
                row = 1 + guesses.index(first)
                target.keep((0, row))
                emitted = (first, result.picks[row])
            else:
                target.keep((0,))
                emitted = (first,)
            text += emitted
            yield Emit(tokens=emitted, drafted=1, accepted=int(first in guesses))


@dataclass(frozen=True, kw_only=True)
class Masks(Decoder):
    """Takes what masks predict; reads logits and the likeliest token as well. Lossy."""

    adapter: str = "refine"

    needs = ("adapter",)
    lossless = False
    by_default = False
    variants = ("refine",)

    def steps(self, request: Request) -> Steps:
        assert request.adapter is not None
        assert request.adapter.num_slots >= 1
        pending = request.prompt_ids
        while True:
            start = request.target.length
            rows = len(pending)
            slots = Slots(
                adapter=self.adapter,
                uniforms=(BLANK, BLANK),
                sizes=(2,),
                anchors=(pending[-1],),
                read=(0, 1),
                want="argmax",
                shown=(HIDDEN, HIDDEN),
            )
            result = yield request.target.call(
                pending,
                want="argmax",
                slots=slots,
                positions=range(start, start + rows + 2),
            )
            assert len(result.confidences) == 1
            assert len(result.slot_confidences) == 2
            pending = (*result.picks, *result.slot_picks)
            yield Emit(tokens=pending, passes=1, decided=(0, 1, 1))
