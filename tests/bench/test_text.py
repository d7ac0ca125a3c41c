"""One rounding for every number: qualities and shares, factors, changes, counts."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from bench.records.frames import csv_bytes
from bench.report.tables.table import number
from bench.text import change, counted, factor, name_lines, percent, shortened, shown_value


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *((0.0, "0.0 %"), (0.5, "50.0 %"), (0.5714, "57.1 %"), (1.0, "100.0 %")),
        *((0.999, "99.9 %"), (0.999569, "99.9 %"), (0.99999, "99.9 %"), (1.021, "102.1 %")),
        *((None, "-"), (math.nan, "-")),
    ],
)
def test_a_share_has_one_decimal_and_is_never_rounded_up_to_100_percent(
    share: float | None, text: str
) -> None:
    assert percent(share) == text
    assert percent(share, "") == text.removesuffix(" %")


def test_shares_that_must_be_distinguished_may_have_more_decimals() -> None:
    assert [percent(share, places=2) for share in (0.99957, 0.999996)] == ["99.96 %", "99.99 %"]


def test_factors_and_changes_have_a_unit_and_a_dash_for_unknown_values() -> None:
    assert [factor(value) for value in (2.517, 0.3, None, math.nan)] == ["2.52x", "0.30x", "-", "-"]
    assert [change(share) for share in (0.04, -0.469, 0.0)] == ["+4.0 %", "-46.9 %", "+0.0 %"]
    assert change(None) == change(math.nan) == "-"


def test_a_number_is_rounded_the_same_from_records_and_from_a_csv_file() -> None:
    """A CSV file has six digits, 3.17500 for 3.174996: rounding it once more gives 3.17 or 3.18."""
    for value in (3.174996, 3.175004, 0.9245004, 1.004999, 0.99949995):
        stored = float(csv_bytes(pd.DataFrame({"value": [value]})).split()[1])
        assert factor(value) == factor(stored)
        assert number(value) == number(stored)
        assert change(value) == change(stored)
        assert percent(value) == percent(stored)


def test_a_count_agrees_with_its_noun() -> None:
    assert [counted(num, "repeat") for num in (0, 1, 2)] == ["0 repeats", "1 repeat", "2 repeats"]
    assert counted(6, "family") == "6 families"
    assert counted(12345, "prompt") == "12,345 prompts"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(("", "none"), (None, "none"), ({}, "none"), ([], "none"), (0, "0"), (0.0, "0.0")),
        *((False, "false"), ("False", "False"), (("avx2", "sse"), "avx2, sse")),
    ],
)
def test_an_empty_setting_is_none_and_a_flag_is_as_in_toml(value: object, text: str) -> None:
    assert shown_value(value) == text


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("spec", ["spec"]),
        ("", []),
        ("examples/wrong.py:Unverified", ["examples/wrong.py:", "Unverified"]),
        ("AR greedy of a very long paper", ["AR greedy of a very", "long paper"]),
        ("a" * 30, ["a" * 20, "a" * 10]),
    ],
)
def test_a_name_breaks_between_its_parts(name: str, lines: list[str]) -> None:
    assert name_lines(name, 20) == lines
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    text = "".join(chr(97 + i % 26) for i in range(9_000))
    short = shortened(text, 4_000)
    head, left_out, tail = short.split("\n")
    assert (len(head), len(tail)) == (3_000, 1_000)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert left_out == "[… 5000 characters …]"
    assert shortened(text[:4_000], 4_000) == text[:4_000]
