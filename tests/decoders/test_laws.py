"""The law of answers: every rule that verifies drawn drafts keeps the target's distribution.

All uniforms that a decoder asks for run over a grid, those of its drafts among them: so a number
that decides two things at once, such as a recovery token taken from its draft's own uniform, shows
as another distribution. Every decoder whose verification rejects drafts is held to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.rules import BlockVerification
from decoders.core.engine.models import Models
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling
from decoders.eagle import Eagle
from decoders.extras.mtp import MultiTokenPrediction
from decoders.isd import StridedDecoding
from decoders.medusa import Medusa
from decoders.spec import Speculative
from tests.enumeration import enumerated_distribution, integrated_answers

Weights = Sequence[Sequence[int]]
SIXTHS = ((3, 3, 0), (1, 1, 4), (2, 2, 2))
QUARTERS = ((1, 3), (3, 1))
"""The target after each of V tokens, in parts of 2 V; drafts are drawn evenly, 2 parts each."""


class Flat(TableModel):
    """A draft model that knows nothing."""

    def logits(self, context: Sequence[int]) -> Tensor:
        return torch.zeros(self.vocab_size)


class Known(TableModel):
    """A table whose students know nothing; the first token of an answer is the prompt's again."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(len(weights), order=6)
        self._weights = weights
        for variant in ("isd", "medusa", "eagle", "mtp"):
            self.attach(variant, 0.0, variant)  # type: ignore[arg-type]

    def logits(self, context: Sequence[int]) -> Tensor:
        certain = torch.eye(self.vocab_size)
        weights = certain if len(context) == 1 else torch.tensor(self._weights)
        return weights[context[-1]].log()

    def _proposed(self, name: str, state: Tensor, num_heads: int) -> Tensor:
        return torch.zeros(num_heads, self.vocab_size)

    def _drafted(self, name: str, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        logits, after = super()._drafted(name, states, tokens)
        return torch.zeros_like(logits), after

    def _predict(self, slots: Any, slot: int, rows: Any) -> Tensor:
        return torch.zeros(self.vocab_size)


def distance(
    decoder: DraftAndVerify,
    weights: Weights,
    num_tokens: int,
    tampered: Callable[[Any], Any] = lambda uniforms: uniforms,
) -> float:
    """Largest total variation between a decoder's answers and the target's, over two prompts."""
    target = Known(weights)
    models = Models(target=target, draft=Flat(len(weights)))
    sampling = Sampling(temperature=1.0, max_new_tokens=num_tokens)

    def cells(stream: str, position: int, candidate: int) -> int:
        """Where thresholds lie; the first token is certain."""
        sizes = {"draw": len(weights) - candidate, "accept": 2, "recover": 2 * len(weights)}
        if isinstance(decoder.verification, BlockVerification):  # of quarters, two drafts
            is_end = position == num_tokens - 1
            sizes |= {"accept": 4 if position > 1 else 1, "recover": 4 if is_end else 1}
        return sizes[stream] if position else 1

    gaps = []
    for prompt in ([0], [1]):
        found = integrated_answers(decoder, models, prompt, sampling, cells, seen=tampered)
        expected = enumerated_distribution(target, prompt, sampling, num_tokens)
        both = {*found, *expected}
        gaps.append(sum(abs(found.get(a, 0.0) - expected.get(a, 0.0)) for a in both) / 2)
    return max(gaps)


REJECTING = {
    "spec": (Speculative(k=2), SIXTHS, 3),
    "isd": (StridedDecoding(stride=2), SIXTHS, 3),
    "medusa": (Medusa(verify="rejection", width=2, nodes=2), SIXTHS, 3),
    "medusa-deep": (Medusa(verify="rejection", width=1, nodes=2), QUARTERS, 4),
    "medusa-wide": (Medusa(verify="rejection", width=2, nodes=4), QUARTERS, 4),
    "eagle": (Eagle(verify="rejection", width=2, nodes=2, depth=1), SIXTHS, 3),
    "eagle-deep": (Eagle(verify="rejection", width=1, nodes=2, depth=2), QUARTERS, 4),
    "spec-block": (Speculative(k=2, verify="block"), QUARTERS, 4),
    "medusa-block": (Medusa(verify="block", width=1, nodes=2), QUARTERS, 4),
    "mtp": (MultiTokenPrediction(verify="rejection", k=2), QUARTERS, 4),
    "mtp-block": (MultiTokenPrediction(verify="block", k=2), QUARTERS, 4),
    "eagle-block": (Eagle(verify="block", width=1, nodes=2, depth=2), QUARTERS, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "medusa-deep" else name
        for name in REJECTING
    ],
)
def test_answers_have_the_targets_distribution(name: str) -> None:
    assert distance(*REJECTING[name]) < 1e-6


class Reused:
    """Uniforms of which one stream is the drafts' own."""

    def __init__(self, uniforms: Any, stream: str) -> None:
        self._uniforms, self._stream = uniforms, stream

    def at(self, stream: str, position: int, candidate: int = 0) -> float:
        return self._uniforms.at("draw" if stream == self._stream else stream, position, candidate)


@pytest.mark.parametrize("stream", ["accept", "recover"])
@pytest.mark.parametrize("name", ["spec", "isd", "medusa", "eagle", "mtp"])
def test_reusing_a_drafts_uniform_to_accept_or_recover_changes_the_distribution(
    name: str, stream: str
) -> None:
    gap = distance(*REJECTING[name], lambda uniforms: Reused(uniforms, stream))
    assert gap > 0.02


class Positional(BlockVerification):
    """Block verification whose steps share the uniforms of their positions."""

    fresh = False


@dataclass(frozen=True, kw_only=True)
class PositionalBlock(Speculative):
    verification = Positional()


def test_block_verification_that_reuses_uniforms_of_positions_changes_the_distribution() -> None:
    assert distance(PositionalBlock(k=2), QUARTERS, 4) > 0.02
