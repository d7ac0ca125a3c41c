"""What a run shows in one or two sentences: the first thing that a report says.

It names the fastest decoder among those that guarantee something of their answers, and the fastest
of those that do not, beside its quality. Fastest is by the estimate: intervals of two decoders are
not held against each other here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.records.plan import BASELINE, NO_GUARANTEE, SAME_TOKENS, WRONG
from bench.report.tables import known, number
from bench.stats.intervals import LEVEL
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of


def conclusion(summary: pd.DataFrame) -> str:
    """The sentences, about all families together."""
    rows = [row for row in rows_of(summary, ALL) if row.decoder == BASELINE or known(row.speedup)]
    baseline = next((row for row in rows if row.decoder == BASELINE), None)
    others = [row for row in rows if row.decoder != BASELINE]
    exact = [row for row in others if row.guarantee not in (None, NO_GUARANTEE, WRONG)]
    lossy = [row for row in others if row.guarantee == NO_GUARANTEE]
    untold = [row.decoder for row in others if row.guarantee is None]
    said = [
        *([_of_exact(exact)] if exact else []),
        *([_of_lossy(lossy, baseline)] if lossy else []),
        *([f"Not recorded is what these guarantee: {', '.join(untold)}."] if untold else []),
        *(f"{r.decoder} claims to be lossless and is not." for r in others if r.guarantee == WRONG),
    ]
    return " ".join(said) or f"Nothing was compared with {BASELINE}."


def _of_exact(rows: Sequence[SummaryRow]) -> str:
    """The fastest of those with a guarantee; whether it is faster at all."""
    best = _fastest(rows)
    low, several = best.speedup_low, len(rows) > 1
    keeps = "its very tokens" if best.guarantee == SAME_TOKENS else "its distribution"
    if low is not None and low > 1:
        text = f"{best.decoder} is {_times(best)} and keeps {keeps}"
        return f"{text}: the fastest of {len(rows)} with a guarantee." if several else f"{text}."
    text = f"{best.decoder} measures {_times(best)}"
    if several:
        text = f"the fastest of {len(rows)}, {text}"
    return f"No decoder with a guarantee is shown to be faster than {BASELINE}: {text}."


def _of_lossy(rows: Sequence[SummaryRow], baseline: SummaryRow | None) -> str:
    best = _fastest(rows)
    text = f"{best.decoder}, which guarantees nothing, is {_times(best)}"
    if known(best.quality):
        text += f" at quality {number(best.quality, '.1f', 100)} %"
        if baseline is not None and known(baseline.quality):
            text += f" ({BASELINE}: {number(baseline.quality, '.1f', 100)} %)"
    return f"{text}."


def _fastest(rows: Sequence[SummaryRow]) -> SummaryRow:
    return max(rows, key=lambda row: row.speedup or 0.0)


def _times(row: SummaryRow) -> str:
    """``2.52 times as fast as ar (95 % interval [2.14, 2.97], 28 prompts)``."""
    low, high = row.speedup_low, row.speedup_high
    aside = f"{row.pairs} prompts" if row.batch_size in (None, 1) else f"{row.pairs} groups"
    if known(low) and known(high):
        aside = f"{LEVEL} interval [{number(low)}, {number(high)}], {aside}"
    return f"{number(row.speedup)} times as fast as {BASELINE} ({aside})"
