"""What single cells and notes of the tables say, by rows whose numbers are known."""

from __future__ import annotations

from typing import Any

import pytest

from bench.report.tables.main import basis, floor_sentence
from bench.report.tables.table import quality, speed, step_length
from bench.stats.intervals import Estimate
from bench.stats.metrics import SummaryRow


def row(**values: Any) -> SummaryRow:
    plain: dict[str, Any] = {"decoder": "spec", "family": "all", "batch_size": 1}
    return SummaryRow(**(plain | values))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"pairs": 1, "repeats": 1, "clusters": 1}, "n = 1 prompt x 1 repeat in 1 cluster, no"),
        ({"pairs": 8, "repeats": 3, "clusters": 4}, "n = 8 prompts x 3 repeats in 4 clusters"),
        ({"pairs": 0, "repeats": 0, "clusters": 0}, "n = 0: no prompt was timed with ar"),
        (
            {"pairs": 2, "repeats": 1, "clusters": 2, "batch_size": 4, "pairs_dropped": 1},
            "n = 2 groups of prompts x 1 repeat in 2 clusters, 1 pair dropped for errors",
        ),
        (
            {"pairs": 1, "repeats": 1, "clusters": 1, "pairs_decode": 0},
            "n = 1 prompt x 1 repeat in 1 cluster, none for the decode speed-up (all ended in "
            "their first step), no interval from one conversation (raise --limit)",
        ),
    ],
)
def test_the_basis_of_a_row_is_worded_for_zero_one_and_several_prompts(
    values: dict[str, Any], text: str
) -> None:
    assert basis(row(**values)).startswith(text)


def test_a_quality_just_below_100_percent_is_not_rounded_up() -> None:
    cell = quality(row(quality=0.999569, quality_low=0.9987, quality_high=1.0))
    assert cell.text == "99.9 [99.9, 100.0]"


@pytest.mark.parametrize(
    ("ends", "floor", "bold"),
    [
        ((1.02, 1.10), (1.0, 0.98, 1.02), True),
        ((0.99, 1.13), (1.0, 0.98, 1.02), False),
        ((1.02, 1.10), (0.97, 0.92, 1.01), False),  # noise reaches as far to the other side
        ((1.02, 1.10), (None, None, None), True),
        ((None, None), (1.0, 0.98, 1.02), False),
    ],
)
def test_a_speed_up_is_bold_only_if_its_interval_excludes_1_and_it_exceeds_the_noise(
    ends: tuple[float | None, ...], floor: tuple[float | None, ...], bold: bool
) -> None:
    noise = dict(zip(("aa_speedup", "aa_low", "aa_high"), floor, strict=True))
    low, high = ends
    assert speed(row(speedup=1.06, speedup_low=low, speedup_high=high, **noise)).bold is bold


def test_the_noise_floor_is_printed_with_the_precision_of_the_speed_ups() -> None:
    said = floor_sentence(Estimate(value=0.9964, low=0.981, high=1.0123, num=8), "ar")
    assert "measures 1.00x [0.98, 1.01], n = 8" in said
    assert floor_sentence(Estimate(), "ar").endswith(
        "unknown (no answers of ar and its second arm can be compared)."
    )


def test_an_unknown_step_length_is_printed_as_a_dash_without_brackets() -> None:
    assert step_length(row(guarantee="none")).text == "-"
    assert step_length(row(guarantee="none", acceptance_length=2.5)).text == "(2.50)"
