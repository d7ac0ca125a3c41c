"""The summary's columns beside the headline: other estimators, more intervals, the A/A floor.

Also what they are estimated from, prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import pandas as pd

from bench.records.plan import BASELINE, SECOND_BASELINE
from bench.records.record import SampleRecord
from bench.stats import counters, times
from bench.stats.counters import Tally
from bench.stats.intervals import Estimate, paired_speedup, ratio_of_sums
from bench.stats.speedups import speedups
from bench.stats.times import Unit

_PROMPT_COLUMNS = (
    *("decoder", "family", "conversation", "prompt"),
    *("tokens", "ar_time_per_token_s", "time_per_token_s", "speedup"),
)


def columns(
    decoder: str,
    records: Sequence[SampleRecord],
    baseline: Sequence[Unit],
    mine: Sequence[Unit],
    again: Sequence[Unit],
) -> dict[str, object]:
    """Return these columns of `SummaryRow` of one decoder in one family.

    `records` are its own there; `baseline`, `mine` and `again` the timed units of the baseline, of
    the decoder, and of the baseline's second arm.
    """
    length = acceptance_length(records)
    floor = paired_speedup(baseline, again)
    row: dict[str, object] = {
        "acceptance_length_low": length.low,
        "acceptance_length_high": length.high,
        "aa_speedup": floor.value,
        "aa_low": floor.low,
        "aa_high": floor.high,
    }
    if decoder == BASELINE:
        return row | dict.fromkeys(("speedup_total", "specbench_compat"), 1.0 if mine else None)
    speedup = speedups(baseline, mine)
    return {
        **row,
        **speedup.totals.columns("speedup_total"),
        **speedup.specbench.columns("specbench_compat"),
        "speedup_bootstrap_low": speedup.resampled.low,
        "speedup_bootstrap_high": speedup.resampled.high,
        "intervals_disagree": speedup.disagree,
        "prompts_needed": speedup.needed,
    }


def acceptance_length(records: Iterable[SampleRecord]) -> Estimate:
    """Estimate the tokens per step with a jackknife interval over conversations.

    The steps of an answer depend on each other, so their number is no sample size.
    """
    parts: dict[str, list[tuple[float, float]]] = {}
    for record in counters.timed(records):
        tally = Tally.of(record)
        steps = (tally.emitted - tally.first_emitted, tally.later_steps)
        parts.setdefault(record.conversation, []).append(steps)
    return ratio_of_sums(parts)


def prompt_table(records: Iterable[SampleRecord], decoders: Iterable[str]) -> pd.DataFrame:
    """Tabulate both sides' times, a row per decoder and prompt (or group).

    Medians over the repeats that both sides finished; ``ar@aa`` comes after the `decoders`.
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
