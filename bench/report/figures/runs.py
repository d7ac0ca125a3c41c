"""The numbers of one or several runs that one figure shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from bench.records.plan import BASELINE, guarantee_rank
from bench.stats.intervals import Estimate
from bench.stats.metrics import summary_rows
from bench.stats.summary import ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumbers:
    """The summary and the A/A floor of one run.

    `name` is the folder's name, made unique among the runs. `label` heads the run's column: the
    model if no two runs share a model, else `name`.
    """

    name: str = ""
    label: str = ""
    summary: pd.DataFrame
    floor: Estimate


def ordered_decoders(members: Sequence[RunNumbers]) -> list[str]:
    """Return all decoders: the baseline first, then by guarantee, then in the runs' order."""
    ranks: dict[str, int] = {}
    for member in members:
        for row in summary_rows(member.summary, ALL):
            rank = -1 if row.decoder == BASELINE else guarantee_rank(row.guarantee)
            ranks[row.decoder] = max(rank, ranks.get(row.decoder, rank))
    return sorted(ranks, key=ranks.__getitem__)
