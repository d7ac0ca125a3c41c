"""Speculative decoding: exact distribution, wasted calls, rollback of both caches."""

import math
import re
from collections.abc import Sequence
from typing import Literal

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.core.testing.goodness import Draws
from decoders.core.testing.table_model import TableModel
from decoders.core.testing.tiny_llama import tiny_models
from decoders.core.types import Generation, Sampling
from decoders.spec import Speculative
from tests.enumeration import Grid, enumerated_distribution, integrated_answers

# Token 2 is drafted in 4 of 6 cases and stands in all, half or none of them; where it falls two
# tokens are left to recover, so that the number that let it fall must not choose between them.
TARGET = ((2, 2, 2), (3, 3, 0), (1, 1, 4), (2, 2, 2))
DRAFT = ((1, 1, 4),)
# Every probability, ratio and rest is a multiple of these grids' steps.
SIXTHS = {"draw": 6, "accept": 2, "recover": 6}
QUARTERS = {"draw": 4, "accept": 3, "recover": 2}
STOPPING = ((1, 1, 0), (0, 1, 0), (1, 1, 0))
DRAFTED = ((1, 3, 0), (3, 1, 0))


class Fractions(TableModel):
    """Distributions by the last two tokens, in fractions that a grid integrates exactly."""

    def __init__(self, distributions: Sequence[Sequence[int]]) -> None:
        super().__init__(3)
        self._fractions = distributions

    def logits(self, context: Sequence[int]) -> torch.Tensor:
        last = sum(context[-2:]) if len(context) > 1 else context[-1]
        weights = self._fractions[last % len(self._fractions)]
        return torch.tensor([math.log(weight) if weight else -math.inf for weight in weights])


def answers(
    decoder: Decoder, both: Models, num_tokens: int, grid: Grid
) -> dict[tuple[int, ...], float]:
    """The exact distribution of answers, by integration over the uniforms."""
    sampling = Sampling(temperature=1.0, max_new_tokens=num_tokens)
    return integrated_answers(decoder, both, [1], sampling, grid)


def assert_distribution_of(target: Fractions, found: dict[tuple[int, ...], float]) -> None:
    length = len(next(iter(found)))
    sampling = Sampling(temperature=1.0, max_new_tokens=length)
    expected = enumerated_distribution(target, [1], sampling, length)
    assert found.keys() == expected.keys()
    for answer, mass in expected.items():
        assert found[answer] == pytest.approx(mass, abs=1e-6)


@pytest.mark.slow
def test_rejection_has_the_exact_distribution_of_the_table() -> None:
    both = Models(target=Fractions(TARGET), draft=Fractions(DRAFT))
    assert_distribution_of(Fractions(TARGET), answers(Speculative(k=1), both, 3, SIXTHS))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_stopping_at_an_improbable_draft_keeps_the_distribution(stop: float) -> None:
    """A token of the draft model's distributions has 1/4: with stop=0.5 it ends the drafts."""
    both = Models(target=Fractions(STOPPING), draft=Fractions(DRAFTED))
    decoder = Speculative(k=2, stop=stop)
    # the first token is certain
    found = answers(decoder, both, 4, lambda stream, place, _: QUARTERS[stream] if place else 1)
    assert_distribution_of(Fractions(STOPPING), found)


def test_an_automatic_draft_length_keeps_the_distribution() -> None:
    """A token of 3/4 pays for a second draft, one of 1/4 does not; both are verified."""
    both = Models(target=Fractions(STOPPING), draft=Fractions(DRAFTED))
    decoder = Speculative(k="auto", draft_cost=0.3)
    lengths = set()
    found = answers(decoder, both, 4, lambda stream, place, _: QUARTERS[stream] if place else 1)
    assert_distribution_of(Fractions(STOPPING), found)
    sampling = Sampling(temperature=1.0, max_new_tokens=60)
    for step in generate(decoder, [1], sampling, both).steps[1:-1]:
        lengths.add((round(step.confidences[0][0], 2), step.drafted))
    assert {(0.75, 2), (0.25, 1)} <= lengths


def test_an_expensive_draft_model_drafts_less_and_leaves_the_answer_unchanged() -> None:
    sampling, both = Sampling(max_new_tokens=80), models(0.5)
    costs = (0.02, 0.2, 2.0)
    runs = [generate(Speculative(k="auto", draft_cost=c), [1], sampling, both) for c in costs]
    assert len({answer.tokens for answer in runs}) == 1
    calls = [sum(step.draft_calls for step in answer.steps) for answer in runs]
    assert calls[0] > calls[1] > calls[2]
    assert all(step.drafted for step in runs[2].steps[1:-1])  # one draft, to learn from


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("k=0", "'k' of decoder 'spec' is 0; it must be 1 to 120, or auto"),
        ("k=121", "'k' of decoder 'spec' is 121; it must be 1 to 120, or auto"),
        ("k=many", "is 'many'; it must be of type int or auto"),
        ("row_cost=0.1", "'row_cost' of decoder 'spec' is 0.1, but it belongs to k=auto"),
        ("k=auto:draft_cost=-1", "'draft_cost' of decoder 'spec' is -1.0; it must be 0 or above"),
    ],
)
def test_an_invalid_draft_length_or_cost_is_refused_in_one_line(options: str, line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        build(parse_spec(f"spec:{options}"))


@pytest.mark.parametrize(
    ("temperature", "verify"), [(0.0, "rejection"), (0.8, "coupled"), (0.8, "rejection")]
)
def test_every_tested_draft_has_its_probability_in_the_draft_model(
    temperature: float, verify: Literal["rejection", "coupled"]
) -> None:
    both = models(0.6)
    assert isinstance(both.draft, TableModel)
    sampling = Sampling(temperature=temperature, max_new_tokens=60)
    text = [1, 2]
    for step in generate(Speculative(verify=verify), text, sampling, both).steps:
        drafts = [*step.tokens[: step.accepted], *step.rejected]
        for place, (confidence, accepted) in enumerate(step.confidences):
            logits = both.draft.logits([*text, *drafts[:place]])
            probs = torch.softmax(logits / (temperature or 1.0), -1)
            assert confidence == pytest.approx(float(probs[drafts[place]]))
            assert accepted == (place < step.accepted)
        assert len(step.confidences) == min(step.drafted, step.accepted + 1)
        text = [*text, *step.tokens]


@pytest.mark.parametrize(
    ("temperature", "verify"), [(0.0, "rejection"), (0.8, "coupled"), (0.8, "rejection")]
)
def test_drafting_stops_at_the_first_improbable_draft(
    temperature: float, verify: Literal["rejection", "coupled"]
) -> None:
    both, stop = models(0.6), 0.3
    assert isinstance(both.draft, TableModel)
    sampling = Sampling(temperature=temperature, max_new_tokens=60)
    answer = generate(Speculative(k=4, stop=stop, verify=verify), [1, 2], sampling, both)
    text, ends = [1, 2], set()
    for step in answer.steps:
        drafts = [*step.tokens[: step.accepted], *step.rejected]
        assert len(drafts) == step.drafted
        for place, draft in enumerate(drafts):
            logits = both.draft.logits([*text, *drafts[:place]])
            probability = torch.softmax(logits / (temperature or 1.0), -1)[draft]
            assert place == len(drafts) - 1 or probability >= stop
            if place == len(drafts) - 1 < 3:
                ends.add(bool(probability < stop))
        text += step.tokens
    assert True in ends  # it did stop somewhere


@pytest.mark.parametrize("stop", [0.0, 0.01])
def test_coupled_drafts_are_drawn_with_the_targets_uniforms(stop: float) -> None:
    """So all of a draft model's that is the target itself stand, stopping or not."""
    sampling = Sampling(temperature=1.0, max_new_tokens=60)
    decoder = Speculative(k=4, stop=stop, verify="coupled")
    answer = generate(decoder, [1, 2], sampling, models(1.0))
    assert all(step.accepted == step.drafted for step in answer.steps[:-1])
    assert sum(step.drafted for step in answer.steps) > 30


def test_stopping_saves_draft_calls_and_no_answer_changes() -> None:
    sampling = Sampling(max_new_tokens=80)
    both = models(0.5)
    plain, stopping = (generate(Speculative(k=5, stop=s), [1], sampling, both) for s in (0, 0.4))
    assert plain.tokens == stopping.tokens
    calls = [sum(step.draft_calls for step in answer.steps) for answer in (plain, stopping)]
    assert calls[1] < calls[0]


def models(agreement: float) -> Models:
    target = TableModel(11, seed=5)
    draft = TableModel(11, seed=6, agree_with=target, agreement=agreement)
    return Models(target=target, draft=draft)


def test_full_acceptance_wastes_no_draft_call() -> None:
    answer = generate(Speculative(k=4), [1, 2], Sampling(max_new_tokens=21), models(1.0))
    for step in answer.steps[1:]:
        assert (step.drafted, step.accepted, step.draft_calls) == (4, 4, 4)
        assert (step.target_calls, step.target_rows, len(step.tokens)) == (1, 5, 5)


def test_the_draft_catches_up_on_the_last_draft_and_the_bonus_in_one_call() -> None:
    answer = generate(Speculative(k=3), [1, 2], Sampling(max_new_tokens=9), models(1.0))
    first, second = answer.steps[1], answer.steps[2]
    assert first.draft_rows == 3 + 2  # the prompt and the first token, then two drafts
    assert second.draft_rows == 2 + 2  # the last draft and the bonus, then two drafts


def test_no_draft_exceeds_the_budget() -> None:
    answer = generate(Speculative(k=8), [1, 2], Sampling(max_new_tokens=4), models(1.0))
    assert [step.drafted for step in answer.steps] == [0, 2]
    answer = generate(Speculative(k=8), [1, 2], Sampling(max_new_tokens=2), models(1.0))
    assert [step.drafted for step in answer.steps] == [0, 0]


@pytest.mark.parametrize(
    ("temperature", "agreement"),
    [
        *((0.5, 0.9), (0.8, 0.5), (1.0, 0.9), (1.5, 0.0)),
        *(
            pytest.param(temperature, agreement, marks=pytest.mark.slow)
            for temperature, agreement in [
                *((0.5, 0.0), (0.5, 0.5), (0.8, 0.0), (0.8, 0.9)),
                *((1.0, 0.0), (1.0, 0.5), (1.5, 0.5), (1.5, 0.9)),
            ]
        ),
    ],
)
def test_coupled_equals_ar_token_for_token(temperature: float, agreement: float) -> None:
    both = models(agreement)
    for seed in range(4):
        sampling = Sampling(temperature=temperature, top_p=0.9, max_new_tokens=40, seed=seed)
        expected = generate(Autoregressive(), [1, 2, 3], sampling, both).tokens
        for k in (1, 2, 5):
            decoder = Speculative(k=k, verify="coupled")
            assert generate(decoder, [1, 2, 3], sampling, both).tokens == expected


def test_distributions_are_compared_up_to_the_first_rejected_draft() -> None:
    """Each overlap is at most 1, as is what each token adds to alpha."""
    sampling = Sampling(temperature=1.0, max_new_tokens=60)
    steps = generate(Speculative(k=5), [1, 2], sampling, models(0.9)).steps
    fell = [step for step in steps[:-1] if step.accepted < step.drafted - 1]
    assert fell
    for step in fell:
        assert step.tested == step.accepted + 1
        assert step.overlap is not None
        assert step.overlap <= step.tested
        assert step.alpha is not None
        assert 1 <= step.alpha <= len(step.tokens)


def test_answers_with_unequal_numbers_of_drafts_are_the_same_in_a_batch_as_alone() -> None:
    """Steps of unequal numbers of drafts, merged: answers, counts and overlaps are those alone."""
    both, sampling = models(0.6), Sampling(temperature=1.0, max_new_tokens=24)
    decoder, prompts = Speculative(k=4, stop=0.3), [[1, 2], [3], [4, 5, 6]]
    together = Scheduler(decoder, both, sampling, 3).run(prompts)
    for prompt, outcome in zip(prompts, together, strict=True):
        assert outcome == generate(decoder, prompt, sampling, both)
        assert isinstance(outcome, Generation)
        assert len({step.drafted for step in outcome.steps}) > 2


def test_a_better_draft_model_has_more_drafts_accepted() -> None:
    sampling = Sampling(temperature=1.0, max_new_tokens=200)

    def accepted(agreement: float) -> int:
        answer = generate(Speculative(), [1], sampling, models(agreement))
        return sum(step.accepted for step in answer.steps)

    assert accepted(0.2) < accepted(0.8) < accepted(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 7])
def test_a_draft_of_another_size_keeps_the_distribution_under_rejection(size: int) -> None:
    """Rows that no token uses are never drafted, and words that the draft lacks still occur."""
    target = tiny_models(5, 16).target
    draft = tiny_models(size, 16).draft
    assert isinstance(draft, HFModel)
    draft.share_vocabulary(5)
    sampling = Sampling(temperature=0.9, max_new_tokens=4)
    models = Models(target=target, draft=draft)
    draws = Draws(Speculative(k=2), models, [1, 2], sampling, 6000, beginning=3)
    draws.draw(1, 64)
    assert min(each.p_value for each in draws.fits) > 1e-4
