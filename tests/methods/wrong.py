"""Wrong forms of the ten methods, each with an error that an implementation has had or may have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.chain import ModelDrafter
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.length import Length
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Rule, Turn
from decoders.core.registry import parse_spec, resolve
from decoders.spec import Speculative
from tests.methods.bd3lm import BD3LM
from tests.methods.block import Block, Joint
from tests.methods.cascade import Cascade
from tests.methods.contrastive import Contrastive
from tests.methods.grammar import START, Numbers
from tests.methods.llada import LLaDA
from tests.methods.mtp_head import HeadDrafts
from tests.methods.recycling import Candidates, TokenRecycling
from tests.methods.suffix import Matches, Suffix
from tests.methods.typical import TypicalAcceptance

EXAMPLES = Path(__file__).parents[2] / "examples"


def undeclared(kind: type[Decoder]) -> type[Decoder]:
    """A lossy decoder that claims to be lossless."""
    return type(kind.__name__, (kind,), {"lossless": True, "__module__": __name__})


def example(name: str) -> type[Decoder]:
    return resolve(parse_spec(f"{EXAMPLES / name}"))


class Trusting(Rule):
    """Accepts every draft, as if the target had confirmed it."""

    coupled = True

    def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
        return range(len(turn.tree)), turn.result.picks[-1]


@dataclass(frozen=True, kw_only=True)
class TrustedSuffix(Suffix):
    """Emits what followed in earlier answers without asking the target."""

    verification = Trusting()


_ANSWERS: list[tuple[list[int], list[int]]] = []


@dataclass(frozen=True, kw_only=True)
class HiddenSuffix(Suffix):
    """Keeps earlier answers in a global, so that no scope ends and the warm-up is remembered."""

    remembers = None  # type: ignore[assignment]

    def drafter(self, request: Request) -> Drafter:
        drafter = Matches(self, [([], each) for each in _ANSWERS[-8:]])  # type: ignore[list-item]
        drafter.observe = lambda text, _: _ANSWERS.append([*text.tokens])  # type: ignore
        return drafter


class _TestsShare(Joint):
    def chance(self, share: float, mass: float) -> float:
        return share


@dataclass(frozen=True, kw_only=True)
class ShareBlock(Block):
    """Tests a block by its share alone, not by what its prefix leaves of the target."""

    verification = _TestsShare()


class _TokenResidual(Joint):
    def rest(self, share: float, target: Tensor, draft: Tensor | None) -> Tensor:
        rest = super().rest(share, target, draft)
        return rest if draft is None or not float(rest.sum()) else super().rest(1.0, target, draft)


@dataclass(frozen=True, kw_only=True)
class ResidualBlock(Block):
    """Leaves the share out of the residual, as token by token rejection does."""

    verification = _TokenResidual()


@dataclass(frozen=True, kw_only=True)
class TrustedCascade(Cascade):
    """Emits what the draft model confirmed of the small model's drafts."""

    verification = Trusting()


class _Causal(Candidates):
    def carry(self, text: Text, tree: DraftTree) -> Mapping[str, Any]:
        return {"mask": (tree.mask | True).tril()} if text.output else {}


@dataclass(frozen=True, kw_only=True)
class CausalRecycling(TokenRecycling):
    """Forgets the tree's mask, so that a branch sees the branches before it."""

    def drafter(self, request: Request) -> Drafter:
        return _Causal(self.candidates, self.size)


class _Flat(Candidates):
    def carry(self, text: Text, tree: DraftTree) -> Mapping[str, Any]:
        start = len(text.tokens) - 1
        return {"positions": range(start, start + len(tree))} if text.output else {}


@dataclass(frozen=True, kw_only=True)
class FlatRecycling(TokenRecycling):
    """Numbers the positions of the tree's rows by row, not by depth."""

    def drafter(self, request: Request) -> Drafter:
        return _Flat(self.candidates, self.size)


class _Dropping(ModelDrafter):
    def draft(self, text: Text, most: int) -> Any:
        tree = yield from super().draft(text, most)
        num = tree.num_drafts
        if not num or tree.confidences[num] >= self._stop:
            return tree
        kept = DraftTree.chain(text.last, tree.tokens[1:-1])
        kept.probs = {row: law for row, law in tree.probs.items() if row < num - 1}
        return kept


@dataclass(frozen=True, kw_only=True)
class DropsUnsure(Speculative):
    """Drops a drawn draft because it is unlikely, in place of verifying it as the last."""

    stop: float = 0.25

    def drafter(self, request: Request) -> Drafter:
        return _Dropping(request, self.verification, Length(self.k), self.stop)


@dataclass(frozen=True, kw_only=True)
class TrustedHead(HeadDrafts):
    """Emits the head's token with the target's, two tokens a step."""

    verification = Trusting()


ClaimingTypical = undeclared(TypicalAcceptance)
ClaimingContrastive = undeclared(Contrastive)
ClaimingBeam = undeclared(example("beam.py:Beam"))
ClaimingBestOf = undeclared(example("best_of_n.py:BestOf"))
ClaimingBD3LM = undeclared(BD3LM)


@dataclass(frozen=True, kw_only=True)
class UnfinishedBD3LM(BD3LM):
    """Ends a block after its second pass, decided or not."""

    def is_open(self, masks: list[int], num_passes: int) -> bool:
        return bool(masks) and num_passes < 2


_LENGTHS = itertools.count(2)


@dataclass(frozen=True, kw_only=True)
class TuningLLaDA(LLaDA):
    """Tunes its passes from answer to answer, so that an answer depends on those before."""

    def steps(self, request: Request) -> Steps:
        return replace(LLaDA(), passes=1 + next(_LENGTHS) % 4).steps(request)


class StatefulGrammar(Numbers):
    """Goes on from its last state, as if no draft that it read had been rejected."""

    _state: str | None = START

    def __call__(self, answer: tuple[int, ...], logits: Tensor) -> Tensor:
        self._state = (self.after(self._state, answer[-1]) if answer else None) or START
        return self.restrict(self._state, logits)
