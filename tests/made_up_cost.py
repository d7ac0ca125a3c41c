"""A cost folder of a made-up curve, written as `bench cost` writes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.extras.cost.curve import cost_table
from bench.extras.cost.records import (
    CURVE,
    Calls,
    CallWork,
    CostCell,
    CostFacts,
    Grid,
    Measured,
    write_facts,
)
from bench.records.environment import Environment, ModelFacts, write_environment
from bench.records.frames import csv_bytes

GRID = Grid(rows=(1, 4, 16), sequences=(1, 4), contexts=(10, 100), rounds=6, longest_s=1.0)


def seconds(cell: CostCell) -> float:
    """1 ms, and 0.1 ms a row."""
    return 1e-3 + 1e-4 * cell.rows * cell.sequences


def write_cost_folder(
    folder: Path, target: Mapping[str, Any] | None = None, key: str | None = None
) -> Path:
    """The folder; `target` and `key` are the model and machine it claims to be of."""
    folder.mkdir(parents=True)
    facts = CostFacts(
        name="made up",
        target=target or {},
        work=CallWork(weight_bytes=10**6, token_bytes=100, row_flops=10**6, pair_flops=10),
        grid=GRID,
        bandwidth=Measured(value=1e10, num=6),
        matrix_rate=Measured(value=1e11, num=6),
    )
    times = {cell: [seconds(cell)] * GRID.rounds for cell in GRID.cells}
    write_facts(folder, facts)
    write_environment(
        folder, Environment(schema=1, models=ModelFacts(target=target), comparability_key=key)
    )
    (folder / CURVE).write_bytes(csv_bytes(cost_table(facts, Calls(seconds=times)), "%.9g"))
    return folder
