from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from bench.extras.cost.curve import load_cost
from bench.extras.cost.measure import CostSubject, measure_cost
from bench.extras.cost.probes import Probe, make_probes
from bench.extras.cost.records import (
    CURVE,
    CallWork,
    CostCell,
    CostFacts,
    Grid,
)
from bench.progress import Progress
from bench.records.environment import Environment
from decoders.core.model import Session
from tests.fake_clock import FakeClock

GRID = Grid(rows=(1, 4), sequences=(1, 2), contexts=(20, 50), rounds=6, longest_s=10.0)
WORK = CallWork(weight_bytes=10**6, token_bytes=1000, row_flops=10, pair_flops=1)


def truth(cell):
    return 0.01 + 0.002 * cell.rows * cell.sequences + 1e-5 * cell.context * cell.sequences


class TimedModel:
    """A model whose calls take what `truth` says; it refuses to read what was never written."""

    vocab_size, max_length = 11, 100

    def __init__(self, clock, stop_after=None):
        self.clock, self.stop_after = clock, stop_after
        self.sessions, self.written, self.cells = [], {}, []

    def reserve(self, num_rows, capacity):
        assert not self.sessions
        self.num_rows, self.capacity = num_rows, capacity

    def open(self):
        session = Session(cast(Any, self), len(self.sessions), self.capacity)
        self.sessions.append(session)
        self.written[session] = set()
        return session

    def close(self, session):
        self.sessions.remove(session)

    def gather(self, session, sources, start):
        assert set(sources) <= self.written[session]
        self.written[session] |= set(range(start, start + len(sources)))

    def forward(self, calls):
        first = calls[0]
        for call in calls:
            assert set(range(call.session.length)) <= self.written[call.session]
            stop = call.session.length + call.num_rows
            self.written[call.session] |= set(range(call.session.length, stop))
        if first.read:
            if self.stop_after is not None and len(self.cells) >= self.stop_after:
                raise KeyboardInterrupt
            cell = CostCell(rows=first.num_rows, sequences=len(calls), context=first.session.length)
            self.cells.append(cell)
            self.clock.advance(truth(cell))
        for call in calls:
            call.session.committed(call)


def subject(grid=GRID, stop_after=None, room_bytes=1e9):
    clock = FakeClock()
    model = TimedModel(clock, stop_after)
    return CostSubject(
        model=cast(Any, model),
        facts=CostFacts(name="made up", work=WORK, grid=grid),
        env=Environment(schema=1, comparability_key="here"),
        clock=clock,
        probes=[Probe(rate="bandwidth", amount=100.0, run=lambda: clock.advance(2.0))],
        room_bytes=room_bytes,
    )


def left_out(folder):
    rows = load_cost(folder).table.dropna(subset="left_out").to_dict("records")
    axes = ("rows", "sequences", "context")
    return {CostCell(**{axis: row[axis] for axis in axes}): row["left_out"] for row in rows}


def test_measured_cell_times_and_bandwidth_equal_the_true_ones(tmp_path: Path):
    facts = measure_cost(subject(), tmp_path, Progress())
    cost = load_cost(tmp_path)
    assert cost.curve.points == pytest.approx({cell: truth(cell) for cell in GRID.cells})
    assert (cost.table["rounds"] == GRID.rounds).all()
    assert facts == cost.facts
    assert facts.bandwidth is not None
    assert facts.bandwidth.value == pytest.approx(50)
    row = cost.table[(cost.table["rows"] == 4) & (cost.table["sequences"] == 2)].iloc[0]
    assert row["memory_s"] == pytest.approx((10**6 + 2 * 24 * 1000) / 50)


def test_every_round_visits_all_cells_in_varying_order(tmp_path: Path):
    measured = subject()
    measure_cost(measured, tmp_path, Progress())
    visited = [cell for cell, _ in groupby(measured.model.cells)]  # a visit is several calls
    num = len(GRID.cells)
    rounds = [visited[start : start + num] for start in range(0, len(visited), num)]
    assert rounds[0] == GRID.cells
    assert len(rounds) == GRID.rounds
    assert all(sorted(cells) == GRID.cells for cells in rounds)
    assert len({tuple(cells) for cells in rounds}) > 1


def test_an_interrupted_measurement_is_not_written_and_a_finished_one_is_not_overwritten(
    tmp_path: Path,
):
    with pytest.raises(KeyboardInterrupt):
        measure_cost(subject(stop_after=77), tmp_path, Progress())
    assert not list(tmp_path.iterdir())
    facts = measure_cost(subject(), tmp_path, Progress())
    before = (tmp_path / CURVE).read_bytes()
    again = subject()
    assert measure_cost(again, tmp_path, Progress()) == facts
    assert again.model.cells == []
    assert (tmp_path / CURVE).read_bytes() == before


def test_a_call_over_the_time_limit_is_tried_once_and_larger_calls_are_skipped(tmp_path: Path):
    slow = CostCell(rows=4, sequences=1, context=50)
    tried = subject(replace(GRID, longest_s=truth(slow) - 1e-6))
    facts = measure_cost(tried, tmp_path, Progress())
    cost = load_cost(tmp_path)
    expected = {cell for cell in GRID.cells if truth(cell) < facts.grid.longest_s}
    assert set(cost.curve.points) == expected
    assert tried.model.cells.count(slow) == 1
    assert CostCell(rows=4, sequences=2, context=50) not in tried.model.cells
    assert "takes 0.0" in left_out(tmp_path)[slow]


def test_cells_beyond_the_models_context_or_the_memory_are_left_out_with_the_reason(tmp_path: Path):
    grid = replace(GRID, contexts=(20, 97))
    # the cache of two sequences of 97 + 4 tokens takes 202 kB, twice the room
    measure_cost(subject(grid, room_bytes=210_000), tmp_path, Progress())
    assert left_out(tmp_path) == {
        CostCell(rows=4, sequences=1, context=97): "beyond the model's 100 tokens",
        CostCell(rows=4, sequences=2, context=97): "beyond the model's 100 tokens",
        CostCell(rows=1, sequences=2, context=97): "0.0 GB of memory",
    }


def test_no_measured_time_includes_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiled = subject()
    model, kinds = compiled.model, set()
    plain = model.forward

    def forward(calls):
        plain(calls)
        if (kind := (len(calls), calls[0].num_rows)) not in kinds:
            kinds.add(kind)
            compiled.clock.advance(100.0)

    monkeypatch.setattr(model, "forward", forward)
    monkeypatch.setattr(TimedModel, "num_graphs", property(lambda _: len(kinds)), raising=False)
    measure_cost(compiled, tmp_path, Progress())
    assert load_cost(tmp_path).curve.points == pytest.approx({c: truth(c) for c in GRID.cells})
    assert kinds


def test_probes_read_every_matrix_once_and_count_the_bytes_read():
    cpu, bytes_of = torch.device("cpu"), 1024**2 * 4
    probes = make_probes(2 * bytes_of, dtype=torch.float32, device=cpu, room_bytes=4 * 5 * bytes_of)
    assert [probe.rate for probe in probes] == ["bandwidth", "matrix_rate"]
    assert probes[0].amount == 2 * bytes_of
    clock = FakeClock(step_s=0.5)
    assert probes[0].per_second(clock) == 2 * bytes_of / 0.5
    whole = make_probes(10**12, dtype=torch.float32, device=cpu, room_bytes=4 * bytes_of)
    assert whole[0].amount == bytes_of  # a quarter of the room
