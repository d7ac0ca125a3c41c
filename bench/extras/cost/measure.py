"""Time a model's calls by rows, sequences and context, for `bench cost`.

A cell is a merged call as decoders verify drafts: every row's logits are read. Each round measures
the machine's own rates and visits all cells, so that a drift of the machine affects all cells
alike. A visit warms up with one call and takes the median of the next few calls. Only
`Model.forward` is timed. An interrupted measurement writes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Self, TypeVar

from bench.errors import UsageError
from bench.extras.cost.curve import cost_table, with_readings
from bench.extras.cost.probes import Probe
from bench.extras.cost.records import CURVE, Calls, CostCell, CostFacts, read_facts, write_facts
from bench.machine.clock import Clock, Stopwatch
from bench.machine.usage import Load
from bench.measure.timing import frozen_garbage
from bench.progress import Progress
from bench.records.environment import Environment, read_environment, write_environment
from bench.records.files import cannot_write, write_bytes
from bench.records.frames import csv_bytes
from decoders.core.engine.models import Models
from decoders.core.model import Call, Model, Session

_PREFIX = 16
"""Number of tokens really fed. The rest of a cache is filled with copies of their states."""
_CALLS = 3
_LONG_ENOUGH_S = 0.3
"""A visit ends after `_CALLS` timed calls or this many seconds."""
_LOGIT_BYTES = 4 + 4
"""Bytes of a logit: a float32, and as many again while the logit is computed."""
_SHARE_OF_ROOM = 0.5
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSubject:
    """Hold a model and a machine, with the facts about both that the cost folder records.

    `room_bytes` is the free memory after the model is loaded; `lap` is `LoadWatch.lap`.
    """

    model: Model
    facts: CostFacts
    env: Environment
    clock: Clock
    probes: Sequence[Probe]
    room_bytes: float
    lap: Callable[[], Load] | None = None


def measure_cost(subject: CostSubject, folder: Path, progress: Progress) -> CostFacts:
    """Measure a model, unless `folder` has the measurement, and return its facts.

    Raises:
        BenchError: the folder holds a measurement of another model, grid or machine (exit 2), is
            damaged (4) or cannot be written (1).
    """
    if (before := read_facts(folder)) is not None:
        planned = [(f.work, f.grid, f.name, dict(f.target)) for f in (before, subject.facts)]
        machines = {env.comparability_key for env in (read_environment(folder), subject.env)}
        if planned[0] != planned[1] or len(machines) > 1:
            line = f"{folder} has a measurement of another model, grid or machine"
            raise UsageError(f"{line}; give another --folder")
        return before
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    calls = Calls()
    try:
        with frozen_garbage():
            _Measurement(subject, calls, progress).run()
    finally:
        progress.close()
    facts = with_readings(subject.facts, calls)
    write_bytes(folder / CURVE, csv_bytes(cost_table(facts, calls), "%.9g"))  # below 1 ns
    write_environment(folder, subject.env)
    write_facts(folder, facts)
    return facts


class Sequences:
    """Open sessions of a model, and fill their caches to the longest context of some cells.

    Keys and values are those of real tokens: memory that was never written is shared by the system
    and can be read faster than real memory.
    """

    def __init__(self, model: Model, cells: Collection[CostCell]) -> None:
        self._model = model
        (self._count,) = {cell.sequences for cell in cells}
        self._context = max(cell.context for cell in cells)
        self._capacity = max(cell.context + cell.rows for cell in cells)
        self._sessions: list[Session] = []

    def __enter__(self) -> Self:
        self._model.reserve(self._count, self._capacity)
        self._sessions = [self._model.open() for _ in range(self._count)]
        try:
            fed = min(_PREFIX, self._context)
            self._model.forward(
                [session.call(self._tokens(fed), read=()) for session in self._sessions]
            )
            for session in self._sessions:
                have = fed
                while have < self._context:
                    count = min(have, self._context - have)
                    self._model.gather(session, range(count), have)
                    have += count
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._sessions:
            self._model.close(self._sessions.pop())

    def _tokens(self, count: int) -> list[int]:
        return [(7 + 31 * index) % self._model.vocab_size for index in range(count)]

    def calls(self, cell: CostCell) -> list[Call]:
        """Make the calls of a cell, one per sequence."""
        for session in self._sessions:
            session.length = cell.context  # the cache is filled up to there
        return [
            session.call(self._tokens(cell.rows), output="logits", read=range(cell.rows))
            for session in self._sessions
        ]

    def timed(self, cell: CostCell, clock: Clock) -> float:
        """Return the seconds of one call, which is repeated if it compiled a graph."""
        models, calls = Models(target=self._model), self.calls(cell)
        before = models.num_graphs
        with Stopwatch(clock) as watch:
            self._model.forward(calls)
        return self.timed(cell, clock) if models.num_graphs > before else watch.total_s


class _Measurement:
    """Measure the grid in rounds, and add each result to `calls` at once."""

    def __init__(self, subject: CostSubject, calls: Calls, progress: Progress) -> None:
        self._subject, self._calls, self._progress = subject, calls, progress
        self._grid = subject.facts.grid

    def run(self) -> None:
        """Measure all rounds."""
        model, facts = self._subject.model, self._subject.facts
        room, left_out = self._subject.room_bytes * _SHARE_OF_ROOM, self._calls.left_out
        for cell in self._grid.cells:
            cache = cell.sequences * (cell.context + max(self._grid.rows)) * facts.work.token_bytes
            num_bytes = cache + cell.sequences * cell.rows * model.vocab_size * _LOGIT_BYTES
            if cell.context + cell.rows > model.max_length:
                left_out[cell] = f"beyond the model's {model.max_length} tokens"
            elif num_bytes > room:
                left_out[cell] = f"{num_bytes / 1e9:.1f} GB of memory"
        cells = [cell for cell in self._grid.cells if cell not in left_out]
        by_sequences = [list(g) for _, g in groupby(cells, key=lambda cell: cell.sequences)]
        self._progress.start("calls", len(cells) * self._grid.rounds)
        for number in range(self._grid.rounds):
            for probe in self._subject.probes:
                self._read(probe.rate, probe.per_second(self._subject.clock))
            for group in _in_order(by_sequences, number):
                self._visit_all(_in_order(group, number))
            other = None if self._subject.lap is None else self._subject.lap().other_cores
            if other is not None:
                self._read("other_cores", other)

    def _read(self, name: str, value: float) -> None:
        self._calls.readings.setdefault(name, []).append(value)

    def _visit_all(self, cells: Sequence[CostCell]) -> None:
        """Visit the cells of one number of sequences."""
        left_out = self._calls.left_out
        cells = [cell for cell in cells if cell not in left_out]
        if not cells:
            return
        with Sequences(self._subject.model, cells) as sequences:
            for cell in cells:
                if cell in left_out or (seconds := self._seconds(sequences, cell)) is None:
                    continue
                self._calls.seconds.setdefault(cell, []).append(seconds)
                self._progress.step(f"{cell}: {1e3 * seconds:.2f} ms")

    def _seconds(self, sequences: Sequences, cell: CostCell) -> float | None:
        """Return the median of a few calls, or None if the warm-up call takes too long."""
        clock, visited = self._subject.clock, self._calls.seconds
        first_s = sequences.timed(cell, clock)
        if first_s > self._grid.longest_s and cell not in visited:
            for other in self._grid.cells:
                if other.contains(cell) and other not in visited:
                    of = "its call" if other == cell else f"a call of {cell}"
                    self._calls.left_out.setdefault(other, f"{of} takes {first_s:.2g} s")
            return None
        times = [sequences.timed(cell, clock)]
        while len(times) < _CALLS and sum(times) < _LONG_ENOUGH_S:
            times.append(sequences.timed(cell, clock))
        return median(times)


def _in_order(items: Sequence[Item], number: int) -> list[Item]:
    """Keep ascending order in round 0, where small cells show which are too slow, else shuffle."""
    if number == 0:
        return list(items)
    return random.Random(f"cost {number}").sample(items, len(items))
