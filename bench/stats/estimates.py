"""Further estimates: tokens per step with an interval, and speed-ups by prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import pandas as pd

from bench.records.plan import BASELINE, SECOND_BASELINE
from bench.records.record import SampleRecord
from bench.stats import counters, times
from bench.stats.clusters import cluster_names
from bench.stats.counters import Tally
from bench.stats.intervals import Estimate, ratio_of_sums
from bench.stats.times import Unit

_PROMPT_COLUMNS = (
    *("decoder", "family", "conversation", "prompt"),
    *("tokens", "ar_time_per_token_s", "time_per_token_s", "speedup"),
)


def acceptance_length(records: Iterable[SampleRecord]) -> Estimate:
    """Estimate tokens per step, with a jackknife interval over conversations.

    The steps of an answer depend on each other, so the number of steps is not the sample size.
    """
    parts: dict[str, list[tuple[float, float]]] = {}
    chosen = counters.timed(records)
    clusters = cluster_names(chosen)
    for record in chosen:
        tally = Tally.of(record)
        steps = (tally.emitted - tally.first_emitted, tally.later_steps)
        parts.setdefault(clusters[record.conversation], []).append(steps)
    return ratio_of_sums(parts)


def prompt_table(records: Iterable[SampleRecord], decoders: Iterable[str]) -> pd.DataFrame:
    """Tabulate the times of decoder and baseline, one row per decoder and prompt (or group).

    Times are medians over the repeats that both finished; ``ar@aa`` comes after the `decoders`.
    """
    units = times.units_of(records)
    rows: list[Mapping[str, object]] = []
    for decoder in [name for name in decoders if name != BASELINE] + [SECOND_BASELINE]:
        pairs: dict[str, list[tuple[Unit, Unit]]] = {}
        for other, unit in times.matched(units[BASELINE], units[decoder]):
            if unit.ok and other.ok:
                pairs.setdefault(unit.key, []).append((other, unit))
        rows += [_prompt_row(decoder, group) for group in pairs.values()]
    return pd.DataFrame(rows, columns=list(_PROMPT_COLUMNS))


def _prompt_row(decoder: str, pairs: Sequence[tuple[Unit, Unit]]) -> dict[str, object]:
    base_s, mine_s = (
        median(side.time_per_token or 0.0 for side in sides) for sides in zip(*pairs, strict=True)
    )
    first = pairs[0][1]
    return {
        "decoder": decoder,
        "family": first.family,
        "conversation": first.cluster,
        "prompt": first.key,
        "tokens": median(unit.tokens for _, unit in pairs),
        "ar_time_per_token_s": base_s,
        "time_per_token_s": mine_s,
        "speedup": base_s / mine_s if mine_s else None,
    }
