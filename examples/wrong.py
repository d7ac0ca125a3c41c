"""Negative controls: decoders that claim to be lossless, each with one quiet error.

    bench verify --decoders examples/wrong.py:DropsBonus        # exit code 3

A check that cannot fail proves nothing; `bench verify` and a run call each of these decoders WRONG.
Each is `spec`, `ar` or block verification with an error of a real implementation. Most errors raise
acceptance, so the decoder looks *better* in a benchmark. Three are right: `Tampered`, `OwnTest` and
`BlockVerified` are what the others are made of. `Unverified` declares that it is lossy, so its
distance is measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.chain import ModelDrafter
from decoders.core.drafting.drafter import Text
from decoders.core.drafting.length import Length, NumDrafts
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Rejection, Rule, Turn
from decoders.core.model import Call
from decoders.core.sampling import Uniforms, pick, verify_rejection, warp
from decoders.core.types import Acceptance, CallResult, Emit, Output, Sampling
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
    """Implements rejection sampling itself; correct unless one of its hooks is overridden."""

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
            torch.tensor([[self.recover_at(request, p) for p in places]], device=device),
        )
        token = self.after(request, result.probs[int(accepted)], int(token), places[int(accepted)])
        return CallResult(acceptance=Acceptance(int(accepted), token))

    def test_at(self, request: Request, position: int) -> float:
        return request.uniforms.at("accept", position)

    def recover_at(self, request: Request, position: int) -> float:
        return request.uniforms.at("recover", position)

    def after(self, request: Request, target_probs: Tensor, token: int, position: int) -> int:
        """Return the token after the accepted drafts; `token` comes from the residual."""
        return token


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
class Lenient(OwnTest):
    """Accepts a draft with probability min(1, p / 0.7 q): lossy, but not declared so."""

    def test_at(self, request: Request, position: int) -> float:
        return 0.7 * request.uniforms.at("accept", position)


@dataclass(frozen=True, kw_only=True)
class ReusesDraw(OwnTest):
    """Draws the recovered token with the uniform that drew the rejected draft."""

    def recover_at(self, request: Request, position: int) -> float:
        return request.uniforms.at("draw", position)


@dataclass(frozen=True, kw_only=True)
class NoResidual(OwnTest):
    """Draws the token after a rejected draft from the target's distribution, not the residual."""

    def after(self, request: Request, target_probs: Tensor, token: int, position: int) -> int:
        return _picked(target_probs, request.uniforms.at("recover", position))


class _Peeking(ModelDrafter):
    def __init__(self, request: Request, verification: Rule, k: NumDrafts) -> None:
        super().__init__(request, verification, Length(k), 0.0)
        self.uniforms = request.uniforms

    def draft(self, text: Text, most: int) -> Generator[Call, CallResult, DraftTree]:
        places = range(text.output, text.output + most)
        lucky = itertools.takewhile(lambda p: self.uniforms.at("accept", p) < 0.5, places)
        return super().draft(text, sum(1 for _ in lucky))


@dataclass(frozen=True, kw_only=True)
class PeeksAtTest(Speculative):
    """Drafts only where it sees that the uniform of the acceptance test will be low."""

    def drafter(self, request: Request) -> ModelDrafter:
        return _Peeking(request, self.verification, self.k)


@dataclass(frozen=True, kw_only=True)
class Contrastive(Decoder):
    """Contrastive decoding (Li et al. 2023, arXiv 2210.15097): lossy, but not declared so."""

    needs = ("draft",)

    def steps(self, request: Request) -> Steps:
        assert request.draft is not None
        tokens, position = request.prompt_ids, 0
        while True:
            expert = yield request.target.call(tokens, output="logits")
            amateur = yield request.draft.call(tokens, output="logits")
            assert expert.logits is not None
            assert amateur.logits is not None
            law = warp(expert.logits - 0.5 * amateur.logits, request.sampling)[-1]
            tokens = (_picked(law, request.uniforms.at("draw", position)),)
            position += 1
            yield Emit(tokens=tokens)


class OwnBlock(Rejection):
    """Implements block verification itself; correct unless one of its hooks is overridden.

    Tests behind the accepted drafts decide too, so no uniform of a step may be used in another.
    """

    fresh = True

    def output(self, sampling: Sampling, *, branches: bool) -> Output:
        return "probs" if self.draws(sampling) else "picks"

    def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
        probs, laws = turn.result.probs, turn.tree.probs
        if probs is None:
            return super().decide(turn)
        accepted, share, test = 0, 1.0, 1.0
        after = self.residual(share, probs[0], laws.get(0))
        for number, token in enumerate(turn.tree.tokens[1:], 1):
            share = min(1.0, share * float(probs[number - 1, token] / laws[number - 1][token]))
            rest = self.residual(share, probs[number], laws.get(number))
            test = self.test(turn.uniforms.at("accept", turn.output + number - 1), test)
            if test < self.chance(share, float(rest.sum())):
                accepted, after = number, rest
        weights = after if float(after.sum()) else probs[accepted]
        position = turn.output + accepted
        return range(accepted + 1), _picked(weights, self.recover_at(turn.uniforms, position))

    def residual(self, share: float, target: Tensor, draft: Tensor | None) -> Tensor:
        """Return what drafts of a share leave of the target: all of it behind the last."""
        return share * target if draft is None else (share * target - draft).clamp(min=0)

    def test(self, u: float, before: float) -> float:
        return u

    def chance(self, share: float, mass: float) -> float:
        return mass / max(mass + 1 - share, 1e-30)

    def recover_at(self, uniforms: Uniforms, position: int) -> float:
        return uniforms.at("recover", position)


@dataclass(frozen=True, kw_only=True)
class BlockVerified(Tampered):
    """Block verification (Sun et al. 2024, arXiv 2403.10444): lossless and correct here."""

    verification = OwnBlock()


class _TestsProduct(OwnBlock):
    def test(self, u: float, before: float) -> float:
        return u * before

    def chance(self, share: float, mass: float) -> float:
        return share


@dataclass(frozen=True, kw_only=True)
class BlockTestsProduct(BlockVerified):
    """Accepts drafts if their share exceeds the product of uniforms (vllm-ascend's issue 7807)."""

    verification = _TestsProduct()


class _TokenResidual(OwnBlock):
    def residual(self, share: float, target: Tensor, draft: Tensor | None) -> Tensor:
        rest = super().residual(share, target, draft)
        return rest if draft is None else super().residual(1.0, target, draft)


@dataclass(frozen=True, kw_only=True)
class BlockTokenResidual(BlockVerified):
    """Draws the recovered token from max(0, p - q), as rejection does, without the share of p."""

    verification = _TokenResidual()


class _Positional(OwnBlock):
    fresh = False


@dataclass(frozen=True, kw_only=True)
class BlockPositional(BlockVerified):
    """Draws and tests with uniforms of positions, which tested drafts of the step before too."""

    verification = _Positional()


class _ReusesDraw(OwnBlock):
    def recover_at(self, uniforms: Uniforms, position: int) -> float:
        return uniforms.at("draw", position)


@dataclass(frozen=True, kw_only=True)
class BlockReusesDraw(BlockVerified):
    """Draws the recovered token with the uniform that drew the rejected draft."""

    verification = _ReusesDraw()


@dataclass(frozen=True, kw_only=True)
class BlockReplaysDrafts(BlockVerified):
    """Draws a step's drafts with uniforms that drew rejected drafts of the step before."""

    def asked(self, call: Call) -> Call:
        return call if call.drafts else replace(call, uniforms=None)


def _picked(probs: Tensor, u: float) -> int:
    return int(pick(probs[None], torch.tensor([u], dtype=torch.float64, device=probs.device)))


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
