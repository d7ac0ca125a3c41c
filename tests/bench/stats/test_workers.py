"""What workers measured apart: floors, speed-ups and drift of each."""

from __future__ import annotations

import random
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from bench.extras.sections.estimators import by_part
from bench.records.record import SampleRecord, StepColumns
from bench.stats import times
from bench.stats.counters import group_by
from bench.stats.intervals import paired_speedup
from bench.stats.workers import Part, drifts, run_parts, trend

STEPS = StepColumns(
    emitted=(1, 9), drafted=(0, 0), accepted=(0, 0), target_calls=(1, 9), target_rows=(5, 9),
    draft_calls=(0, 0), draft_rows=(0, 0),
)  # fmt: skip
GROUPED: dict[str, Any] = {"ttft_s": None, "total_s": None}


def record(worker: str | None, decoder: str, block: int, prompt: int, seconds: float) -> Any:
    return SampleRecord(
        kind="timing", decoder=decoder, family="qa", conversation=f"c{prompt}", turn=1,
        prompt_hash=f"h{prompt}", repeat=block // 20, seed=0, block=block, order=0, attempt=0,
        batch_size=1, num_prompt_tokens=5, tokens=tuple(range(10)), steps=STEPS,
        ttft_s=seconds / 10, total_s=seconds, worker=worker, node="ab",
    )  # fmt: skip


def measured(pace: Any, floor: Any = lambda worker: 1.0) -> list[SampleRecord]:
    """60 blocks of 20 prompts of unlike lengths, dealt to two workers at random."""
    draw, records = random.Random(0), []
    for block in range(60):
        worker, prompt = draw.choice(["w0", "w1"]), block * 7 % 20
        second = (1 + prompt) * pace(worker, block) * draw.uniform(0.98, 1.02)
        for decoder, factor in (("ar", 1.0), ("ar@aa", 1 / floor(worker)), ("spec", 0.5)):
            noisy = second * factor * draw.uniform(0.98, 1.02)
            records.append(record(worker, decoder, block, prompt, noisy))
    return records


def speedup(part: Part, decoder: str) -> float:
    value = paired_speedup(part.units["ar"], part.units[decoder]).value
    assert value is not None
    return value


def test_a_worker_that_becomes_slower_drifts_and_a_constantly_slow_worker_does_not() -> None:
    steady = measured(lambda worker, block: 1.5 if worker == "w0" else 1.0)
    assert all(
        abs(d or 1.0) < 0.05 for d in drifts(group_by(steady, attrgetter("worker"))).values()
    )
    slower = measured(lambda worker, block: 1 + 0.4 * block / 60 if worker == "w1" else 1.0)
    found = drifts(group_by(slower, attrgetter("worker")))
    assert (found["w1"] or 0.0) > 0.15
    assert abs(found["w0"] or 0.0) < 0.1


def test_each_worker_has_its_own_floor_and_speed_ups() -> None:
    parts = run_parts(measured(lambda *_: 1.0, lambda w: 1.2 if w == "w1" else 1.0), "worker")
    assert [part.name for part in parts] == ["w0", "w1"]
    assert sum(part.num_blocks for part in parts) == 60
    assert [part.floor.value for part in parts] == [
        pytest.approx(1.0, abs=0.02),
        pytest.approx(1.2, abs=0.02),
    ]
    assert [part.floor.differs_from_one for part in parts] == [False, True]
    assert all(speedup(part, "spec") == pytest.approx(2, abs=0.03) for part in parts)
    table = by_part("worker", parts, ["ar", "spec"])
    assert table is not None
    assert [row[0].text for row in table.rows] == ["w0", "w1"]
    assert [row[3].bad for row in table.rows] == [False, True]


def test_one_process_has_no_workers_and_few_blocks_have_no_drift() -> None:
    assert run_parts([record(None, "ar", 0, 0, 1.0)], "worker") == []
    assert by_part("worker", [], ["ar"]) is None
    few = [r for r in measured(lambda *_: 1.0) if r.block < 10]
    assert all(part.drift is None for part in run_parts(few, "worker"))


def test_times_of_two_machines_are_listed_by_machine_and_not_pooled() -> None:
    records = [
        replace(r, machine="fast" if r.block % 2 else "slow") for r in measured(lambda *_: 1.0)
    ]
    ar = [r for r in records if r.decoder == "ar"]
    assert times.timed_units(ar) == []
    assert times.ttft_s(ar) is None
    assert len(times.timed_units(r for r in ar if r.machine == "fast")) == 30
    parts = run_parts(records, "machine")
    assert [part.name for part in parts] == ["fast", "slow"]
    assert all(speedup(part, "spec") == pytest.approx(2, abs=0.05) for part in parts)
    table = by_part("machine", parts, ["ar", "spec"])
    assert table is not None
    assert table.headings[0] == "machine"
    same = [replace(r, machine="one") for r in records]
    assert by_part("machine", run_parts(same, "machine"), ["ar", "spec"]) is None
    assert len(times.timed_units(r for r in same if r.decoder == "ar")) == 60


def test_drift_of_a_worker_compares_equal_prompts_or_without_repeats_uses_the_trend() -> None:
    repeated = measured(lambda worker, block: 1 + 0.4 * block / 60 if worker == "w1" else 1.0)
    by_worker = group_by(repeated, attrgetter("worker"))
    same_prompt = drifts(by_worker)
    assert {p.name: p.drift for p in run_parts(repeated, "worker")} == same_prompt
    assert same_prompt["w1"] != trend(by_worker["w1"])
    once = [
        record(f"w{block % 2}", arm, block, block, 1 + (block % 2) * 0.4 * block / 80)
        for block in range(80)
        for arm in ("ar", "ar@aa")
    ]
    steady, slower = (part.drift for part in run_parts(once, "worker"))
    assert steady == 0
    assert slower is not None
    assert slower > 0.15


def test_a_failed_answer_of_a_batch_is_no_drift() -> None:
    """Fewer tokens in the same seconds are no slower token."""
    whole = [
        replace(record(None, arm, block, 2 * block + i, 1.0), batch_size=2, group_s=1.0, **GROUPED)
        for block in range(40)
        for arm in ("ar", "ar@aa")
        for i in range(2)
    ]
    failed = [
        replace(r, error="boom", tokens=None, steps=None, group_s=None)
        if r.block >= 20 and r.conversation == f"c{2 * r.block + 1}"
        else r
        for r in whole
    ]
    assert trend(whole) == trend(failed) == 0


def test_each_column_of_a_workers_table_holds_the_speed_ups_of_its_decoder() -> None:
    quick = [
        replace(r, decoder="ptp", total_s=r.total_s / 2)
        for r in measured(lambda *_: 1.0)
        if r.decoder == "spec" and r.total_s is not None
    ]
    records = [*measured(lambda *_: 1.0), *quick]
    parts = run_parts(records, "worker")
    table = by_part("worker", parts, ["ar", "spec", "ptp"])
    assert table is not None
    for row, part in zip(table.rows, parts, strict=True):
        cells = dict(zip(table.headings, row, strict=True))
        for decoder in ("spec", "ptp"):
            assert cells[decoder].text.startswith(f"{speedup(part, decoder):.2f}x"), decoder
    assert speedup(parts[0], "ptp") == pytest.approx(4, rel=0.05)
    assert speedup(parts[0], "spec") == pytest.approx(2, rel=0.05)
