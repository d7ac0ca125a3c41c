"""From findings to one word a decoder, and to the exit code of an examination."""

from __future__ import annotations

import itertools

import pytest

from bench.errors import Exit
from bench.verify.verdict import CheckOutcome, Examination, Finding, VerifyReport


def examined(*outcomes: CheckOutcome, lossless: bool = True, complete: bool = True) -> Examination:
    findings = [Finding(check="c", outcome=outcome, text="", data={}) for outcome in outcomes]
    return Examination(decoder="x", lossless=lossless, findings=findings, complete=complete)


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
def test_every_finding_must_hold_and_there_must_be_one(
    outcomes: tuple[CheckOutcome, ...], lossless: bool, verdict: str
) -> None:
    assert examined(*outcomes, lossless=lossless).verdict == verdict


def test_what_was_cut_short_is_inconclusive_unless_it_is_wrong_already() -> None:
    assert examined("passed", complete=False).verdict == "inconclusive"
    assert examined("measured", lossless=False, complete=False).verdict == "inconclusive"
    assert examined("passed", "wrong", complete=False).verdict == "wrong"


def test_the_exit_code_is_that_of_the_worst_decoder_wherever_it_stands() -> None:
    right, lossy = examined("passed"), examined("measured", lossless=False)
    unsure, wrong = examined("open"), examined("wrong")

    def code(*subjects: Examination, interrupted: bool = False) -> Exit:
        report = VerifyReport(examined=subjects, notes=(), facts={}, interrupted=interrupted)
        return report.exit_code

    assert code(right, lossy) == Exit.DONE
    for subjects in itertools.permutations([right, lossy, unsure]):
        assert code(*subjects) == Exit.INVALID
    for subjects in itertools.permutations([right, unsure, wrong]):
        assert code(*subjects) == Exit.REGRESSION
    assert code(wrong, interrupted=True) == Exit.INTERRUPTED
