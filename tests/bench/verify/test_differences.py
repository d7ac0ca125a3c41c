"""Lossless decoders: equality is demanded, near-ties are understood, the rest is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from bench.plan.select import choose_decoders
from bench.plan.setup import Setup
from bench.records.plan import Floor
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.verify.divergence import differences
from bench.verify.floor import bound, last_place

Make = Callable[..., SampleRecord]
PROMPT = Prompt(conversation="c0", turn=1, family="qa", ids=(5, 6), hash="h", reference=None)


@pytest.fixture
def setup(small: Any, opener: Any) -> Setup:
    setup: Setup = opener(choose_decoders(small(), print))
    return setup


def ranked(setup: Setup, ids: tuple[int, ...]) -> list[int]:
    """Next tokens after `ids`, likeliest first."""
    logits = setup.models.target.logits(ids)  # type: ignore[attr-defined]
    return [int(token) for token in logits.argsort(descending=True)]


def test_equal_answers_are_no_difference(setup: Setup, record: Make) -> None:
    assert differences(setup, [record("ar"), record("spec"), record("ar@aa")], {}) == []


def test_a_clear_difference_is_wrong(setup: Setup, record: Make) -> None:
    best, *_, worst = ranked(setup, PROMPT.ids)
    records = [record("ar", tokens=(best, 1, 2)), record("spec", tokens=(worst, 1, 2))]
    (found,) = differences(setup, records, {"c0#1": PROMPT})
    assert (found.cell, found.num_answers, found.num_compared, found.num_wrong) == (
        "spec", 1, 1, 1,
    )  # fmt: skip
    assert found.example == "c0#1"


def test_a_near_tie_is_a_difference_and_not_wrong(
    setup: Setup, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, second, *_ = ranked(setup, PROMPT.ids)
    target: Any = setup.models.target
    distribution = target.logits(PROMPT.ids).clone()
    distribution[second] = distribution[best] - 1e-5
    monkeypatch.setattr(target, "logits", lambda _context: distribution)
    records = [record("ar", tokens=(best, 1, 2)), record("spec", tokens=(second, 1, 2))]
    (found,) = differences(setup, records, {"c0#1": PROMPT})
    assert (found.num_answers, found.num_wrong) == (1, 0)


def test_a_clear_difference_of_a_coupled_decoder_is_wrong_when_sampling(
    record: Make, small: Any, opener: Any
) -> None:
    run = choose_decoders(small(decoders="spec:verify=coupled", temperature=0.5), print)
    other = dataclasses.replace(opener(run), config=run.config)
    records = [record("ar"), record("spec", tokens=(9, 9, 9))]
    (found,) = differences(other, records, {"c0#1": PROMPT})
    assert (found.num_wrong, len(found.gaps)) == (1, 1)


@pytest.mark.parametrize(("places", "wrong"), [(0.9, 0), (1.1, 1)])
def test_in_half_precision_a_difference_is_wrong_only_beyond_the_rounding_of_the_run(
    record: Make,
    small: Any,
    opener: Any,
    monkeypatch: pytest.MonkeyPatch,
    places: float,
    wrong: int,
) -> None:
    run = choose_decoders(small(decoders="spec", dtype="bfloat16"), print)
    setup = dataclasses.replace(opener(run), config=run.config)
    target: Any = setup.models.target
    distribution = target.logits(PROMPT.ids).clone()
    best, second, *_ = ranked(setup, PROMPT.ids)
    monkeypatch.setattr(target, "logits", lambda _context: distribution)
    records = [record("ar", tokens=(best,)), record("spec", tokens=(second,))]
    floor = Floor(rows=5, num_answers=9, num_same=9, num_tokens=9, num_flips=0, moved=3.0)
    unit = float(last_place(distribution[None], "bfloat16"))
    distribution[second] = distribution[best] - places * bound(floor) * unit
    (found,) = differences(setup, records, {"c0#1": PROMPT}, floor)
    assert found.num_wrong == wrong
    assert found.places_off == pytest.approx(places * bound(floor), rel=1e-3)
    (found,) = differences(setup, records, {"c0#1": PROMPT})
    assert found.num_wrong is None


def test_a_decoder_that_keeps_the_distribution_only_is_not_compared(
    record: Make, small: Any, opener: Any
) -> None:
    setup = opener(choose_decoders(small(decoders="spec", temperature=1.0), print))
    assert differences(setup, [record("ar"), record("spec", tokens=(9, 9, 9))], {}) == []


def test_wrong_answers_are_counted_in_every_repeat(setup: Setup, record: Make) -> None:
    best, *_, worst = ranked(setup, PROMPT.ids)
    records = [
        record(cell, tokens=(first, 1, 2), repeat=repeat)
        for repeat in range(3)
        for cell, first in (("ar", best), ("spec", worst))
    ]
    (found,) = differences(setup, records, {"c0#1": PROMPT})
    assert (found.num_answers, found.num_compared, found.num_wrong) == (3, 3, 3)


def test_answers_are_compared_with_the_baseline_of_the_same_repeat_and_pass(
    setup: Setup, record: Make
) -> None:
    """Where the baseline has no answer of a repeat there is nothing to hold one to."""
    tokens = {0: (1, 2), 1: (3, 4)}
    records = [
        *(record("spec", tokens=tokens[repeat], repeat=repeat) for repeat in (0, 1)),
        record("ar", tokens=tokens[0], repeat=0),
        record("ar", error="late", repeat=1),
        record("ar", tokens=(9, 9), repeat=1, kind="quality"),
        record("spec", tokens=(8, 8), repeat=0, kind="quality"),
    ]
    assert differences(setup, records, {}) == []


def test_answers_with_an_error_are_left_out(setup: Setup, record: Make) -> None:
    assert differences(setup, [record("ar"), record("spec", error="no")], {}) == []


def test_in_row_invariant_numerics_any_difference_is_wrong(
    setup: Setup, record: Make, small: Any, opener: Any
) -> None:
    cells = "spec:verify=coupled,spec@fast:verify=coupled:numerics=fast"
    run = choose_decoders(
        small(decoders=cells, numerics="invariant", dtype="bfloat16", temperature=0.5), print
    )
    exact = dataclasses.replace(opener(run), config=run.config)
    records = [
        *(record("ar", repeat=repeat) for repeat in range(2)),
        *(record("spec", tokens=(9, 9, 9), repeat=repeat) for repeat in range(2)),
        record("spec@fast", tokens=(9, 9, 9)),
    ]
    found = {each.cell: each for each in differences(exact, records, {"c0#1": PROMPT})}
    assert (found["spec"].num_answers, found["spec"].num_wrong) == (2, 2)
    assert found["spec@fast"].num_wrong is None


def test_differences_are_reported_with_place_share_and_distance_from_a_tie(
    setup: Setup, record: Make
) -> None:
    best, second, *_ = ranked(setup, PROMPT.ids)
    logits = setup.models.target.logits(PROMPT.ids)  # type: ignore[attr-defined]
    third = ranked(setup, (*PROMPT.ids, best))[2]
    records = [
        *(record("ar", tokens=(best, 1, 2), repeat=repeat) for repeat in range(3)),
        record("spec", tokens=(second, 1, 2), repeat=0),
        record("spec", tokens=(best, third, 2), repeat=1),
        record("spec", tokens=(best, 1, 2), repeat=2),
    ]
    (found,) = differences(setup, records, {"c0#1": PROMPT})
    assert (found.num_tokens, found.num_equal, found.places) == (9, 4, (0, 1))
    assert found.gaps[0] == pytest.approx(float(logits[best] - logits[second]), abs=1e-5)
    assert len(found.gaps) == 2
