"""What a run shows in one or two sentences: the first thing that a report says.

It names the fastest decoder among those that guarantee something of their answers, and the fastest
of those that do not, beside its quality. One is called the fastest where its paired interval over
every other one excludes 1 and the difference exceeds the A/A floor; otherwise it is said which
cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from bench.records.plan import BASELINE, NO_GUARANTEE, SAME_TOKENS, WRONG
from bench.report.tables.table import interval, is_number, number
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.summary import ALL, Pairs
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import UNKNOWN, counted, percent


def conclusion(summary: pd.DataFrame, pairs: Pairs | None) -> str:
    """The sentences, about all families together; without `pairs` nobody is called the fastest."""
    rows = [
        row for row in rows_of(summary, ALL) if row.decoder == BASELINE or is_number(row.speedup)
    ]
    baseline = next((row for row in rows if row.decoder == BASELINE), None)
    others = [row for row in rows if row.decoder != BASELINE]
    exact = [row for row in others if row.guarantee not in (None, NO_GUARANTEE, WRONG)]
    lossy = [row for row in others if row.guarantee == NO_GUARANTEE]
    untold = [row.decoder for row in others if row.guarantee is None]
    said = [
        *([_of_exact(exact, pairs)] if exact else []),
        *([_of_lossy(lossy, baseline)] if lossy else []),
        *([f"Not recorded is what these guarantee: {', '.join(untold)}."] if untold else []),
        *(f"{r.decoder} claims to be lossless and is not." for r in others if r.guarantee == WRONG),
    ]
    return " ".join(said) or f"Nothing was compared with {BASELINE}."


def _of_exact(rows: Sequence[SummaryRow], pairs: Pairs | None) -> str:
    """The fastest of those with a guarantee, as far as it can be told."""
    shown = [row for row in rows if (row.speedup_low or 0) > 1 and _exceeds(row)]
    if not shown:
        best, several = _fastest(rows), len(rows) > 1
        text = f"{best.decoder} measures {_times(best)}"
        if several:
            text = f"the highest of {len(rows)} estimates is {best.decoder}'s, {_times(best)}"
        return f"No decoder with a guarantee is shown to be faster than {BASELINE}: {text}."
    best = _fastest(shown)
    keeps = "its very tokens" if best.guarantee == SAME_TOKENS else "its distribution"
    text = f"{best.decoder} is {_times(best)} and keeps {keeps}"
    if len(rows) == 1:
        return f"{text}."
    if pairs is None:
        return f"{text}; which of {len(rows)} with a guarantee is the fastest is not recorded."
    tied = not_slower(best, [row for row in rows if row is not best], pairs, best.floor)
    if not tied:
        return f"{text}: the fastest of {len(rows)} with a guarantee."
    names = ", ".join([best.decoder, *tied])
    alike = f"the best {len(tied) + 1} cannot be told apart ({names})"
    return f"{text}; of {len(rows)} with a guarantee {alike}."


def _exceeds(row: SummaryRow) -> bool:
    return row.estimate("speedup").exceeds(row.floor)


def not_slower(
    best: SummaryRow, others: Iterable[SummaryRow], pairs: Pairs | None, floor: Estimate
) -> list[str]:
    """The others that are not shown to be slower than the `best`; all of them without `pairs`."""
    over = {other: (pairs or {}).get((best.decoder, other.decoder), Estimate()) for other in others}
    return [
        other.decoder
        for other, pair in over.items()
        if not (pair.exceeds(floor) and (pair.low or 0) > 1)
    ]


def _of_lossy(rows: Sequence[SummaryRow], baseline: SummaryRow | None) -> str:
    best = _fastest(rows)
    text = f"{best.decoder}, which guarantees nothing, is {_times(best)}"
    if is_number(best.quality):
        text += f" at quality {percent(best.quality, '')} %"
        if baseline is not None and is_number(baseline.quality):
            text += f" ({BASELINE}: {percent(baseline.quality, '')} %)"
    return f"{text}."


def _fastest(rows: Sequence[SummaryRow]) -> SummaryRow:
    return max(rows, key=lambda row: row.speedup or 0.0)


def _times(row: SummaryRow) -> str:
    """``2.52 times as fast as ar (95 % interval [2.14, 2.97], 28 prompts)``."""
    noun = "prompt" if row.batch_size in (None, 1) else "group"
    aside = counted(row.pairs or 0, noun)
    if (ends := interval(row.speedup_low, row.speedup_high)) != UNKNOWN:
        aside = f"{LEVEL} interval {ends}, {aside}"
    return f"{number(row.speedup)} times as fast as {BASELINE} ({aside})"
