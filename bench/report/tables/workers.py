"""Tables of what workers, or the machines of a merged run, measured apart."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.tables.table import Table, TableCell, estimated
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.workers import Part
from bench.text import UNKNOWN, change


def by_worker(parts: Sequence[Part]) -> Table | None:
    """A row for each worker, or None where there are none."""
    note = (
        "Each worker apart, before pooling: both sides of a ratio ran in one worker, so its own "
        "pace divides out. A/A: ar's second arm against its first. Drift: how much longer a token "
        "of ar took in the last third of a worker's blocks than in the first."
    )
    return _table("By worker", "worker", parts, note)


def by_machine(parts: Sequence[Part]) -> Table | None:
    """A row for each machine of a merged run, or None where there is one only."""
    note = (
        "Parts of this run were measured on different machines: counters are pooled, times and "
        "speed-ups hold within a machine only, and stand here alone."
    )
    return _table("By machine", "machine", parts, note)


def _table(title: str, what: str, parts: Sequence[Part], note: str) -> Table | None:
    if not parts:
        return None
    decoders = list(parts[0].speedups)
    rows = [
        (
            TableCell(part.name),
            TableCell(part.node or UNKNOWN),
            TableCell(str(part.num_blocks)),
            TableCell(estimated(part.floor), bad=part.floor.differs_from_one),
            TableCell(change(part.drift, "")),
            *(_cell(part.speedups[decoder], part.floor) for decoder in decoders),
        )
        for part in parts
    ]
    return Table(
        title=title,
        note=f"{note} Geometric means with {LEVEL} intervals over conversations.",
        headings=(what, "node", "blocks", "A/A", "drift %", *decoders),
        rows=tuple(rows),
    )


def _cell(estimate: Estimate, floor: Estimate) -> TableCell:
    return TableCell(estimated(estimate), bold=estimate.exceeds(floor))
