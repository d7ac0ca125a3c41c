"""Comparisons with AR: near-ties are held to the noise floor."""

from __future__ import annotations

import pytest

from bench.verify.divergence import MARGINS, Divergence
from bench.verify.equality import RESHAPED, EqualityCheck
from decoders.core.checks import check_coupled_equals_ar, check_greedy_equals_ar
from decoders.core.registry import build, parse_spec
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling


def comparison(num: int, parted: int, *, distance: float = 1e-4, length: int = 20) -> EqualityCheck:
    """`num` answers of `length` tokens, `parted` of which left AR's after 5."""
    places = [5] * parted
    found = [
        Divergence(num_equal=place, by="logits", distance=distance, margin=1e-3) for place in places
    ]
    return EqualityCheck(
        decoder="x",
        sampling=Sampling(),
        precision="float32",
        equal_tokens=[*places, *[length] * (num - parted)],
        parted=[(f"p{i}", divergence) for i, divergence in enumerate(found)],
    )


def test_ar_with_calls_of_another_shape_gives_the_same_tokens() -> None:
    check_greedy_equals_ar(RESHAPED)
    check_coupled_equals_ar(build(parse_spec("ar:rows=3")))


def test_equal_answers_pass_and_state_the_rarest_error_they_would_have_caught() -> None:
    finding = comparison(20, 0).finding(True, comparison(20, 0))
    assert finding.outcome == "passed"
    rarest = float(finding.power.split()[4])
    assert finding.power.endswith(" (answers of up to 20 tokens)")
    assert 1 - (1 - 1 / rarest) ** 400 == pytest.approx(0.9, abs=0.01)


def test_a_difference_beyond_rounding_is_wrong() -> None:
    finding = comparison(20, 1, distance=0.5).finding(True, comparison(20, 5))
    assert finding.outcome == "wrong"
    assert "token 5 of p0" in finding.text


def test_near_ties_are_open_if_they_are_far_more_frequent_than_in_reshaped_ar() -> None:
    many = comparison(20, 12)
    assert many.finding(True, comparison(20, 11)).outcome == "passed"
    assert many.finding(True, comparison(20, 0)).outcome == "open"
    assert comparison(20, 2).finding(True, comparison(20, 0)).outcome == "passed"


def test_a_lossy_decoder_is_measured_at_any_distance_from_ar() -> None:
    finding = comparison(20, 20, distance=9).finding(False, comparison(20, 0))
    assert finding.outcome == "measured"
    assert finding.text.startswith(
        "0 of 20 answers identical, 100 tokens before the first differences; "
    )
    assert "5 tokens (median)" in finding.text


def test_failed_and_missing_comparisons_are_open() -> None:
    assert comparison(0, 0).finding(True, comparison(0, 0)).outcome == "open"
    made = comparison(3, 0)
    target = TableModel()
    made.add(target, "p9", [1], RuntimeError("no"), (1, 2))
    assert made.finding(True, comparison(3, 0)).outcome == "open"
    made.add(target, "p10", [1], Generation(tokens=(1, 2), steps=(), stop="length"), (1, 2))
    assert made.num_answers == 4


def test_a_failure_leaves_a_lossy_decoders_distance_open() -> None:
    made = comparison(20, 20, distance=9)
    made.errors.append("p1: RuntimeError: no")
    finding = made.finding(False, comparison(20, 0))
    assert finding.outcome == "open"
    line = "0 of 20 answers identical, 100 tokens before the first differences; 1 failed: p1: "
    assert finding.text == f"{line}RuntimeError: no"
    assert comparison(0, 0).finding(False, comparison(0, 0)).outcome == "open"


def test_a_difference_beyond_rounding_is_wrong_even_if_another_answer_failed() -> None:
    made = comparison(20, 1, distance=0.5)
    made.errors.append("p1: RuntimeError: no")
    assert made.finding(True, comparison(20, 0)).outcome == "wrong"


def test_in_row_invariant_numerics_a_near_tie_is_wrong() -> None:
    near = Divergence(num_equal=1, by="logits", distance=0.0, margin=MARGINS["invariant"])
    check = EqualityCheck(decoder="mine", sampling=Sampling(), precision="invariant")
    check.equal_tokens, check.parted = [1, 8], [("a", near)]
    floor = EqualityCheck(decoder="ar", sampling=Sampling(), precision="invariant")
    assert check.finding(True, floor).outcome == "wrong"
    assert check.shapes().outcome == "wrong"
