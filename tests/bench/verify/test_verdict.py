"""From findings to one word a decoder, and to the exit code of an examination."""

from __future__ import annotations

import itertools

import pytest

from bench.errors import Exit
from bench.verify.verdict import CheckOutcome, Examination, Finding, VerifyReport


def examined(*outcomes: CheckOutcome, lossless: bool = True) -> Examination:
    findings = [Finding(check="c", outcome=outcome, text="", data={}) for outcome in outcomes]
    return Examination(decoder="x", lossless=lossless, findings=findings)


@pytest.mark.parametrize(
    ("outcomes", "lossless", "verdict"),
    [
        (("passed", "passed"), True, "lossless"),
        (("passed", "open"), True, "inconclusive"),
        (("passed", "open", "wrong"), True, "wrong"),
        (("passed", "measured"), True, "inconclusive"),
        ((), True, "inconclusive"),
        (("measured",), False, "lossy"),
        (("measured", "open"), False, "inconclusive"),
        ((), False, "inconclusive"),
    ],
)
def test_lossless_and_lossy_verdicts_need_findings_that_all_hold(
    outcomes: tuple[CheckOutcome, ...], lossless: bool, verdict: str
) -> None:
    assert examined(*outcomes, lossless=lossless).verdict == verdict


def test_the_exit_code_is_that_of_the_worst_decoder_in_any_order() -> None:
    right, lossy = examined("passed"), examined("measured", lossless=False)
    unsure, wrong = examined("open"), examined("wrong")

    def code(*subjects: Examination) -> Exit:
        return VerifyReport(examined=subjects, notes=(), facts={}).exit_code

    assert code(right, lossy) == Exit.DONE
    for subjects in itertools.permutations([right, lossy, unsure]):
        assert code(*subjects) == Exit.INVALID
    for subjects in itertools.permutations([right, unsure, wrong]):
        assert code(*subjects) == Exit.REGRESSION
