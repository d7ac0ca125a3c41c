"""A reader's waits: for the first token, and between chunks of tokens.

A *chunk* is the tokens of one step; the time of a step without tokens counts for the next chunk.
Only unbatched answers have these times.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable

import numpy as np
import pandas as pd

from bench.records.record import SampleRecord
from bench.stats.counters import timed
from bench.stats.times import within_a_machine

PERCENTILES = (*range(100), 99.5, 99.9, 100)
FIRST, BETWEEN = "first token", "between chunks"


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
    for record in within_a_machine(timed(records)):
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
