"""Verdicts on single measures: which way is better, what is tolerated, what an interval says."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from bench.compare.gate import HARD, KEY_FIGURE, Gate
from bench.compare.judge import (
    CellRegression,
    Comparison,
    Measure,
    Regression,
    judge_hard,
    judge_time,
    need_more_data,
    worst,
)
from bench.errors import Exit
from bench.stats.intervals import Estimate

LESS = ("calls", "rows", "draft_calls", "wrong_answers", "changed_answers", "errors")
MORE = ("accepted", "identical_to_ar", "quality")


def hard(name: str, base: float, head: float, gate: Gate | None = None, **how: Any) -> Measure:
    return judge_hard(name, base, head, gate or Gate(), **{"exact": True, **how})


@pytest.mark.parametrize("name", LESS)
def test_fewer_calls_rows_or_faults_improve_and_more_regress(name: str) -> None:
    assert hard(name, 0.5, 0.4).verdict is Regression.improved
    assert hard(name, 0.5, 0.6).verdict is Regression.regressed


@pytest.mark.parametrize("name", MORE)
def test_higher_acceptance_quality_or_agreement_with_ar_improves_and_lower_regresses(
    name: str,
) -> None:
    assert hard(name, 0.5, 0.6).verdict is Regression.improved
    assert hard(name, 0.5, 0.4).verdict is Regression.regressed


def test_longer_and_shorter_answers_both_regress() -> None:
    assert {hard("emitted", 100, head).verdict for head in (99, 101)} == {Regression.regressed}
    assert set(HARD) == {*LESS, *MORE, "emitted", KEY_FIGURE}


def test_counters_change_relative_to_base_and_shares_by_their_difference() -> None:
    assert hard("calls", 200, 250).change == pytest.approx(0.25)
    assert hard("quality", 0.5, 0.75).change == pytest.approx(0.25)
    assert hard("quality.qa", 0.5, 0.75).change == pytest.approx(0.25)
    assert hard("draft_calls", 0, 3).change == math.inf


def test_one_more_call_in_a_million_regresses_and_a_rounding_error_of_a_mean_does_not() -> None:
    assert hard("calls", 1e6, 1e6 + 1).verdict is Regression.regressed
    assert hard("quality", 0.1 + 0.2, 0.3).verdict is Regression.passed


def test_on_another_machine_half_a_per_cent_or_one_answer_is_tolerated_and_no_fault() -> None:
    elsewhere = functools.partial(hard, exact=False)
    assert elsewhere("calls", 1000, 1004).verdict is Regression.passed
    assert elsewhere("calls", 1000, 1006).verdict is Regression.regressed
    assert elsewhere("quality.qa", 0.9, 0.86, step=0.05).verdict is Regression.passed
    assert elsewhere("quality.qa", 0.9, 0.84, step=0.05).verdict is Regression.regressed
    for fault in ("wrong_answers", "errors"):
        assert elsewhere(fault, 0, 0.001).verdict is Regression.regressed


def test_a_tolerance_set_in_the_gate_overrides_the_defaults_on_any_machine() -> None:
    gate = Gate(hard={"calls": 0.02})  # type: ignore[arg-type]
    assert hard("calls", 1000, 1015, gate).verdict is Regression.passed
    assert hard("calls", 1000, 1025, gate, exact=False).verdict is Regression.regressed


# ---------------------------------------------------------------- time


def timed(low: float, high: float, margin: float = 0.1) -> Measure:
    """The judgement of a change of time per token known to lie between `low` and `high`."""
    value = math.sqrt((1 + low) * (1 + high))
    ratio = Estimate(
        value=1 / value, low=1 / (1 + high), high=1 / (1 + low), clusters=10, error=0.1, df=9.0
    )
    return judge_time(ratio, 1.0, value, Gate(), margin=margin)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.11, 0.20, Regression.regressed),
        (0.09, 0.20, Regression.inconclusive),  # 14 % slower by the estimate, which is not enough
        (0.01, 0.11, Regression.inconclusive),  # 6 % slower by the estimate, 11 % not excluded
        (0.02, 0.09, Regression.passed),  # slower for certain, and within the margin
        (-0.05, 0.05, Regression.passed),
        (-0.05, -0.01, Regression.passed),  # faster for certain, and not by the margin
        (-0.15, -0.08, Regression.passed),
        (-0.20, -0.10, Regression.improved),
    ],
)
def test_time_is_judged_by_where_its_whole_interval_lies(
    low: float, high: float, verdict: Regression
) -> None:
    found = timed(low, high)
    assert found.verdict is verdict
    assert (found.low, found.high) == pytest.approx((low, high))


def test_time_without_an_interval_is_inconclusive() -> None:
    ratio = Estimate(value=0.5, num=1, clusters=1)
    assert judge_time(ratio, 1.0, 2.0, Gate(), margin=0.1).verdict is Regression.inconclusive


def test_the_number_of_conversations_needed_grows_with_the_square_of_the_precision() -> None:
    """Half-width 0.2 and 0.1 from the margin: four times the conversations, three times more."""
    centre = math.exp(-(math.log1p(0.1) - 0.1))
    ratio = Estimate(value=centre, high=centre * math.exp(0.2), clusters=10)
    assert need_more_data(ratio, 0.1) == "needs about 30 more conversations to decide: --limit 40"
    near = Estimate(value=centre, high=centre * math.exp(0.102), clusters=10)
    assert need_more_data(near, 0.1) == "needs about 1 more conversation to decide: --limit 11"
    far = Estimate(value=centre, high=centre * math.exp(0.5), clusters=10)
    assert "more than 20 times" in need_more_data(far, 0.1)


# ---------------------------------------------------------------- decoders and runs


def measured(*verdicts: Regression) -> list[Measure]:
    plain = {"base": 1.0, "head": 1.0, "change": 0.0, "relative": True, "tolerance": 0.0}
    return [Measure(name="calls", verdict=verdict, **plain) for verdict in verdicts]  # type: ignore[arg-type]


def compared(
    *verdicts: Regression, invalid: tuple[str, ...] = (), fail: bool = False
) -> Comparison:
    gate = Gate(strict=fail)
    cells = tuple(CellRegression(cell=str(n), verdict=v) for n, v in enumerate(verdicts))
    return Comparison(
        base="a", head="b", gate=gate, cells=cells, how="", margin=None, invalid=invalid
    )


def test_the_worst_measure_decides_and_inconclusive_is_worse_than_improved() -> None:
    order = (Regression.regressed, Regression.inconclusive, Regression.improved, Regression.passed)
    for place, verdict in enumerate(order):
        assert worst(measured(*reversed(order[place:]))) is verdict
        assert compared(*reversed(order[place:])).verdict is verdict
    assert worst([]) is Regression.passed


def test_exit_codes_follow_the_worst_decoder() -> None:
    passed, gone = Regression.passed, Regression.not_comparable
    assert compared(passed, Regression.new).exit_code == Exit.DONE
    assert compared(passed, Regression.regressed, gone).exit_code == Exit.REGRESSION
    assert compared(passed, gone).exit_code == Exit.UNAVAILABLE
    assert compared().exit_code == Exit.UNAVAILABLE
    assert compared(passed, invalid=("head is INVALID",)).exit_code == Exit.INVALID
    assert compared(passed, Regression.inconclusive).exit_code == Exit.DONE
    assert compared(passed, Regression.inconclusive, fail=True).exit_code == Exit.INVALID
    assert compared(passed, fail=True).exit_code == Exit.DONE
