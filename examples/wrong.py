"""Negative controls: decoders that claim to be lossless, each with one quiet error.

    bench verify --decoders examples/wrong.py:DropsBonus        # exit code 3

A check that cannot fail proves nothing; `bench verify` catches each of these decoders. Each is
`spec` or `ar` with an error of a real implementation. Most errors raise acceptance, so the decoder
looks *better* in a benchmark. `Unverified` declares that it is lossy, so its distance is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.sampling import verify_rejection
from decoders.core.types import Acceptance, Call, CallResult, Emit
from decoders.spec import Speculative


@dataclass(frozen=True, kw_only=True)
class Tampered(Speculative):
    """`spec` with hooks for its calls, results and emits; correct unless a hook is overridden."""

    def steps(self, request: Request) -> Steps:
        steps, reply = super().steps(request), None
        while True:
            item = steps.send(reply)  # type: ignore[arg-type]
            if isinstance(item, Emit):
                yield self.emitted(item)
                reply = None
            else:
                reply = self.heard(request, item, (yield self.asked(item)))

    def asked(self, call: Call) -> Call:
        return call

    def heard(self, request: Request, call: Call, result: CallResult) -> CallResult:
        return result

    def emitted(self, emit: Emit) -> Emit:
        return emit


@dataclass(frozen=True, kw_only=True)
class DropsBonus(Tampered):
    """Feeds the bonus token after full acceptance, but never emits it."""

    def emitted(self, emit: Emit) -> Emit:
        full = emit.drafted and emit.accepted == emit.drafted
        return replace(emit, tokens=emit.tokens[:-1]) if full else emit


@dataclass(frozen=True, kw_only=True)
class WarpsDraft(Tampered):
    """Draws drafts from one distribution, but passes a hotter one to verification."""

    def heard(self, request: Request, call: Call, result: CallResult) -> CallResult:
        if call.session is not request.draft or result.probs is None:
            return result
        hotter = result.probs.sqrt()
        return replace(result, probs=hotter / hotter.sum(-1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class OwnTest(Tampered):
    """Implements rejection sampling itself; correct unless `test_at` is overridden."""

    def asked(self, call: Call) -> Call:
        return (
            replace(call, output="probs") if call.drafts and call.output == "acceptance" else call
        )

    def heard(self, request: Request, call: Call, result: CallResult) -> CallResult:
        if not call.drafts or call.output != "acceptance" or result.probs is None:
            return result
        start = call.session.base + 1 - len(request.prompt_ids)
        places = range(start, start + len(call.drafts) + 1)
        device = result.probs.device
        accepted, token = verify_rejection(
            result.probs[None],
            torch.stack(call.draft_probs or ())[None],
            torch.tensor([call.drafts], device=device),
            torch.tensor([len(call.drafts)], device=device),
            torch.tensor([[self.test_at(request, p) for p in places[:-1]]], device=device),
            torch.tensor([[request.uniforms.at("recover", p) for p in places]], device=device),
        )
        return CallResult(acceptance=Acceptance(int(accepted), int(token)))

    def test_at(self, request: Request, position: int) -> float:
        return request.uniforms.at("accept", position)


@dataclass(frozen=True, kw_only=True)
class ReseedsAccept(OwnTest):
    """Reseeds the generator for the test, which replays the numbers that drew the drafts."""

    def test_at(self, request: Request, position: int) -> float:
        return request.uniforms.at("draw", position)


@dataclass(frozen=True, kw_only=True)
class AcceptsAbove(OwnTest):
    """Accepts a draft if the target gives it at least the draft's probability: no random test."""

    def test_at(self, request: Request, position: int) -> float:
        return math.nextafter(1, 0)


@dataclass(frozen=True, kw_only=True)
class LeaksCache(Autoregressive):
    """Leaves the last prompt in the cache when the next prompt comes."""

    def steps(self, request: Request) -> Steps:
        target, place = request.target, len(request.prompt_ids)
        if _LAST:
            yield target.call(_LAST, positions=range(len(_LAST)))
        _LAST[:] = request.prompt_ids[-64:]
        result = yield target.call(request.prompt_ids, positions=range(place))
        while True:
            yield Emit(tokens=result.picks)
            result = yield target.call(result.picks, positions=[place])
            place += 1


_LAST: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Unverified(Decoder):
    """Emits the draft model's tokens without verification: lossy, and declared so."""

    lossless = False
    needs = ("draft",)

    def steps(self, request: Request) -> Steps:
        assert request.draft is not None
        result = yield request.target.call(request.prompt_ids)
        yield Emit(tokens=result.picks)
        result = yield request.draft.call((*request.prompt_ids, *result.picks))
        while True:
            yield Emit(tokens=result.picks, drafted=1, accepted=1)
            result = yield request.draft.call(result.picks)
