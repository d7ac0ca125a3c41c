"""The first sentence of a report says neither more nor less than the intervals do."""

from typing import Any

import pandas as pd
import pytest

from bench.report.conclusion import conclusion
from bench.stats.summary_row import COLUMNS


def summary(*rows: dict[str, Any]) -> pd.DataFrame:
    ar = {"decoder": "ar", "guarantee": "same tokens", "speedup": 1.0, "quality": 0.998}
    plain = {"family": "all", "pairs": 28, "batch_size": 1}
    frame = pd.DataFrame([plain | row for row in (ar, *rows)], columns=list(COLUMNS))
    return frame.astype(COLUMNS)


def row(decoder: str, speedup: float, low: float | None, high: float | None, **more: Any) -> Any:
    promise = {"guarantee": "same tokens"}
    return {"decoder": decoder, "speedup": speedup, "speedup_low": low, "speedup_high": high} | (
        promise | more
    )


def test_the_fastest_with_a_guarantee_comes_first_and_then_the_fastest_without() -> None:
    said = conclusion(
        summary(
            row("spec", 1.6, 1.5, 1.7),
            row("ptp", 2.52, 2.14, 2.97),
            row("idlm", 1.5, 1.2, 1.9, guarantee="none", quality=0.98),
            row("nar", 5.93, 5.58, 6.31, guarantee="none", quality=0.58),
        )
    )
    assert said == (
        "ptp is 2.52 times as fast as ar (95 % interval [2.14, 2.97], 28 prompts) and keeps its "
        "very tokens: the fastest of 2 with a guarantee. nar, which guarantees nothing, is 5.93 "
        "times as fast as ar (95 % interval [5.58, 6.31], 28 prompts) at quality 58.0 % "
        "(ar: 99.8 %)."
    )


def test_a_decoder_of_the_same_distribution_is_not_said_to_keep_tokens() -> None:
    said = conclusion(summary(row("spec", 2.0, 1.5, 2.5, guarantee="same distribution")))
    assert said.endswith("28 prompts) and keeps its distribution.")


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.3), (None, None), (1.0, 1.3), (0.7, 0.9)])
def test_a_speedup_that_is_not_shown_is_not_claimed(low: Any, high: Any) -> None:
    said = conclusion(summary(row("spec", 1.1, low, high), row("ptp", 0.5, 0.4, 0.6)))
    assert said.startswith(
        "No decoder with a guarantee is shown to be faster than ar: the fastest of 2, spec "
        "measures 1.10 times as fast as ar ("
    )
    assert ("interval" in said) == (low is not None)


def test_a_wrong_decoder_is_named_and_never_the_fastest() -> None:
    said = conclusion(summary(row("fast", 9.0, 8.0, 10.0, guarantee="WRONG")))
    assert said == "fast claims to be lossless and is not."


def test_groups_of_prompts_are_called_so() -> None:
    assert "7 groups)" in conclusion(summary(row("spec", 2.0, 1.5, 2.5, batch_size=4, pairs=7)))


def test_a_run_of_the_baseline_alone_concludes_nothing() -> None:
    assert conclusion(summary()) == "Nothing was compared with ar."
    assert conclusion(summary().iloc[:0]) == "Nothing was compared with ar."
