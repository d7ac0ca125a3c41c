"""Times of a model's calls by rows, sequences and context, for `bench cost`.

A cell is a merged call as verifying decoders make it: every row's logits are read. Rounds go over
all cells, the machine's own rates between them, so that a machine that drifts drifts in all of
them; in a visit one call warms up and the median of a few counts. Only `Model.forward` is timed.
Every line is written at once: a stopped measurement goes on where it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TypeVar

from bench.errors import UnavailableError, UsageError
from bench.machine.clock import Clock
from bench.machine.load import Load
from bench.measure.call_times import Sequences, timed
from bench.measure.probes import Probe
from bench.measure.timing import frozen_garbage
from bench.progress import Progress
from bench.records.cost import (
    CALLS,
    CURVE,
    Calls,
    CostCell,
    CostFacts,
    LeftOut,
    Reading,
    Visit,
    event_of,
    read_facts,
    same_plan,
    write_facts,
)
from bench.records.environment import Environment, read_environment, write_environment
from bench.records.files import SampleWriter, cannot_write, only_writer, remove_scratch, write_bytes
from bench.stats.cost_curve import csv_of, table_of, with_readings
from decoders.core.model import Model
from decoders.core.types import Call

_CALLS = 3
_LONG_ENOUGH_S = 0.3
"""A visit makes so many calls, or takes so long."""
_LOGIT_BYTES = 4 + 4
"""Bytes of a logit: as float32, and once more while it is made."""
_SHARE_OF_ROOM = 0.5
Item = TypeVar("Item")
Replayer = Callable[[Sequence[Call]], Callable[[], object]]
"""Makes a call, and returns a function that does its work again (`HFModel.replay`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, the machine, and how both are known to the cost folder.

    `replayer` is None where nothing can be replayed: `facts` say why. `room_bytes` is the memory
    that is free once the model is loaded; `lap` is `LoadWatch.lap`.
    """

    model: Model
    facts: CostFacts
    env: Environment
    clock: Clock
    probes: Sequence[Probe]
    room_bytes: float
    replayer: Replayer | None = None
    lap: Callable[[], Load] | None = None


def measure_cost(subject: Subject, folder: Path, progress: Progress) -> CostFacts:
    """Measure what `folder` lacks; return the facts of all that is then there.

    Raises:
        BenchError: it holds another measurement (exit 2) or one of another machine (5), is damaged
            (4) or cannot be written (1); another process writes to it (5).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    with only_writer(folder):
        remove_scratch(folder)
        _begin(subject, folder)
        facts = subject.facts
        try:
            with SampleWriter(folder, name=CALLS) as writer, frozen_garbage():
                no_replay = _Measurement(subject, Calls.read(folder), writer, progress).run()
            facts = replace(facts, no_replay=no_replay)
        finally:
            progress.close()
            facts = _conclude(facts, folder)
    return facts


def _begin(subject: Subject, folder: Path) -> None:
    """Write the plan, or check that it is the one that the folder was begun with."""
    before = read_facts(folder)
    if before is None:
        write_environment(folder, subject.env)
        write_facts(folder, subject.facts)
        return
    if not same_plan(before, subject.facts):
        line = f"{folder} holds a measurement of another model or grid; give another --folder"
        raise UsageError(line)
    if read_environment(folder).comparability_key != subject.env.comparability_key:
        line = f"{folder} was begun on another machine or setup; give another --folder"
        raise UnavailableError(line)


def _conclude(facts: CostFacts, folder: Path) -> CostFacts:
    """Write what follows from the lines of `folder`, complete or not."""
    calls = Calls.read(folder)
    visited = {(visit.cell, visit.round) for visit in calls.visits}
    left_out = {each.cell for each in calls.left_out} - {cell for cell, _ in visited}
    read = {(reading.what, reading.round) for reading in calls.readings}
    rates = ["memory_bandwidth", *(["replay"] if facts.no_replay is None else [])]
    rounds = range(facts.grid.rounds)
    wanted = {(c, number) for c in facts.grid.cells if c not in left_out for number in rounds}
    complete = wanted <= visited and {(what, number) for what in rates for number in rounds} <= read
    facts = replace(with_readings(facts, calls), complete=complete)
    write_bytes(folder / CURVE, csv_of(table_of(facts, calls)))
    write_facts(folder, facts)
    return facts


class _Measurement:
    """Goes over the grid in rounds; what `done` holds is not measured again."""

    def __init__(
        self, subject: Subject, done: Calls, writer: SampleWriter, progress: Progress
    ) -> None:
        self._subject, self._writer, self._progress = subject, writer, progress
        self._grid = subject.facts.grid
        self._visited = {(visit.cell, visit.round) for visit in done.visits}
        self._reached = {cell for cell, _ in self._visited}
        self._left_out = {each.cell for each in done.left_out} - self._reached
        self._read = {(reading.what, reading.round) for reading in done.readings}

    def run(self) -> str | None:
        """Measure all rounds, then the replay; return why there is none of it, if so."""
        self._leave_out_what_cannot_be()
        wanted = [cell for cell in self._grid.cells if cell not in self._left_out]
        by_sequences = [list(g) for _, g in groupby(wanted, key=lambda cell: cell.sequences)]
        total, done = len(wanted) * self._grid.rounds, len(self._visited)
        self._progress.start("calls", total, min(done, total))
        for number in range(self._grid.rounds):
            self._read_machine(number)
            before = len(self._visited)
            for group in _in_order(by_sequences, number):
                self._visit_all(_in_order(group, number), number)
            if len(self._visited) > before:
                self._read_load(number)
        try:
            self._replay()
        except (RuntimeError, ValueError) as error:  # what compilers raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return f"capturing a call failed: {lines[0]}"
        return self._subject.facts.no_replay

    def _write(self, entry: Visit | LeftOut | Reading) -> None:
        kind, fields = event_of(entry)
        self._writer.event(kind, **fields)

    def _leave_out_what_cannot_be(self) -> None:
        """Leave out cells that the model's context or the memory do not hold."""
        model, facts = self._subject.model, self._subject.facts
        room = self._subject.room_bytes * _SHARE_OF_ROOM
        for cell in self._grid.cells:
            if cell in self._left_out | self._reached:
                continue
            cache = cell.sequences * (cell.context + max(self._grid.rows)) * facts.work.token_bytes
            needed = cache + cell.total_rows * model.vocab_size * _LOGIT_BYTES
            if cell.context + cell.rows > model.max_length:
                self._leave_out(cell, f"beyond the model's {model.max_length} tokens")
            elif needed > room:
                self._leave_out(cell, f"{needed / 1e9:.1f} GB of memory")

    def _leave_out(self, cell: CostCell, reason: str) -> None:
        self._left_out.add(cell)
        self._write(LeftOut(cell=cell, reason=reason))

    def _read_machine(self, number: int) -> None:
        for probe in self._subject.probes:
            if not {(what, number) for what in probe.what} <= self._read:
                value = probe.per_second(self._subject.clock)
                for what in probe.what:
                    self._keep_reading(what, number, value)

    def _read_load(self, number: int) -> None:
        """Keep what else the machine did in a round, of which some was measured just now."""
        other = None if self._subject.lap is None else self._subject.lap().other_cores
        if other is not None and ("other_cores", number) not in self._read:
            self._keep_reading("other_cores", number, other)

    def _keep_reading(self, what: str, number: int, value: float) -> None:
        self._read.add((what, number))
        self._write(Reading(what=what, round=number, value=value))

    def _visit_all(self, cells: Sequence[CostCell], number: int) -> None:
        """Visit the cells of one number of sequences."""
        missing = [c for c in cells if (c, number) not in self._visited and c not in self._left_out]
        if not missing:
            return
        with Sequences(self._subject.model, missing) as sequences:
            for cell in missing:
                if cell in self._left_out:
                    continue
                seconds = self._seconds(sequences, cell)
                if seconds is None:
                    continue
                self._visited.add((cell, number))
                self._reached.add(cell)
                self._write(Visit(cell=cell, round=number, seconds=seconds))
                self._progress.step(f"{cell}: {1e3 * seconds:.2f} ms")
        self._writer.sync()

    def _seconds(self, sequences: Sequences, cell: CostCell) -> float | None:
        """Return the median of a few calls after one that warms up; None: it takes too long."""
        clock = self._subject.clock
        first_s = sequences.timed(cell, clock)
        if cell not in self._reached and first_s > self._grid.longest_s:
            for other in self._grid.cells:
                if other.contains(cell) and other not in self._left_out | self._reached:
                    of = "its call" if other == cell else f"a call of {cell}"
                    self._leave_out(other, f"{of} takes {first_s:.2g} s")
            return None
        times = [sequences.timed(cell, clock)]
        while len(times) < _CALLS and sum(times) < _LONG_ENOUGH_S:
            times.append(sequences.timed(cell, clock))
        return median(times)

    def _replay(self) -> None:
        """Time the smallest call by turns as ever and as a replay, round by round."""
        subject = self._subject
        rounds = [n for n in range(self._grid.rounds) if ("replay", n) not in self._read]
        cell = subject.facts.replayed
        if subject.replayer is None or cell is None or not rounds:
            return
        with Sequences(subject.model, [cell]) as sequences:
            replay = subject.replayer(sequences.calls(cell))
            for number in rounds:
                called = [sequences.timed(cell, subject.clock) for _ in range(_CALLS + 1)][1:]
                replayed = [timed(replay, subject.clock) for _ in range(_CALLS + 1)][1:]
                if ("beside_replay", number) not in self._read:
                    self._keep_reading("beside_replay", number, median(called))
                self._keep_reading("replay", number, median(replayed))


def _in_order(items: Sequence[Item], number: int) -> list[Item]:
    """Order ascending in the first round, so that cells too slow are found from below; then not."""
    if number == 0:
        return list(items)
    return random.Random(f"cost {number}").sample(items, len(items))
