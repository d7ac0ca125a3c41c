"""The tails of latency as numbers, where there are enough waits to have a tail."""

from __future__ import annotations

import pandas as pd

from bench.extras.sections.durations import BETWEEN, FIRST, PERCENTILES, waits


def frame(*decoders: tuple[str, str, int]) -> pd.DataFrame:
    """Waits of 1 ms to n ms, as `latency_table` sums them up."""
    rows = [
        {"decoder": name, "wait": wait, "n": num, "percentile": p, "seconds": p * num / 1e5}
        for name, wait, num in decoders
        for p in PERCENTILES
    ]
    return pd.DataFrame(rows)


def test_p95_and_p99_are_shown_only_with_enough_measured_waits() -> None:
    table = waits(frame(("ar", FIRST, 20), ("ar", BETWEEN, 100), ("spec", FIRST, 19)))
    assert table is not None
    assert table.headings == (
        *("decoder", "TTFT p50", "TTFT p95", "TTFT p99", "TTFT n"),
        *(f"between chunks {name}" for name in ("p50", "p95", "p99", "n")),
    )
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["ar", "10.0", "19.0", "-", "20", "50.0", "95.0", "99.0", "100"],
        ["spec", "9.5", "-", "-", "19", "-", "-", "-", "0"],
    ]


def test_without_answers_timed_alone_there_is_no_table() -> None:
    assert waits(frame()) is None
