"""How long a model's calls take, by rows, sequences and context: what `bench cost` measures.

A cell is a merged call as verifying decoders make it: every row's logits are read. Rounds go over
all cells, the machine's own rates between them, so that a machine that drifts drifts in all of
them; in a visit one call warms up and the median of a few counts. Only `Model.forward` is timed.

Everything is written at once, line by line: what is stopped goes on where it was.
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
"""Of a logit: as float32, and once more while it is made."""
_SHARE_OF_ROOM = 0.5
Item = TypeVar("Item")
Replayer = Callable[[Sequence[Call]], Callable[[], object]]
"""Makes a call, and returns what does its work again (`decoders.core.hf.replay.capture`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: a model, the machine, and how both are known to the cost folder.

    `replayer` is None where nothing can be replayed: `facts` say why. `room_bytes` is the memory
    that is free once the model is loaded. `lap` says what other processes did since it was last
    asked (`LoadWatch.lap`).
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
    """Measure what `folder` lacks; the facts of all that is then there, which it holds too.

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
    """Write what follows from the lines that are there, be they all or not."""
    calls = Calls.read(folder)
    visited = {(visit.cell, visit.round) for visit in calls.visits}
    reached = {visit.cell for visit in calls.visits}
    left_out = {each.cell for each in calls.left_out} - reached
    wanted = [cell for cell in facts.grid.cells if cell not in left_out]
    read = {(reading.what, reading.round) for reading in calls.readings}
    rounds = range(facts.grid.rounds)
    whats = {"memory_bandwidth"} | ({"replay"} if facts.no_replay is None else set())
    facts = replace(
        with_readings(facts, calls),
        complete=all((cell, number) in visited for cell in wanted for number in rounds)
        and all((what, number) in read for what in whats for number in rounds),
    )
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
        self._left_out = {each.cell for each in done.left_out} - {c for c, _ in self._visited}
        self._read = {(reading.what, reading.round) for reading in done.readings}

    def run(self) -> str | None:
        """All rounds, then the replay; why there is none of it, if so."""
        self._leave_out_what_cannot_be()
        wanted = [cell for cell in self._grid.cells if cell not in self._left_out]
        total, done = len(wanted) * self._grid.rounds, len(self._visited)
        self._progress.start("calls", total, min(done, total))
        before = set(self._visited)
        for number in range(self._grid.rounds):
            self._read_machine(number)
            for group in _in_order(_by_sequences(wanted), number):
                self._visit_all(_in_order(group, number), number)
            if any(at == number for _, at in self._visited - before):
                self._read_load(number)
        try:
            self._replay()
        except (RuntimeError, NotImplementedError) as error:  # what compilers raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return f"capturing a call failed: {lines[0]}"
        return self._subject.facts.no_replay

    def _leave_out_what_cannot_be(self) -> None:
        """Cells that the model's context or the memory do not hold."""
        model, facts = self._subject.model, self._subject.facts
        room = self._subject.room_bytes * _SHARE_OF_ROOM
        for cell in self._grid.cells:
            if cell in self._left_out or any(cell == known for known, _ in self._visited):
                continue
            cache = cell.sequences * (cell.context + max(self._grid.rows)) * facts.work.token_bytes
            needed = cache + cell.total_rows * model.vocab_size * _LOGIT_BYTES
            if cell.context + cell.rows > model.max_length:
                self._leave_out(cell, f"beyond the model's {model.max_length} tokens")
            elif needed > room:
                self._leave_out(cell, f"{needed / 1e9:.1f} GB of memory")

    def _leave_out(self, cell: CostCell, reason: str) -> None:
        self._left_out.add(cell)
        kind, fields = event_of(LeftOut(cell=cell, reason=reason))
        self._writer.event(kind, **fields)

    def _read_machine(self, number: int) -> None:
        for probe in self._subject.probes:
            if all((what, number) in self._read for what in probe.what):
                continue
            value = probe.per_second(self._subject.clock)
            for what in probe.what:
                self._keep_reading(what, number, value)

    def _read_load(self, number: int) -> None:
        """What else the machine did in a round, of which some was measured just now."""
        other = None if self._subject.lap is None else self._subject.lap().other_cores
        if other is not None and ("other_cores", number) not in self._read:
            self._keep_reading("other_cores", number, other)

    def _keep_reading(self, what: str, number: int, value: float) -> None:
        self._read.add((what, number))
        kind, fields = event_of(Reading(what=what, round=number, value=value))
        self._writer.event(kind, **fields)

    def _visit_all(self, cells: Sequence[CostCell], number: int) -> None:
        """One round's visits of the cells of one number of sequences."""
        missing = [cell for cell in cells if (cell, number) not in self._visited]
        missing = [cell for cell in missing if cell not in self._left_out]
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
                kind, fields = event_of(Visit(cell=cell, round=number, seconds=seconds))
                self._writer.event(kind, **fields)
                self._progress.step(f"{cell}: {1e3 * seconds:.2f} ms")
        self._writer.sync()

    def _seconds(self, sequences: Sequences, cell: CostCell) -> float | None:
        """The median of a few calls after one that warms up; None: it takes too long."""
        clock = self._subject.clock
        first_s = sequences.timed(cell, clock)
        new = not any(cell == known for known, _ in self._visited)
        if new and first_s > self._grid.longest_s:
            visited = {known for known, _ in self._visited}
            for other in self._grid.cells:
                if other.contains(cell) and other not in self._left_out | visited:
                    of = "its call" if other == cell else f"a call of {cell}"
                    self._leave_out(other, f"{of} takes {first_s:.2g} s")
            return None
        times = [sequences.timed(cell, clock)]
        while len(times) < _CALLS and sum(times) < _LONG_ENOUGH_S:
            times.append(sequences.timed(cell, clock))
        return median(times)

    def _replay(self) -> None:
        """The smallest call by turns as ever and as a replay, round by round."""
        subject = self._subject
        rounds = [n for n in range(self._grid.rounds) if ("replay", n) not in self._read]
        cell = subject.facts.replayed
        if subject.replayer is None or cell is None or not rounds:
            return
        self._progress.note("capturing one call to replay it; on a CPU compiling takes minutes")
        with Sequences(subject.model, [cell]) as sequences:
            replay = subject.replayer(sequences.calls(cell))
            for number in rounds:
                called = [sequences.timed(cell, subject.clock) for _ in range(_CALLS + 1)][1:]
                replayed = [timed(replay, subject.clock) for _ in range(_CALLS + 1)][1:]
                if ("beside_replay", number) not in self._read:
                    self._keep_reading("beside_replay", number, median(called))
                self._keep_reading("replay", number, median(replayed))


def _by_sequences(cells: Sequence[CostCell]) -> list[list[CostCell]]:
    return [list(group) for _, group in groupby(cells, key=lambda cell: cell.sequences)]


def _in_order(items: Sequence[Item], number: int) -> list[Item]:
    """Ascending in the first round, so that what takes too long is found from below; then not."""
    if number == 0:
        return list(items)
    return random.Random(f"cost {number}").sample(items, len(items))
