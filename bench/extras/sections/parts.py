"""The workers of a run, and the machines of a merged run, each with its speed-ups and drift."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from bench.report.sections import Section
from bench.report.tables.table import Columns, Table, TableCell, against_floor, estimated
from bench.stats.intervals import LEVEL
from bench.stats.workers import Part, machines, workers
from bench.text import UNKNOWN, change

_PARTS = {
    "worker": (
        "Each worker before pooling. Both sides of a ratio ran in the same worker, so its speed "
        "cancels. A/A: the baseline's second arm against its first. Drift: how much longer a token "
        "of the baseline took in the last third of a worker's blocks than in the first."
    ),
    "machine": (
        "Parts of this run were measured on different machines: counters are pooled; times and "
        "speed-ups hold only within a machine and are shown only here."
    ),
}
"""Notes below the tables of a run's parts, by kind of part."""


def by_part(kind: Literal["worker", "machine"], parts: Sequence[Part]) -> Table | None:
    """Make the table of a run's workers, or of a merged run's machines."""
    columns: Columns = {
        kind: lambda part: part.name,
        "node": lambda part: part.node or UNKNOWN,
        "blocks": lambda part: str(part.num_blocks),
        "A/A": lambda part: TableCell(estimated(part.floor), bad=part.floor.differs_from_one),
        "drift %": lambda part: change(part.drift, ""),
    }

    def speedup(part: Part, decoder: str) -> TableCell:
        return against_floor(part.speedups[decoder], part.floor)

    for decoder in parts[0].speedups if parts else ():
        columns[decoder] = partial(speedup, decoder=decoder)
    note = f"{_PARTS[kind]} Geometric means with {LEVEL} intervals over conversations."
    return Table.of(f"By {kind}", note, columns, parts)


SECTION = Section(
    "part",
    lambda f: [
        by_part("machine", machines(f.run.records, f.decoders)),
        by_part("worker", workers(f.run.records, f.decoders)),
    ],
    3,
    numbered=True,
)
