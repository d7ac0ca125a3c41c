"""Speed-up by answer length: the prompts of a run in groups, short answers first."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import mean, median

import pandas as pd

from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.stats import times
from bench.stats.intervals import paired_speedup
from bench.stats.times import Unit

_MOST_GROUPS = 4
_FEWEST_PROMPTS = 6
"""Fewest prompts of a group: fewer give no useful interval."""
_COLUMNS = (
    *("decoder", "prompts", "shortest", "longest", "ar_tokens"),
    *("speedup", "speedup_low", "speedup_high"),
)


def by_length(records: Iterable[SampleRecord], decoders: Iterable[str]) -> pd.DataFrame:
    """Tabulate paired speed-ups in up to four groups of prompts, by the length of ar's answers.

    The length is the median over ar's repeats. Prompts of equal length share a group. The table is
    empty if there are not two groups, or if answers were timed in batches.
    """
    timed = [record for record in records if record.kind == "timing"]
    alone = all(record.batch_size == 1 for record in timed)
    units = times.units_of(timed)
    groups = _groups(units[BASELINE]) if alone else []
    rows = []
    for decoder in decoders:
        for group in groups if decoder != BASELINE else ():
            chosen = [unit for unit in units[BASELINE] if unit.key in group]
            speedup = paired_speedup(chosen, units[decoder])
            if speedup.value is not None:
                lengths = list(group.values())
                row = {"decoder": decoder, "prompts": speedup.num, "shortest": min(lengths)}
                row |= {"longest": max(lengths), "ar_tokens": mean(lengths)}
                rows.append(row | speedup.columns("speedup"))
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    return frame.astype(dict.fromkeys(_COLUMNS[2:], "float64"))


def _groups(baseline: Sequence[Unit]) -> list[dict[str, float]]:
    """Group prompts by the lengths of ar's answers, from short to long."""
    each: defaultdict[str, list[int]] = defaultdict(list)
    for unit in baseline:
        if unit.ok:
            each[unit.key].append(unit.tokens)
    lengths = sorted((float(median(tokens)), key) for key, tokens in each.items())
    groups: list[dict[str, float]] = []
    while lengths:
        num_groups = max(1, min(_MOST_GROUPS - len(groups), len(lengths) // _FEWEST_PROMPTS))
        longest, _ = lengths[math.ceil(len(lengths) / num_groups) - 1]
        num = sum(length <= longest for length, _ in lengths)
        if len(lengths) - num < _FEWEST_PROMPTS:
            num = len(lengths)
        groups.append({key: length for length, key in lengths[:num]})
        lengths = lengths[num:]
    return groups if len(groups) > 1 else []
