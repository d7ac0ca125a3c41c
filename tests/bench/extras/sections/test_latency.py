"""Waits for tokens against hand-made step times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench.extras.sections.durations import (
    BETWEEN,
    FIRST,
    PERCENTILES,
    between_chunks_s,
    latency_table,
)
from bench.records.record import SampleRecord

Make = Callable[..., SampleRecord]


def timed(record: Make, emitted: Sequence[int], ends: Sequence[float], **fields: Any) -> Any:
    made = record("spec", emitted, ttft_s=ends[0], **fields)
    assert made.steps is not None
    return dataclasses.replace(made, steps=dataclasses.replace(made.steps, ended_s=tuple(ends)))


def test_the_time_of_a_step_without_tokens_counts_for_the_next_chunk(record: Make) -> None:
    answer = timed(record, (1, 2, 0, 3), (0.5, 0.7, 0.8, 1.1))
    assert between_chunks_s(answer) == pytest.approx([0.2, 0.4])
    assert between_chunks_s(record("spec", (1, 2))) == []


def test_percentiles_are_measured_waits_without_interpolation(record: Make) -> None:
    answers = [
        timed(record, (1, 1, 1), (0.1, 0.2, 0.4)),
        timed(record, (1, 1), (0.3, 0.8), conversation="c1"),
        timed(record, (1, 1), (9.0, 99.0), kind="quality"),
        record("spec", error="boom"),
    ]
    table = latency_table(answers, ["ar", "spec"])
    assert set(table["decoder"]) == {"spec"}
    assert len(table) == 2 * len(PERCENTILES)
    waits = {what: table[table["wait"] == what] for what in (FIRST, BETWEEN)}
    assert set(waits[FIRST]["n"]) == {2}
    assert set(waits[BETWEEN]["n"]) == {3}
    between = dict(zip(waits[BETWEEN]["percentile"], waits[BETWEEN]["seconds"], strict=True))
    # 0.1, 0.2, 0.5: a third of them each
    expected = {0: 0.1, 33: 0.1, 34: 0.2, 66: 0.2, 67: 0.5, 99.9: 0.5, 100: 0.5}
    assert {p: between[p] for p in expected} == pytest.approx(expected)
    first = dict(zip(waits[FIRST]["percentile"], waits[FIRST]["seconds"], strict=True))
    assert (first[50], first[51]) == (0.1, 0.3)


def test_batched_answers_have_no_waits(record: Make) -> None:
    grouped = record("spec", batch_size=2, ttft_s=None, total_s=None, group_s=1.0)
    assert latency_table([grouped], ["spec"]).empty
