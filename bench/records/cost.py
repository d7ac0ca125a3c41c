"""A cost folder: seconds of a model's calls on a machine, as `bench cost` measures them.

==================  ===============================================================================
``machine.json``    the model's work, the grid, and the machine's limits (`CostFacts`); written
                    before the first measurement, and again when all is measured
``env.json``        the machine, as in a run folder
``calls.jsonl``     append-only, one event a line: a `Visit`, a cell `LeftOut`, a `Reading`
``cost.csv``        a row a cell: median, interval, limits (`bench.stats.cost_curve`)
``choices.json``    the best number of drafts of a run's decoders, where one was given
==================  ===============================================================================

``machine.json``, ``env.json`` and ``cost.csv`` are enough to use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from bench.records.environment import Environment
from bench.records.files import lines_of, write_json
from bench.records.json_file import SCHEMA, parse, read_json

MACHINE, CALLS, CURVE, CHOICES = "machine.json", "calls.jsonl", "cost.csv", "choices.json"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CostCell:
    """One kind of call: `sequences` of `rows` rows each, after `context` tokens in the cache."""

    sequences: int
    context: int
    rows: int

    @property
    def total_rows(self) -> int:
        """Number of rows of all sequences."""
        return self.rows * self.sequences

    def contains(self, other: CostCell) -> bool:
        """Return whether this cell is at least as large along every axis."""
        return (
            self.rows >= other.rows
            and self.sequences >= other.sequences
            and self.context >= other.context
        )

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.sequences} sequences after {self.context} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Measured rows, sequences and contexts, ascending, and the longest call allowed.

    A cell whose call takes longer than `longest_s` is left out, and so are all that contain it.
    """

    rows: tuple[int, ...]
    sequences: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    longest_s: float

    @property
    def cells(self) -> list[CostCell]:
        """All cells, ascending."""
        return [
            CostCell(sequences=sequences, context=context, rows=rows)
            for sequences in self.sequences
            for context in self.contexts
            for rows in self.rows
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Bytes and operations of a model's call, whatever runs it.

    Attributes:
        weight_bytes: weights that every call reads: all but an embedding table that is no head.
        token_bytes: keys and values of a token in the cache.
        row_flops: of a row, in products with weights: two per weight.
        pair_flops: of a row and a token that it attends to.
    """

    weight_bytes: int
    token_bytes: int
    row_flops: int
    pair_flops: int

    def bytes_of(self, cell: CostCell) -> int:
        """Return bytes of a call: weights once, and the cache of every sequence once."""
        tokens = cell.sequences * (cell.context + cell.rows)
        return self.weight_bytes + tokens * self.token_bytes

    def flops_of(self, cell: CostCell) -> float:
        """Return operations: products with weights, attention to the context and rows before."""
        seen = cell.context + (cell.rows + 1) / 2
        return cell.total_rows * (self.row_flops + seen * self.pair_flops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A median over rounds with its 95 % interval (None: too few rounds)."""

    value: float
    low: float | None = None
    high: float | None = None
    num: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFacts:
    """The content of machine.json.

    Attributes:
        name: of the model, as it was given.
        target: its facts, as in env.json's ``models``.
        bandwidth: bytes per second of matrix-vector products with many different matrices, each
            read once, that together are as large as the model's weights.
        memory_bandwidth: the same with more bytes than any cache holds.
        copy_bandwidth: bytes read and written per second by a plain copy, to compare.
        matrix_rate: floating-point operations per second of a product of large matrices.
        replay: seconds of the call `replayed` as a captured graph, or compiled; None: see
            `no_replay`.
        beside_replay: of the same call as usual, by turns with the replay.
        replay_by: kind of the replay.
        no_replay: why there is none.
        other_cores: CPU time of other processes meanwhile, in cores.
        complete: whether nothing is missing.
    """

    schema: int = SCHEMA
    name: str = ""
    target: Mapping[str, Any] = field(default_factory=dict)
    work: Work
    grid: Grid
    bandwidth: Measured | None = None
    memory_bandwidth: Measured | None = None
    copy_bandwidth: Measured | None = None
    matrix_rate: Measured | None = None
    replay: Measured | None = None
    beside_replay: Measured | None = None
    replayed: CostCell | None = None
    replay_by: str | None = None
    no_replay: str | None = None
    other_cores: Measured | None = None
    complete: bool = False

    def memory_s(self, cell: CostCell) -> float | None:
        """Seconds that reading weights and cache takes a call at least; None: not measured."""
        return self.work.bytes_of(cell) / self.bandwidth.value if self.bandwidth else None

    def compute_s(self, cell: CostCell) -> float | None:
        """Seconds that operations take a call at least; None: their rate was not measured."""
        return self.work.flops_of(cell) / self.matrix_rate.value if self.matrix_rate else None


READINGS = (
    *("bandwidth", "memory_bandwidth", "copy_bandwidth", "matrix_rate"),
    *("replay", "beside_replay", "other_cores"),
)
"""Fields of `CostFacts` that are medians of what is read once a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A cell in one round: seconds of its calls, the median of a few."""

    event: ClassVar = "call"
    cell: CostCell
    round: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A cell that is not measured, and why."""

    event: ClassVar = "left_out"
    cell: CostCell
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The machine's value in one round of `what`, one of `READINGS`."""

    event: ClassVar = "reading"
    what: str
    round: int
    value: float


Event = Visit | LeftOut | Reading
_KINDS: Mapping[str, type[Event]] = {kind.event: kind for kind in (Visit, LeftOut, Reading)}


@dataclass(frozen=True, slots=True)
class Calls:
    """The content of calls.jsonl; of repeated events the first counts.

    Seconds by cell and round, reasons of cells that were left out and never visited, and values of
    readings by what and round.
    """

    visits: dict[tuple[CostCell, int], float] = field(default_factory=dict)
    left_out: dict[CostCell, str] = field(default_factory=dict)
    readings: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def reached(self) -> set[CostCell]:
        """The cells that were visited."""
        return {cell for cell, _ in self.visits}

    def add(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, Visit):
            self.visits.setdefault((event.cell, event.round), event.seconds)
            self.left_out.pop(event.cell, None)
        elif isinstance(event, Reading):
            self.readings.setdefault((event.what, event.round), event.value)
        elif event.cell not in self.reached:
            self.left_out.setdefault(event.cell, event.reason)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the events of a cost folder (`InvalidRunError` on a damaged line)."""
        calls = cls()
        for number, (line, _) in enumerate(lines_of(folder / CALLS), start=1):
            if (kind := _KINDS.get(str(line.pop("event", None)))) is not None:
                calls.add(parse(kind, line, f"{folder / CALLS} line {number}"))
        return calls


def write_facts(folder: Path, facts: CostFacts) -> None:
    """Replace machine.json (`BenchError` where it cannot be written)."""
    write_json(folder / MACHINE, asdict(facts))


def read_facts(folder: Path) -> CostFacts | None:
    """Return machine.json, None where there is none (raises as `read_json` and `parse`)."""
    data = read_json(folder / MACHINE)
    return None if data is None else parse(CostFacts, data, folder / MACHINE)


def folder_name(facts: CostFacts, env: Environment) -> str:
    """Return a cost folder's default name: model, dtype (or packing), device, compiled or not."""
    name = Path(facts.name).name if "/" in facts.name else facts.name
    width = facts.target.get("quantized") or env.dtype
    how = "-compiled" if facts.target.get("compiled") else ""
    return "cost-" + re.sub(r"[^A-Za-z0-9._-]+", "_", f"{name}-{width}-{env.device}{how}")


def write_choices(folder: Path, drafts: Mapping[str, int]) -> None:
    """Replace choices.json: the best number of drafts of decoders, by name."""
    write_json(folder / CHOICES, {"schema": SCHEMA, "drafts": dict(drafts)})


def read_choices(folder: Path) -> dict[str, int]:
    """Return choices.json, empty where there is none (`InvalidRunError` where it is damaged)."""
    data = read_json(folder / CHOICES) or {}
    return parse(dict[str, int], data.get("drafts", {}), folder / CHOICES)
