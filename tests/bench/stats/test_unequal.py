"""Answers that differ from the baseline's: how many tokens were equal, and where they parted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.records.plan import Cell
from bench.stats.answers import Compared, compare_with_baseline


@pytest.mark.parametrize(
    ("answer", "equal"),
    [
        ((1, 2, 3, 4, 5), 5),
        ((1, 2, 9, 4, 5), 2),
        ((9, 2, 3, 4, 5), 0),
        ((1, 2), 2),  # it ended early: the baseline's other three are lost
        ((1, 9), 1),
        ((1, 2, 3, 4, 5, 6, 7), 5),  # it went on: none of the baseline's is lost
        ((1, 2, 3, 9, 9, 9, 9), 3),
    ],
)
def test_equal_tokens_are_counted_up_to_the_first_difference(
    answer: tuple[int, ...], equal: int
) -> None:
    same, expected = (7, 8, 9), (1, 2, 3, 4, 5)
    other = ("first", (4,), (5,), 0)  # one token, and it differs
    pairs = (other, ("same", same, same, 0), ("asked", answer, expected, 0))
    found = Compared(cell="spec", pairs=pairs).difference(0, ())
    assert found.num_tokens == 9
    assert found.num_equal == 3 + equal
    assert found.num_answers == (1 if answer == expected else 2)


def test_only_cells_that_guarantee_ars_tokens_are_compared(record: Callable[..., Any]) -> None:
    cells = [
        Cell(cell="ar", lossless=True, comparable_to_ar=True),
        Cell(cell="lossy", lossless=False, comparable_to_ar=True),
        Cell(cell="drawn", lossless=True, comparable_to_ar=False),
        Cell(cell="exact", lossless=True, comparable_to_ar=True),
    ]
    records = [record(cell.cell, tokens=(len(cell.cell),)) for cell in cells]
    (found,) = compare_with_baseline(cells, records)
    assert found == Compared(cell="exact", pairs=(("c0#1", (5,), (2,), 0),))
