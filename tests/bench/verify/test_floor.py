"""A run's own rounding judges half precision: what it moves, how often, and what is beyond it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.plan.select import choose_decoders
from bench.plan.setup import Setup
from bench.records.plan import Floor
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.verify.divergence import differences
from bench.verify.floor import bound, exceeds_rounding, last_place, measure_floor
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import Call
from decoders.core.types import Generation
from tests.conftest import VOCAB

Make = Callable[..., SampleRecord]
LENGTH = 31


def prompt(number: int) -> Prompt:
    ids = (6, 5 + number)
    return Prompt(
        conversation=f"c{number}", turn=1, family="qa", ids=ids, hash=str(ids), reference=None
    )


PROMPTS = {each.name: each for each in map(prompt, range(12))}
QUIET = Floor(rows=5, num_answers=12, num_same=12, num_tokens=1000, num_flips=0, moved=0.5)


@pytest.fixture
def half(small: Any, opener: Any) -> Setup:
    """A setup that says it computes in bfloat16, with a right decoder."""
    run = choose_decoders(small(decoders="spec", dtype="bfloat16", max_new_tokens=LENGTH), print)
    setup: Setup = dataclasses.replace(opener(run), config=run.config)
    setup.models.target._order = 3  # type: ignore[attr-defined]  # answers that meet may part again
    return dataclasses.replace(
        setup, sampling=dataclasses.replace(setup.sampling, stop_ids=frozenset())
    )


def coupled(setup: Setup, temperature: float) -> Setup:
    """The setup at another temperature, where its decoder promises AR's tokens as well."""
    sampling = dataclasses.replace(setup.sampling, temperature=temperature)
    spec = setup.arms["spec"]
    cell = dataclasses.replace(spec.cell, comparable_to_ar=True)
    arms = {**setup.arms, "spec": dataclasses.replace(spec, cell=cell)}
    return dataclasses.replace(setup, sampling=sampling, arms=arms)


def rounded(setup: Setup, monkeypatch: pytest.MonkeyPatch, moved: float) -> None:
    """Let calls of several rows raise the logits of even tokens by `moved`."""
    target: Any = setup.models.target
    exact = target.forward

    def forward(calls: Sequence[Call]) -> Tensor:
        logits: Tensor = exact(calls).clone()
        if calls[0].num_rows > 1:
            logits[:, ::2] += moved
        return logits

    monkeypatch.setattr(target, "forward", forward)


def answers(setup: Setup, rows: int) -> dict[str, tuple[int, ...]]:
    """AR's answers in calls of so many rows."""
    models, decoder = Models(target=setup.models.target), Autoregressive(rows=rows)
    given = Scheduler(decoder, models, setup.sampling).run([p.ids for p in PROMPTS.values()])
    whole = [each for each in given if isinstance(each, Generation)]
    return {name: each.tokens for name, each in zip(PROMPTS, whole, strict=True)}


def records(record: Make, cell: str, given: dict[str, tuple[int, ...]]) -> list[SampleRecord]:
    return [
        record(
            cell,
            conversation=PROMPTS[name].conversation,
            tokens=tokens,
            emitted=(1, *(3,) * 10),
            rows=(2, *(5,) * 10),
        )
        for name, tokens in given.items()
    ]


def test_a_unit_of_the_last_place_is_that_of_the_largest_logit() -> None:
    logits = torch.tensor([[20.0, 1.0], [-9.0, 0.0], [0.6, 0.1], [3.0, -float("inf")]])
    assert last_place(logits, "bfloat16").tolist() == [0.125, 0.0625, 0.00390625, 0.015625]
    assert last_place(logits, "float16").tolist() == [0.015625, 0.0078125, 2**-11, 2**-9]


def test_the_floor_is_measured_with_ar_in_calls_of_the_usual_number_of_rows(
    half: Setup, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers that stay the same are those that AR gives when it decodes in such calls."""
    rounded(half, monkeypatch, 0.05)
    ar, other = answers(half, 1), answers(half, 5)
    same = sum(ar[name] == other[name] for name in ar)
    assert 0 < same < len(ar)
    floor = measure_floor(
        half, [*records(record, "ar", ar), *records(record, "spec", other)], PROMPTS
    )
    assert floor is not None
    assert (floor.rows, floor.num_answers, floor.num_same) == (5, 12, same)
    assert floor.num_tokens == 12 * LENGTH
    assert floor.num_flips >= 12 - same
    assert 0.05 * 2**3 < floor.moved < 0.05 * 2**7  # largest logits of 1 to 16: 2^-7 to 2^-4 a unit


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_decoder_that_rounds_as_ar_does_in_calls_of_the_usual_rows_is_verified(
    half: Setup, record: Make, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    setup = coupled(half, temperature)
    rounded(setup, monkeypatch, 0.05)
    given = [
        *records(record, "ar", answers(setup, 1)),
        *records(record, "spec", answers(setup, 5)),
    ]
    floor = measure_floor(setup, given, PROMPTS)
    (found,) = differences(setup, given, PROMPTS, floor)
    assert (found.num_wrong, (found.num_answers or 0) > 0) == (0, True)
    assert floor is not None
    assert 0 <= (found.places_off or 0) <= bound(floor)


@pytest.mark.parametrize("scale", [1.0, 1 / 64])
def test_a_decoder_that_takes_the_runner_up_is_wrong_at_any_scale_of_the_logits(
    half: Setup, record: Make, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    target: Any = half.models.target
    exact = target.logits
    monkeypatch.setattr(target, "logits", lambda context: exact(context) * scale)
    rounded(half, monkeypatch, 0.005 * scale)
    ar = answers(half, 1)
    second = {
        name: (int(target.logits(PROMPTS[name].ids).topk(2).indices[1]), *tokens[1:])
        for name, tokens in ar.items()
    }
    given = [*records(record, "ar", ar), *records(record, "spec", second)]
    (found,) = differences(half, given, PROMPTS, measure_floor(half, given, PROMPTS))
    assert (found.num_wrong or 0) > 6


def test_without_a_floor_differences_are_not_verified(half: Setup, record: Make) -> None:
    ar = answers(half, 1)
    other = {name: (9, *tokens[1:]) for name, tokens in ar.items()}
    given = [*records(record, "ar", ar), *records(record, "spec", other)]
    (found,) = differences(half, given, PROMPTS)
    assert found.num_wrong is None


def test_equal_answers_need_no_floor(half: Setup, record: Make) -> None:
    ar = answers(half, 1)
    same = [*records(record, "ar", ar), *records(record, "spec", ar)]
    assert measure_floor(half, same, PROMPTS) is None


def test_an_ar_arm_with_several_rows_sets_the_rows_of_the_floor(
    small: Any, opener: Any, record: Make
) -> None:
    cells = "ar@wide:rows=9,spec"
    run = choose_decoders(small(decoders=cells, dtype="bfloat16"), print)
    setup = dataclasses.replace(opener(run), config=run.config)
    ar = answers(setup, 1)
    other = {name: (9, *tokens[1:]) for name, tokens in ar.items()}
    floor = measure_floor(
        setup, [*records(record, "ar", ar), *records(record, "spec", other)], PROMPTS
    )
    assert floor is not None
    assert floor.rows == 9


def test_differences_exceed_rounding_if_their_rate_is_far_above_that_of_the_floor() -> None:
    floor = dataclasses.replace(QUIET, num_tokens=3000, num_flips=20)
    assert not exceeds_rounding(floor, 20, 2000)
    assert not exceeds_rounding(floor, 40, 3000)
    assert exceeds_rounding(floor, 120, 3000)
    assert exceeds_rounding(floor, 30, 150)
    assert not exceeds_rounding(floor, 0, 0)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_decoder_that_takes_every_tie_the_other_way_is_not_verified(
    half: Setup, record: Make, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """Each of its tokens is as near to a tie as rounding explains; there are too many of them."""
    setup = coupled(half, temperature)
    rounded(setup, monkeypatch, 0.02)
    ar = answers(setup, 1)
    floor = dataclasses.replace(QUIET, num_tokens=12 * LENGTH, moved=1000.0)
    other = {name: tuple((token + 1) % VOCAB for token in tokens) for name, tokens in ar.items()}
    given = [*records(record, "ar", ar), *records(record, "spec", other)]
    (found,) = differences(setup, given, PROMPTS, floor)
    assert found.num_wrong is None
    calm = dataclasses.replace(floor, num_flips=10 * LENGTH)
    (found,) = differences(setup, given, PROMPTS, calm)
    assert found.num_wrong == 0


def test_a_wrong_token_after_the_first_difference_is_wrong(
    half: Setup, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    target: Any = half.models.target
    ar = answers(half, 1)
    tie = PROMPTS["c3#1"].ids
    exact = target.logits
    first, second = (int(token) for token in exact(tie).topk(2).indices)

    def logits(context: Sequence[int]) -> Tensor:
        found: Tensor = exact(context).clone()
        if tuple(context) == tie:
            found[second] = found[first] - 1e-6
        return found

    monkeypatch.setattr(target, "logits", logits)
    worst = int(exact((*tie, second)).argmin())
    floor = dataclasses.replace(QUIET, num_flips=100)
    for tokens, wrong in (((second,), 0), ((second, worst), 1)):
        given = [*records(record, "ar", ar), *records(record, "spec", ar | {"c3#1": tokens})]
        (found,) = differences(half, given, PROMPTS, floor)
        assert (found.num_answers, found.num_wrong) == (1, wrong)


def test_the_rounding_of_two_logits_is_always_allowed() -> None:
    assert bound(QUIET) == 2.0
    assert bound(dataclasses.replace(QUIET, moved=3.0)) == 6.0
