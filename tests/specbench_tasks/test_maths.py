"""Answers to mathematical questions: expressions are compared, in a process with limits."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from specbench_tasks import child, maths
from specbench_tasks.maths import (
    boxed,
    equal,
    final_number,
    one_number,
    same,
    unreadable,
)

GOLDS = r"""
p - q|\frac{14}{3}|9|\text{Evelyn}|42|27|90^\circ|3\sqrt{13}|4|2220|\frac{3}{56}|284|5|\sqrt{51}
6 - 5i|-50|\pi|\left( 3, \frac{\pi}{2} \right)|2k+2|(-\infty, 2) \cup (3, \infty)|x=5|\text{(C)}
\$32,\!348|11,\! 111,\! 111,\! 100|\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}|[-2,7]|1,-2
4210_{5}|\dfrac{1}{2}|.5|10\%|\frac43|5r^5|1 \pm \sqrt{19}|\left\{\frac{1}{2}, 3\right\}
\text{east}|y = 2x + 3|2516_8|18 \text{ cm}^2|\tan x|1,250|-\frac{35}{9}|x^3+3x-6|C|x \in [-2,7]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "gold", [gold for line in GOLDS.split("\n") for gold in line.split("|") if gold]
)
def test_a_gold_answer_of_math_is_right_and_a_different_answer_is_wrong(gold: str):
    assert not unreadable(gold)
    assert same(rf"So the answer is $\boxed{{{gold}}}$.", gold)
    assert same(f"The answer is ${gold}$.", gold)
    assert same(gold, gold)
    assert not same(r"\boxed{\frac{17}{31} z}", gold)
    assert not same("It is 1234567.", gold)


@pytest.mark.parametrize(
    ("said", "gold", "right"),
    [
        (r"\boxed{14/3}", r"\frac{14}{3}", True), ("So 0.75", r"\frac{3}{4}", True),
        (r"It is $\sqrt{20}$.", r"2\sqrt{5}", True), (r"\boxed{x=5}", "5", True),
        (r"\boxed{2\sqrt{5}}", "5", False), (r"So $x = 2\sqrt{5}$.", "5", False),
        ("The answer is -q + p", "p - q", True), ("p - q", "q", False),
        ("seat", r"\text{east}", False),
        (r"\boxed{seat}", r"\text{east}", False), ("He faces East.", r"\text{east}", True),
        (r"\boxed{[1,2)}", "[1,2]", False), (r"\boxed{-2, 1}", "1,-2", True),
        (r"first \boxed{1} then \boxed{2}", "2", True),
        (r"first \boxed{2} then \boxed{1}", "2", False),
        (r"\boxed{10\,000}", "10000", True), (r"The answer is $1\frac{1}{2}$", "1.5", True),
        (r"\boxed{50\%}", "50", True), (r"\boxed{C}", "(C)", True), (r"\boxed{B}", "(C)", False),
        ("the price is $5 and not $6", "6", True), (r"\(3 + 4 = 7\)", "7", True),
        (r"$2x+3$", "y = 2x + 3", True), ("#### 18", "18", True), ("18 dollars", "18", True),
        (r"\boxed{5\text{ apples}}", "5", True), (r"\boxed{3x}", "3", False),
        (r"$\frac{1}{2}$ of them, so 12 in all", "12", True), (r"\boxed{東京}", "東京", True),
        (r"\boxed{2√3}", r"2\sqrt{3}", True), (r"\boxed{2√3}", r"2\sqrt{5}", False),
        ("The answer is √(x + 1).", r"\sqrt{x+1}", True), ("x² + 1", "x^2 + 1", True),
        ("√12.5", r"\sqrt{12.5}", True),
        (r"\boxed{(−∞, 5]}", r"(-\infty, 5]", True), ("1 ± √19", r"1 \pm \sqrt{19}", True),
    ],
)  # fmt: skip
def test_answers_are_read_from_boxes_formulas_and_sentences(said: str, gold: str, right: bool):
    assert same(said, gold) is right


@pytest.mark.parametrize("gold", ["???", "2 + ", r"\frac{1", "-", "", "x is 3 where the y is 4"])
def test_gold_answers_that_no_answer_can_equal_are_unreadable(gold: str):
    assert unreadable(gold)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18", 18), ("$5", 5), ("18 dollars", 18), ("75%", 75), ("5 km/h", None), ("3x", None),
        ("3 - 4", None), ("x", None), ("(3, 4)", None), (r"\frac{3}{4}", 0.75),
        (r"-\frac34", -0.75),
        ("-7", -7), ("5kg", 5), ("\\$1{,}250", 1250), ("1 000 000", 1e6), ("#### 7", 7),
    ],
)  # fmt: skip
def test_one_number_is_read_only_from_a_text_that_holds_no_more_than_a_number_and_its_unit(
    text: str, number: float | None
):
    assert one_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1 000 000", 1e6), ("2,5", 2.5), ("½", 0.5), ("1½ cups", 1.5), ("2 ¾", 2.75), ("-½", -0.5),
        ("3\N{FRACTION SLASH}4", 0.75), ("1\N{NO-BREAK SPACE}250,5", 1250.5), ("0,125", 0.125),
        ("12\N{NARROW NO-BREAK SPACE}345 km", 12345), ("1.250,50 €", 1250.5), ("1.000.000", 1e6),
        ("1.000", 1), ("1,234", 1234), ("1,2,3", 3), ("10, 20,5", 20.5), ("-2,5", -2.5), ("٣", 3),
        ("٢٫٥", 2.5), ("1 250 3", 3), ("in 2020 100 people", 100), ("12 3456", 3456),
        ("0 100", 100),
        ("3 400 500 6", 6), ("10²", 10), ("1 000 000,75", 1000000.75), ("3.14,15", 15),
    ],
)  # fmt: skip
def test_numbers_are_read_as_other_countries_write_them(text: str, number: float):
    assert final_number(text) == number


def test_the_last_closed_box_counts():
    assert boxed(r"\boxed{a} \boxed{\frac{1}{2}} \boxed{3") == r"\frac{1}{2}"
    assert boxed(r"\boxed{3") is None


def test_comparing_an_endless_expression_times_out_and_the_next_comparison_works(
    tmp_path: Path, monkeypatch
):
    began = time.monotonic()
    with monkeypatch.context() as hurried:
        hurried.setattr(maths, "_CPU_S", 0)
        assert not equal("9^{9^{9^9}}", "9^{9^{9^8}}")
    assert time.monotonic() - began < 60
    assert equal("x + y", "y + x")


def test_text_is_never_run_as_code(tmp_path: Path):
    file = tmp_path / "there"
    for code in (f"__import__('os').system('touch {file}')", f"open('{file}', 'w')"):
        for text in (code, rf"\text{{{code}}}", rf"\operatorname{{{code}}}", f"x_{{{code}}}"):
            equal(text, text)
    assert not file.exists()


def test_a_forked_process_has_a_separate_child_process():
    assert equal("1 + x", "x + 1")
    ours = child._child("specbench_tasks.maths", os.getpid())
    assert child._child("specbench_tasks.maths", -1) is not ours
