"""Speed-up by how long answers are: the prompts of a run in groups, short answers first.

No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean, median

import numpy as np
import pandas as pd

from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.stats import counters, times
from bench.stats.intervals import Estimate, paired_speedup
from bench.stats.times import Unit

_MOST_GROUPS = 4
_FEWEST_PROMPTS = 6
"""Of a group: fewer give no interval worth drawing."""
_COLUMNS = (
    *("decoder", "prompts", "shortest", "longest", "ar_tokens"),
    *("speedup", "speedup_low", "speedup_high"),
)


def by_length(records: Iterable[SampleRecord], decoders: Iterable[str]) -> pd.DataFrame:
    """Paired speed-ups in up to four groups of as many prompts, by the length of ar's answers.

    A prompt's length is the median over ar's repeats. Empty where there are too few prompts for two
    groups, or answers were timed in batches, whose lengths are not one.
    """
    timed = [record for record in records if record.kind == "timing"]
    cells = counters.by(timed, lambda record: record.decoder)
    alone = all(record.batch_size == 1 for record in timed)
    baseline = times.timed_units(cells.get(BASELINE, [])) if alone else []
    groups = _groups(baseline)
    rows = []
    for decoder in decoders:
        arm = times.timed_units(cells.get(decoder, [])) if groups else []
        for lengths in groups if decoder != BASELINE else ():
            chosen = [unit for unit in baseline if unit.key in lengths]
            speedup = paired_speedup(chosen, arm, lambda unit: unit.time_per_token)
            if speedup.value is not None:
                rows.append(_row(decoder, list(lengths.values()), speedup))
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    return frame.astype(dict.fromkeys(_COLUMNS[2:], "float64"))


def _row(decoder: str, lengths: Sequence[float], speedup: Estimate) -> dict[str, object]:
    return {
        "decoder": decoder,
        "prompts": speedup.num,
        "shortest": min(lengths),
        "longest": max(lengths),
        "ar_tokens": mean(lengths),
        "speedup": speedup.value,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
    }


def _groups(baseline: Sequence[Unit]) -> list[dict[str, float]]:
    """Prompts with the lengths of ar's answers, in groups from short to long."""
    each: dict[str, list[int]] = {}
    for unit in baseline:
        if unit.ok:
            each.setdefault(unit.key, []).append(unit.tokens)
    lengths = sorted((float(median(tokens)), key) for key, tokens in each.items())
    num = min(_MOST_GROUPS, len(lengths) // _FEWEST_PROMPTS)
    if num < 2:
        return []
    places = np.array_split(np.arange(len(lengths)), num)
    return [{lengths[i][1]: lengths[i][0] for i in group} for group in places]
