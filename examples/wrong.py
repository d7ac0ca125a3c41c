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
from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.chain import ModelDrafter
from decoders.core.drafting.drafter import Text
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Verification
from decoders.core.model import Call
from decoders.core.sampling import pick, verify_rejection, warp
from decoders.core.types import Acceptance, CallResult, Emit
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
    def __init__(self, request: Request, verification: Verification, k: int) -> None:
        super().__init__(request, verification, k, 0.0)
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


@dataclass(frozen=True, kw_only=True)
class BlockVerified(Decoder):
    """Block verification (Sun et al. 2024, arXiv 2403.10444), which is lossless and correct here.

    All tests of a step count, also those after the first failure. So each step needs uniforms of
    its own for drafts and tests: a number that decided something in a step is not used in the next.
    """

    k: int = 4

    needs = ("draft",)

    def steps(self, request: Request) -> Steps:
        target, draft, num_prompt = request.target, request.draft, len(request.prompt_ids)
        assert draft is not None
        result = yield target.call(request.prompt_ids)
        yield Emit(tokens=result.picks)
        text = [*request.prompt_ids, *result.picks]
        for step in itertools.count(1):
            place, drafts, laws = len(text) - num_prompt, list[int](), list[Tensor]()
            while len(drafts) < min(self.k, request.sampling.max_new_tokens - place - 1):
                result = yield draft.call([*text, *drafts][draft.length :], output="probs")
                assert result.probs is not None
                laws.append(result.probs[-1])
                drafts.append(_picked(laws[-1], self.draw_at(request, place + len(drafts), step)))
            rows = range(len(drafts) + 1)
            result = yield target.call([text[-1], *drafts], read=rows, output="probs")
            assert result.probs is not None
            tests = [request.uniforms.at("accept", place + i, step) for i in range(len(drafts))]
            accepted, residual = verify_block(result.probs, laws, drafts, tests)
            target.truncate(target.length - len(drafts) + accepted)
            draft.truncate(min(draft.length, len(text) + accepted))
            token = _picked(residual, self.recover_at(request, place + accepted, step))
            text += [*drafts[:accepted], token]
            yield Emit(tokens=(*drafts[:accepted], token), drafted=len(drafts), accepted=accepted)

    def draw_at(self, request: Request, position: int, step: int) -> float:
        return request.uniforms.at("draw", position, step)

    def recover_at(self, request: Request, position: int, step: int) -> float:
        return request.uniforms.at("recover", position)


def verify_block(
    target_probs: Tensor, draft_probs: list[Tensor], drafts: list[int], tests: list[float]
) -> tuple[int, Tensor]:
    """Return the number of accepted drafts, and the weights ``[V]`` of the token after them."""
    accepted, share, last = 0, 1.0, len(drafts)

    def residual(number: int) -> Tensor:
        """What is left of the target after `number` drafts that stand with chance `share`."""
        if number == last:
            return target_probs[last]
        return (share * target_probs[number] - draft_probs[number]).clamp(min=0)

    after = residual(0)
    for number, (token, test) in enumerate(zip(drafts, tests, strict=True), 1):
        share *= float(target_probs[number - 1, token] / draft_probs[number - 1][token])
        share = min(1.0, share)
        rest = residual(number)
        mass = float(rest.sum())
        chance = share if number == last else mass / max(mass + 1 - share, 1e-30)
        if test < chance:
            accepted, after = number, rest
    return accepted, after if float(after.sum()) else target_probs[accepted]


@dataclass(frozen=True, kw_only=True)
class BlockReusesDraw(BlockVerified):
    """Draws the recovered token with the uniform that drew the rejected draft."""

    def recover_at(self, request: Request, position: int, step: int) -> float:
        return self.draw_at(request, position, step)


@dataclass(frozen=True, kw_only=True)
class BlockReplaysDrafts(BlockVerified):
    """Draws a step's drafts with uniforms that drew rejected drafts of the step before."""

    def draw_at(self, request: Request, position: int, step: int) -> float:
        return request.uniforms.at("draw", position)


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
