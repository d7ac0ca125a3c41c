"""What a run can tell apart: a sentence on how small a difference its intervals still show.

Half the interval [low, high] of a speed-up is the factor ``sqrt(high / low)``, as it is an interval
of logarithms: around a decoder that differs from the baseline by less, one as wide holds 1, and no
difference is shown. Of a quality it is half the interval, in points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from bench.records.plan import BASELINE
from bench.report.tables.table import without_wrong
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import factor, percent


def resolution(summary: pd.DataFrame) -> str:
    """The sentence, over all families; empty where no decoder has an interval."""
    rows = rows_of(without_wrong(summary), ALL)
    speed = {row.decoder: width for row in rows if (width := speed_width(row)) is not None}
    quality = {row.decoder: width for row in rows if (width := quality_width(row)) is not None}
    grouped = any(row.batch_size not in (None, 1) for row in rows)
    units = "groups of prompts" if grouped else "prompts"
    parts = []
    if speed:
        num = _numbers([row.pairs for row in rows if row.decoder in speed])
        parts.append(
            f"in speed below {_range(speed, factor)} cannot be told apart with {num} {units}"
        )
    if quality:
        num = _numbers([row.quality_prompts for row in rows if row.decoder in quality])
        points = _range(quality, lambda width: f"{percent(width, '')} points")
        parts.append(f"in quality below {points} cannot be told apart with {num} held-out prompts")
    return f"Resolution: differences from {BASELINE} {'; '.join(parts)}." if parts else ""


def speed_width(row: SummaryRow) -> float | None:
    """Half the interval of a speed-up, a factor; None where there is none."""
    low, high = row.speedup_low, row.speedup_high
    if row.decoder == BASELINE or low is None or high is None or low <= 0:
        return None
    return math.sqrt(high / low)


def quality_width(row: SummaryRow) -> float | None:
    """Half the interval of a quality; None where it is unknown, or all scores are one."""
    low, high = row.quality_low, row.quality_high
    if low is None or high is None or low == high:
        return None
    return (high - low) / 2


def _range(widths: Mapping[str, float], text: Callable[[float], str]) -> str:
    """``1.08x (spec) to 1.26x (idlm)``; of one decoder, or where all are alike, one width."""
    ordered = sorted(widths, key=lambda decoder: widths[decoder])
    first, last = (text(widths[decoder]) for decoder in (ordered[0], ordered[-1]))
    return first if first == last else f"{first} ({ordered[0]}) to {last} ({ordered[-1]})"


def _numbers(counts: Sequence[int | None]) -> str:
    known = [count for count in counts if count is not None]
    least, most = min(known, default=0), max(known, default=0)
    return str(least) if least == most else f"{least} to {most}"
