"""Logits that are NaN or infinite end the answers they belong to, and no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.ar import Autoregressive
from decoders.core.decoder import Request, Steps
from decoders.core.drafting.mask_slots import vector_slots
from decoders.core.engine.models import Models
from decoders.core.engine.readout import has_nan
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.model import Call
from decoders.core.sampling import likeliest, pick, warp
from decoders.core.testing.check_models import llamas
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, Generation, Sampling
from decoders.isd import StridedDecoding
from decoders.ptp import ParallelTokenPrediction
from decoders.spec import Speculative

DISTRIBUTIONS = [
    Sampling(max_new_tokens=12),
    Sampling(max_new_tokens=12, temperature=0.8),
    Sampling(max_new_tokens=12, temperature=0.8, top_p=0.9),
    Sampling(max_new_tokens=12, temperature=1.0, top_k=3),
]
BAD = [float("nan"), float("inf")]


class Sick(TableModel):
    """A table whose logits hold a `bad` number wherever token 3 is in sight."""

    bad = float("nan")

    def logits(self, context: Sequence[int]) -> Tensor:
        logits = super().logits(context)
        if 3 in context:
            logits = logits.clone()
            logits[5] = self.bad
        return logits


def models(bad: float, *, draft_only: bool = False) -> Models:
    kinds = (TableModel if draft_only else Sick, Sick)
    target, draft = (kind(vocab_size=40, order=64, max_length=128) for kind in kinds)
    for model in (target, draft):
        if isinstance(model, Sick):
            model.bad = bad
    for name, variant in (("ptp", "o-ptp"), ("isd", "isd")):
        target.attach(name, error=0.3, variant=variant)  # type: ignore[arg-type]
    return Models(target=target, draft=draft)


def test_nan_in_the_confidence_of_a_slot_or_token_row_is_noticed() -> None:
    """The likeliest token of NaN is 0, which is a token; only its confidence shows it."""
    sound = CallResult(
        picks=(1,), confidences=(0.5,), slot_picks=(0, 2), slot_confidences=(0.4, 0.3)
    )
    assert not has_nan([sound], 40)
    for place in ("confidences", "slot_confidences"):
        sick: dict[str, Any] = {place: (*getattr(sound, place)[1:], float("nan"))}
        assert has_nan([dataclasses.replace(sound, **sick)], 40)


@pytest.mark.parametrize("place", ["picks", "slot_picks"])
def test_a_pick_beyond_the_vocabulary_is_noticed_without_a_confidence(place: str) -> None:
    for token, is_none in ((39, False), (40, True)):
        assert has_nan([CallResult(**{place: (2, token)})], 40) == is_none  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["ptp", "isd"])
def test_an_answer_fails_if_only_its_slots_have_nan_logits(spec: str) -> None:
    class SickInSlots(TableModel):
        def forward(self, calls: Sequence[Call]) -> Tensor:
            logits = super().forward(calls).clone()
            (call,) = calls
            if call.slots is not None:
                logits[len(call.read) :] = float("nan")
            return logits

    target = SickInSlots(vocab_size=40, order=64, max_length=128)
    target.attach(spec, error=0.3, variant="o-ptp" if spec == "ptp" else "isd")
    decoder = ParallelTokenPrediction() if spec == "ptp" else StridedDecoding()
    sampling = Sampling(max_new_tokens=12)
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        generate(decoder, [1, 2], sampling, Models(target=target))


@pytest.mark.parametrize("sampling", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("bad", BAD)
def test_bad_logits_pick_the_id_beyond_the_vocabulary_under_every_sampling(
    sampling: Sampling, bad: float
) -> None:
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    good = logits.clone()
    logits[1, 7] = logits[3, 0] = bad
    u = torch.tensor([0.1, 0.0, 0.6, 0.999], dtype=torch.float64)
    picks = pick(warp(logits, sampling), u)
    assert picks[[1, 3]].tolist() == [200, 200]
    assert torch.equal(picks[[0, 2]], pick(warp(good, sampling), u)[[0, 2]])
    if sampling.greedy:
        assert torch.equal(picks, likeliest(logits))


def test_the_likeliest_token_is_the_first_of_tied_largest_logits() -> None:
    generator = torch.Generator().manual_seed(1)
    for size in (3, 64, 1000):
        tied = torch.randint(0, 4, (50, size), generator=generator).float()
        tied[0, 1] = float("-inf")
        assert torch.equal(likeliest(tied), tied.argmax(-1))


@pytest.mark.parametrize("sampling", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "decoder",
    [
        Autoregressive(),
        Speculative(k=3),
        Speculative(k=3, verify="coupled"),
        ParallelTokenPrediction(),
        StridedDecoding(),
    ],
    ids=lambda d: f"{d.name}-{getattr(d, 'verify', '')}",
)
def test_a_sequence_with_bad_logits_fails_without_failing_the_rest_of_its_batch(
    decoder: Any, bad: float, sampling: Sampling
) -> None:
    loaded = models(bad)
    outcomes = Scheduler(decoder, loaded, sampling, 3).run([[1, 2], [1, 3], [2, 2]], seeds=[4] * 3)
    assert isinstance(outcomes[1], FloatingPointError)
    assert "logits are NaN or infinite after" in str(outcomes[1])
    for index, prompt in ((0, [1, 2]), (2, [2, 2])):
        outcome = outcomes[index]
        if isinstance(outcome, Generation):
            assert 3 not in outcome.tokens[:-1]
        else:  # it met token 3 by itself
            assert isinstance(outcome, FloatingPointError), prompt


def test_a_draft_model_with_nan_logits_fails_only_decoders_that_call_it() -> None:
    loaded = models(float("nan"), draft_only=True)
    sampling = Sampling(max_new_tokens=8)
    (outcome,) = Scheduler(Speculative(), loaded, sampling).run([[1, 3]])
    assert isinstance(outcome, FloatingPointError)
    assert "the draft's logits" in str(outcome)
    assert generate(Autoregressive(), [1, 3], sampling, loaded).tokens


def test_an_answer_in_the_cache_row_of_a_failed_answer_is_unchanged() -> None:
    """Entries beyond its text are read in a batch, with no weight: zero times NaN is NaN."""

    class Raw(Autoregressive):
        def steps(self, request: Request) -> Steps:
            if request.prompt_ids == (1, 2, 3):
                yield request.target.call(request.prompt_ids)
                slots = vector_slots(torch.full((2, 32), float("nan")), output="logits")
                yield request.target.call([4], slots=slots, output="logits")
                raise ValueError("the logits are NaN")
            yield from super().steps(request)

    models, sampling = llamas(Raw()), Sampling(max_new_tokens=8)
    prompts = [[1] * 20, [1, 2, 3], [4]]
    outcomes = Scheduler(Raw(), models, sampling, 2).run(prompts)
    assert isinstance(outcomes[1], ValueError)
    for number in (0, 2):
        alone = generate(Raw(), prompts[number], sampling, models)
        assert outcomes[number] == alone
