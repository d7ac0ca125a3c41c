"""Waiting times of readers, until the first token and between chunks, and their cumulative shares.

A *chunk* is the tokens of one step; the time of a step without tokens counts for the next chunk.
Only unbatched answers have these times.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bench.records.record import SampleRecord
from bench.report.figures.style import Look
from bench.report.findings import Findings
from bench.report.sections import Figure, Plot, Section
from bench.report.tables.table import Columns, Table, number
from bench.stats import counters, times
from bench.text import UNKNOWN

PERCENTILES = (*range(100), 99.5, 99.9, 100)
FIRST, BETWEEN = "first token", "between chunks"
_PERCENTILES = (50, 95, 99)


def between_chunks_s(record: SampleRecord) -> list[float]:
    """Return the seconds between the ends of successive steps that emitted tokens."""
    steps = record.steps
    if steps is None or not steps.ended_s:
        return []
    ended = zip(steps.ended_s, steps.emitted, strict=True)
    ends = [end_s for end_s, emitted in ended if emitted]
    return [after - before for before, after in itertools.pairwise(ends)]


def latency_table(records: Iterable[SampleRecord], decoders: Iterable[str]) -> pd.DataFrame:
    """Tabulate percentiles of both waits, pooled over a decoder's answers: `n` waits, seconds.

    Percentile p is the smallest measured wait that at least p per cent of the waits do not exceed;
    percentile 0 is the shortest wait.
    """
    waits: dict[tuple[str, str], array[float]] = {}
    for record in times.within_a_machine(counters.timed(records)):
        first = [] if record.ttft_s is None else [record.ttft_s]
        for wait, more in ((FIRST, first), (BETWEEN, between_chunks_s(record))):
            waits.setdefault((wait, record.decoder), array("d")).extend(more)
    shares = np.array(PERCENTILES) / 100
    rows = [
        {"decoder": decoder, "wait": wait, "n": len(some), "percentile": p, "seconds": value}
        for decoder in decoders
        for wait in (FIRST, BETWEEN)
        if (some := waits.get((wait, decoder)))
        for p, value in zip(
            PERCENTILES, np.quantile(some, shares, method="inverted_cdf").tolist(), strict=True
        )
    ]
    return pd.DataFrame(rows, columns=["decoder", "wait", "n", "percentile", "seconds"])


def waits(latency: pd.DataFrame) -> Table | None:
    """Make the table of percentiles of the time to the first token and between chunks.

    `latency` comes from `latency_table`. Percentile p is shown from
    100 / (100 - p) waits on, so that at least one wait may exceed it.
    """
    if latency.empty:
        return None
    values = latency.set_index(["decoder", "wait", "percentile"])["seconds"]
    counts = latency.groupby(["decoder", "wait"])["n"].first()

    def percentile(decoder: str, wait: str, p: int) -> str:
        enough = counts.get((decoder, wait), 0) * (100 - p) >= 100
        return number(values[decoder, wait, p], ".1f", 1e3) if enough else UNKNOWN

    def num(decoder: str, wait: str) -> str:
        return str(counts.get((decoder, wait), 0))

    columns: Columns = {"decoder": str}
    for wait, name in ((FIRST, "TTFT"), (BETWEEN, "between chunks")):
        for p in _PERCENTILES:
            columns[f"{name} p{p}"] = partial(percentile, wait=wait, p=p)
        columns[f"{name} n"] = partial(num, wait=wait)
    ends = ", ".join(f"p{p}" for p in _PERCENTILES)
    note = (
        f"Milliseconds until the first token (TTFT) and between chunks (a chunk is the tokens of a "
        f"step), {ends} over all unbatched timed answers. pX: the least measured wait that "
        "X per cent of the waits do not exceed; '-': too few waits (n) to exceed it."
    )
    return Table.of("Latency, ms", note, columns, latency["decoder"].unique())


def latency_figure(latency: pd.DataFrame, summary: pd.DataFrame) -> Plot | None:
    """Draw the cumulative shares of waits for the first token, and for the next chunk.

    `latency` comes from `latency_table`.
    """
    from bench.report.figures import canvas  # matplotlib: only where something is drawn

    data = latency[latency["decoder"].isin(summary["decoder"])].reset_index(drop=True)
    if data.empty:
        return None
    look = Look.of(summary)
    waits = [wait for wait in (BETWEEN, FIRST) if (data["wait"] == wait).any()]
    figure, grid = canvas.row_of_panels(len(waits), 2.8, rows=True)
    for wait, axes in zip(waits, grid, strict=True):
        for decoder, rows in data[data["wait"] == wait].groupby("decoder", sort=False):
            style: dict[str, Any] = {"color": look.palette[str(decoder)], "lw": 1.5}
            style |= {"ls": (0, (3, 1.5)) if decoder in look.marks else "-"}
            x, y = 1e3 * rows["seconds"], rows["percentile"] / 100
            axes.plot(x, y, drawstyle="steps-post", **style)
        axes.set_title(f"time to {wait}" if wait == FIRST else f"time {wait}", fontsize=9)
        axes.set_xlabel("ms")
        axes.grid(visible=True)
        axes.set_ylim(0, 1.01)
        axes.set_xscale("log")
        canvas.log_ticks(axes.xaxis)
    canvas.percents(grid[0].yaxis, 5)
    grid[0].set_yticks([0, 0.25, 0.5, 0.75, 0.9, 0.99])
    grid[0].set_ylabel("cumulative share of waits")
    canvas.key(figure, list(data["decoder"].unique()), look)
    return figure, data


def _latency(findings: Findings) -> pd.DataFrame:
    return latency_table(findings.run.records, findings.decoders)


_FIGURE = Figure(
    "latency",
    "Cumulative share of waits for the first token and for the next chunk, over all answers. A "
    "chunk is the tokens of a step. Dashed: lossy.",
    "no unbatched answer with recorded steps was timed",
    lambda findings, summary: latency_figure(findings.once(_latency), summary),
    8,
)
SECTION = Section("latency", lambda f: [waits(f.once(_latency))], 6, figures=(_FIGURE,))
