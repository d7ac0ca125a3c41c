"""Caveats on drafts that cannot work: a decoder that drafted nothing, or whose drafts all failed.

Its answers are right and its numbers are measured; but they say nothing about the method.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.records.plan import Cell
from bench.records.record import SampleRecord
from bench.stats.counters import Tally, group_by, timed
from bench.text import counted


def draft_warnings(cells: Iterable[Cell], records: Iterable[SampleRecord]) -> list[str]:
    """Return a line for each lossless drafting cell without a draft, or without an accepted one."""
    drafting = {cell.cell for cell in cells if cell.drafts and cell.lossless}
    warnings = []
    for cell, chosen in group_by(r for r in timed(records) if r.decoder in drafting).items():
        tally = Tally.pool(chosen)
        if tally.later_steps == 0:
            continue
        if tally.drafted == 0 and tally.emitted - tally.first_emitted <= tally.later_steps:
            steps = counted(tally.later_steps, "later step")
            warnings.append(f"{cell} drafted nothing in {steps}: it decoded one token a step as ar")
        elif tally.drafted > 0 and tally.accepted == 0:
            warnings.append(
                f"{cell}: none of {counted(tally.drafted, 'draft')} was accepted; do the draft "
                "model, adapter or options belong to this target?"
            )
    return warnings
