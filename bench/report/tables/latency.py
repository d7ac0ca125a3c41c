"""The tails of latency as numbers: median, p95 and p99 of both waits of a reader."""

from __future__ import annotations

import pandas as pd

from bench.report.tables.table import Table, TableCell, number
from bench.stats.latency import BETWEEN, FIRST
from bench.text import UNKNOWN

_SHOWN = (50, 95, 99)


def waits(latency: pd.DataFrame) -> Table | None:
    """Percentiles of the time to the first token and between chunks; None without any.

    `latency` is `bench.stats.latency.latency_table`'s. A percentile p stands where at least one of
    the waits may exceed it: from 100 / (100 - p) waits on.
    """
    if latency.empty:
        return None
    values = latency.set_index(["decoder", "wait", "percentile"])["seconds"].to_dict()
    counts = latency.groupby(["decoder", "wait"])["n"].first().to_dict()

    def cells(decoder: str, wait: str) -> list[TableCell]:
        num = counts.get((decoder, wait), 0)
        known = [
            number(values[decoder, wait, p], ".1f", 1e3) if num * (100 - p) >= 100 else UNKNOWN
            for p in _SHOWN
        ]
        return [*map(TableCell, known), TableCell(str(num))]

    names = ((FIRST, "TTFT"), (BETWEEN, "between chunks"))
    rows = [
        (TableCell(decoder), *(cell for wait, _ in names for cell in cells(decoder, wait)))
        for decoder in dict.fromkeys(latency["decoder"])
    ]
    ends = ", ".join(f"p{p}" for p in _SHOWN)
    return Table(
        title="Latency, ms",
        note=(
            f"Milliseconds that a reader waits for the first token (TTFT) and from one chunk to "
            f"the next, {ends} over all timed answers. A chunk is what a step emits. p is the "
            "least measured wait that p per cent of all do not exceed; '-': too few waits (n) for "
            "one beyond it. Of answers timed alone."
        ),
        headings=(
            "decoder",
            *(
                text
                for _, name in names
                for text in (*(f"{name} p{p}" for p in _SHOWN), f"{name} n")
            ),
        ),
        rows=tuple(rows),
    )
