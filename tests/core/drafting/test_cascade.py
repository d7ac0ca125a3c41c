"""A smaller model drafts for the draft model: exact, and the same drafts where they are coupled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from decoders.core.checks import Check, check_distribution, checks_for
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.model import Session
from decoders.core.testing.check_models import llamas, tables
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.spec import Speculative
from tests.decoders.test_spec import Fractions, assert_distribution_of
from tests.enumeration import integrated_answers

# Every ratio is 0, 1/2 or at least 1, every rest is one token, every bonus a draw of quarters.
TARGET, DRAFT, SMALLER = ((1, 3, 0), (3, 1, 0)), ((2, 2, 0), (2, 2, 0)), ((4, 0, 0), (0, 4, 0))
GRID = {"draw": 1, "accept": 2, "recover": 4}
PROMPTS = [[1, 2, 3], [4, 0], [5], [2, 2, 6, 1, 3, 3]]


class Two(Fractions):
    """Two uncertain tokens of an answer, by the token before; all others are certain."""

    def logits(self, context: Sequence[int]) -> torch.Tensor:
        if len(context) not in (2, 3):
            return Fractions(((0, 1, 0),)).logits(context)
        return super().logits(context[-1:])


def enumerated(k: int, ahead: int, uniforms_of: Any = lambda each: each) -> dict[Any, float]:
    named = {"small": Two(SMALLER)}
    models = Models(target=Two(TARGET), draft=Two(DRAFT), named=named)
    decoder = Speculative(k=k, cascade="small", cascade_k=ahead)
    sampling = Sampling(temperature=1.0, max_new_tokens=4)

    def grid(stream: str, place: int, _: int) -> int:
        return GRID[stream] if place in (1, 2) else 1

    return integrated_answers(decoder, models, [1], sampling, grid, seen=uniforms_of)


class Shared:
    """Numbers of position alone, for the verification inside drafting, too."""

    def __init__(self, scripted: Any) -> None:
        self.at = scripted.at

    def at_step(self, step: int) -> Shared:
        return self


@pytest.mark.parametrize(
    ("k", "ahead"), [(2, 1), pytest.param(3, 2, marks=pytest.mark.slow)], ids=str
)
def test_a_cascade_has_the_exact_distribution(k: int, ahead: int) -> None:
    assert_distribution_of(Two(TARGET), enumerated(k, ahead))


def test_reusing_the_uniforms_of_the_inner_verification_breaks_the_distribution() -> None:
    """The wrong form, so that the enumeration is known to see it."""
    with pytest.raises(AssertionError):
        assert_distribution_of(Two(TARGET), enumerated(2, 1, Shared))


DECODERS = [
    Speculative(k=4, cascade="small"),
    Speculative(k=6, cascade="small", cascade_k=3, verify="coupled"),
    Speculative(k=5, cascade="small", verify="block"),
]


@pytest.mark.parametrize(
    ("decoder", "check"),
    [
        pytest.param(each, check, marks=pytest.mark.slow if number or drawn else ())
        for number, each in enumerate(DECODERS)
        for check in checks_for(each)
        for drawn in [check is check_distribution]
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_cascade_meets_the_contract(
    decoder: Speculative, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its distribution is enumerated above, and its rules' in tests/decoders/test_laws.py
    monkeypatch.setattr("decoders.core.checks.NUM_DISTRIBUTION_DRAWS", 1500)
    check(decoder)


@pytest.mark.parametrize(
    ("temperature", "verify"), [(0.0, "rejection"), (0.0, "block"), (0.9, "coupled")]
)
@pytest.mark.parametrize("make", [tables, llamas])
def test_greedy_and_coupled_cascades_take_the_same_steps_as_the_draft_model_alone(
    temperature: float, verify: Any, make: Any
) -> None:
    """So every step is that of a decoder without the smaller model, except for drafting calls."""
    cascade = Speculative(k=5, cascade="small", cascade_k=3, verify=verify)
    alone, models = Speculative(k=5, verify=verify), make(cascade)
    sampling = Sampling(temperature=temperature, max_new_tokens=16)

    def steps(decoder: Speculative) -> list[list[tuple[Any, ...]]]:
        outcomes = Scheduler(decoder, models, sampling, 2).run(PROMPTS)
        kept = ("tokens", "drafted", "accepted", "rejected", "target_calls", "target_rows")
        assert all(isinstance(outcome, Generation) for outcome in outcomes)
        return [
            [tuple(getattr(step, name) for name in kept) for step in outcome.steps]  # type: ignore[union-attr]
            for outcome in outcomes
        ]

    assert steps(cascade) == steps(alone)


def test_each_drafting_round_has_one_draft_model_call_and_cascade_k_smaller_model_calls() -> None:
    """If all three models agree, k = 6 drafts are two rounds of two drafts and a third token."""
    target = TableModel(7, seed=1)
    same = [TableModel(7, seed=1) for _ in range(2)]
    models = Models(target=target, draft=same[0], named={"small": same[1]})
    decoder = Speculative(k=6, cascade="small", cascade_k=2)
    answer = generate(decoder, [1, 2, 3], Sampling(max_new_tokens=1 + 4 * 7), models)
    assert [step.accepted for step in answer.steps[1:]] == [6] * 4
    assert same[0].num_forwards == 4 * 2
    assert same[1].num_forwards == 4 * 2 * 2
    assert sum(step.draft_calls for step in answer.steps) == 4 * 2 * 3
    rows = [step.draft_rows for step in answer.steps[1:]]
    # the smaller model is fed what it lacks and its drafts but the last, the draft model as well
    assert rows == [4 + 1 + 2 + 1 + 6 + 3, *[3 + 1 + 2 + 1 + 4 + 3] * 3]


def test_drafts_are_draws_of_the_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distributions that the target compares are the draft model's own, row by row."""
    models = tables(DECODERS[0])
    seen: list[tuple[tuple[int, ...], torch.Tensor]] = []
    call = Session.call

    def watched(self: Any, tokens: Sequence[int], **how: Any) -> Any:
        if how.get("draft_probs") and self.model is models.target:
            text = (*self.text[: self.length], tokens[0])
            for place, law in enumerate(how["draft_probs"]):
                seen.append(((*text, *how["drafts"][:place]), law))
        return call(self, tokens, **how)

    monkeypatch.setattr(Session, "call", watched)
    generate(DECODERS[0], [1, 2], Sampling(temperature=0.8, max_new_tokens=40), models)
    assert len(seen) > 40
    draft: Any = models.draft
    for text, law in seen:
        expected = (draft.logits(text) / 0.8).softmax(-1)
        assert torch.allclose(law, expected, atol=1e-6)


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_uniforms_of_the_draft_models_tests_differ_between_steps_and_from_the_targets(
    verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one position the draft model tests drafts by another number in each step."""
    models = tables(DECODERS[0])
    numbers: dict[Any, set[float]] = {models.target: set(), models.draft: set()}
    call = Session.call

    def watched(self: Any, tokens: Sequence[int], **how: Any) -> Any:
        if how.get("drafts"):
            numbers[self.model].add(how["uniforms"].at("accept", 7))
        return call(self, tokens, **how)

    monkeypatch.setattr(Session, "call", watched)
    decoder = Speculative(k=4, cascade="small", verify=verify)
    sampling = Sampling(temperature=0.8, max_new_tokens=24)
    answer = generate(decoder, [1, 2], sampling, models)
    drafting = [step for step in answer.steps if step.drafted > 1]
    assert len(numbers[models.draft]) == len(drafting) > 4
    assert not numbers[models.draft] & numbers[models.target]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"cascade": "x", "stop": 0.5}, "stop"),
        ({"cascade_k": 0}, "cascade_k"),
        ({"cascade_k": 3}, "cascade_k"),
        ({"cascade": "x", "k": "auto"}, "k"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"option '{line}'"):
        Speculative(**options)
