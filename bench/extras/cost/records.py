"""Read and write a cost folder: the times of a model's calls on one machine (`bench cost`).

==================  ===============================================================================
``machine.json``    the model's work, the grid, and the machine's limits (`CostFacts`)
``env.json``        the machine, as in a run folder
``cost.csv``        one row per cell: median, interval, limits (`bench.extras.cost.curve`)
``choices.json``    the cost of a draft call of each decoder of a run, if a run was given
==================  ===============================================================================

Readers need only ``machine.json``, ``env.json`` and ``cost.csv``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from itertools import product
from pathlib import Path

from bench.records.environment import Environment, Facts
from bench.records.files import SCHEMA, parse, read_json, write_json
from bench.settings.bounds import Bytes, Num, Rate, Time

MACHINE, CURVE, CHOICES = "machine.json", "cost.csv", "choices.json"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CostCell:
    """Describe calls of `sequences` sequences of `rows` rows, with `context` cached tokens."""

    sequences: Num
    context: Num
    rows: Num

    def contains(self, other: CostCell) -> bool:
        """Return whether this cell is at least as large along every axis."""
        axes = zip(astuple(self), astuple(other), strict=True)
        return all(size >= other_size for size, other_size in axes)

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.sequences} sequences after {self.context} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Hold the rows, sequences and contexts to measure, ascending, and a limit on call time.

    A cell whose call takes longer than `longest_s` is left out, with all cells that contain it.
    """

    rows: tuple[Num, ...]
    sequences: tuple[Num, ...]
    contexts: tuple[Num, ...]
    rounds: Num
    longest_s: Time

    @property
    def cells(self) -> list[CostCell]:
        """All cells, ascending."""
        axes = product(self.sequences, self.contexts, self.rows)
        return [CostCell(sequences=num, context=context, rows=rows) for num, context, rows in axes]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWork:
    """Hold the bytes and operations of a model's call, independent of the machine.

    Attributes:
        weight_bytes: weights that every call reads, without an embedding that is not the head.
        token_bytes: keys and values of one cached token.
        row_flops: operations per row in products with weights: two per weight.
        pair_flops: attention operations per pair of a row and a token that the row attends to.
    """

    weight_bytes: Bytes
    token_bytes: Bytes
    row_flops: Bytes
    pair_flops: Bytes

    def num_bytes(self, cell: CostCell) -> int:
        """Return the bytes that a call reads: the weights and every sequence's cache, each once."""
        return self.weight_bytes + cell.sequences * (cell.context + cell.rows) * self.token_bytes

    def num_flops(self, cell: CostCell) -> float:
        """Return a call's operations: weight products, attention to context and earlier rows."""
        seen = cell.context + (cell.rows + 1) / 2
        return cell.sequences * cell.rows * (self.row_flops + seen * self.pair_flops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold a median over `num` rounds with its 95 % interval (None: too few rounds)."""

    value: Rate
    low: Rate | None = None
    high: Rate | None = None
    num: Num = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFacts:
    """Hold the content of machine.json.

    Attributes:
        name: the model's name, as given by the user.
        target: facts of the model, as in env.json's ``models``.
        bandwidth: bytes per second of matrix-vector products with many different matrices, each
            read once; together they are as large as the model's weights.
        matrix_rate: floating-point operations per second of a product of large matrices.
        other_cores: CPU time of other processes during the measurement, in cores.
    """

    schema: Num = SCHEMA
    name: str = ""
    target: Facts = field(default_factory=dict)
    work: CallWork
    grid: Grid
    bandwidth: Measured | None = None
    matrix_rate: Measured | None = None
    other_cores: Measured | None = None

    def memory_s(self, cell: CostCell) -> float | None:
        """Return the minimal seconds in which a call can read weights and cache, if measured."""
        return self.work.num_bytes(cell) / self.bandwidth.value if self.bandwidth else None

    def compute_s(self, cell: CostCell) -> float | None:
        """Return the minimal seconds of a call's operations, if their rate is measured."""
        return self.work.num_flops(cell) / self.matrix_rate.value if self.matrix_rate else None


READINGS = ("bandwidth", "matrix_rate", "other_cores")
"""Fields of `CostFacts` that are medians of one reading per round."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Hold all measurements, which are written only at the end.

    `seconds` has, for each cell, a median of a few calls per round; `left_out` has the reasons of
    unmeasured cells; `readings` has a value per round for each name in `READINGS`.
    """

    seconds: dict[CostCell, list[float]] = field(default_factory=dict)
    left_out: dict[CostCell, str] = field(default_factory=dict)
    readings: dict[str, list[float]] = field(default_factory=dict)


def write_facts(folder: Path, facts: CostFacts) -> None:
    """Replace machine.json (`BenchError` if writing fails)."""
    write_json(folder / MACHINE, asdict(facts))


def read_facts(folder: Path) -> CostFacts | None:
    """Read machine.json, if it exists (raises as `read_json` and `parse`)."""
    data = read_json(folder / MACHINE)
    return None if data is None else parse(CostFacts, data, folder / MACHINE)


def folder_name(facts: CostFacts, env: Environment) -> str:
    """Return a cost folder's default name: model, dtype or packing, device, "-compiled"."""
    name = Path(facts.name).name if "/" in facts.name else facts.name
    width = facts.target.get("quantized") or env.dtype
    how = "-compiled" if facts.target.get("compiled") else ""
    return "cost-" + re.sub(r"[^A-Za-z0-9._-]+", "_", f"{name}-{width}-{env.device}{how}")


def write_draft_costs(folder: Path, costs: Mapping[str, float]) -> None:
    """Replace choices.json: the cost of a draft call of each decoder, by name."""
    write_json(folder / CHOICES, {"schema": SCHEMA, "draft_cost": dict(costs)})


def read_draft_costs(folder: Path) -> dict[str, float]:
    """Read choices.json, empty if it is missing (`InvalidRunError` if damaged)."""
    data = read_json(folder / CHOICES) or {}
    return parse(dict[str, Rate], data.get("draft_cost", {}), folder / CHOICES)
