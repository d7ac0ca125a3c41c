"""A report's table of ceilings: lists that decoders fill in parallel, against what is possible.

No torch here.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from bench.records.run_folder import Run
from bench.records.vocabulary import pieces_of
from bench.report.tables.table import Table, TableCell, by_family
from bench.stats.ceilings import holds, mean_ceiling, on_lists
from bench.stats.counters import group_by
from bench.stats.summary_row import SummaryRow
from bench.text import percent
from specbench_tasks.task import LISTS

_NONE = "none"
"""The ceiling of who predicts nothing in parallel without verifying it."""


def ceilings(run: Run, summary: pd.DataFrame) -> Table | None:
    """Right lists and ceilings by family; None where they do not hold or nobody has one."""
    filled = group_by(on_lists(run.records), lambda record: f"{record.decoder} {record.family}")
    if not filled or not holds(run.config):
        return None
    piece = pieces_of(run.path)

    def shown(row: SummaryRow) -> TableCell:
        right = percent(row.quality, "")
        answers = filled.get(f"{row.decoder} {row.family}")
        if answers is None:
            return TableCell(f"{right} / {_NONE}")
        return TableCell(f"{right} / {percent(mean_ceiling(answers, piece), '')}")

    note = (
        "Right lists, % / the most that is possible, %, where items that one pass decides are "
        "drawn independently, each from the task's own distribution of its place. By the passes "
        "recorded of each answer that is a list. Choosing which items to keep by confidence, or "
        "revising them, may exceed it; so may a model that always gives the same right answer. "
        f"{_NONE}: nothing is kept that the target did not verify."
    )
    lists = summary[summary["family"].isin(LISTS)]
    table = by_family(lists, "Lists against the ceiling of independent prediction", note, shown)
    without_all = tuple(row[:-1] for row in table.rows)  # no ceiling spans families
    return replace(table, headings=table.headings[:-1], rows=without_all)


def caveat(run: Run) -> list[str]:
    """Why there is no table of ceilings where one might be looked for."""
    if holds(run.config) or not on_lists(run.records):
        return []
    return [
        "No ceilings of lists: they are of drawing at --temperature 1, --top-p 1 and --top-k 0."
    ]
