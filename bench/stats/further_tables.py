"""Tables of a run beside its summary: pairs of decoders, acceptance, steps, prompts, waits.

A reader waits for the first token, and between *chunks* of tokens: a chunk is the tokens of one
step; the time of a step without tokens counts for the next chunk. Only unbatched answers have these
times.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median

import numpy as np
import pandas as pd

from bench.records.plan import Plan, baseline_arms
from bench.records.record import SampleRecord
from bench.stats import calibration, counters, times
from bench.stats.intervals import Estimate, paired_speedup
from bench.stats.speedups import Speedups, speedups
from bench.stats.summary import ALL, decoder_order, family_order, select_family
from bench.stats.times import Unit

Rivals = Mapping[tuple[str, str], Estimate]
"""Speed-ups of one decoder over another, by (decoder, other decoder)."""
_ACCEPTANCE_COLUMNS = (
    *("decoder", "family", "position"),
    *("steps", "reached", "accepted", "joint", "conditional"),
    *("added", "later_steps", "unconditional"),
)
_PROMPT_COLUMNS = (
    *("decoder", "family", "conversation", "prompt"),
    *("tokens", "ar_time_per_token_s", "time_per_token_s", "speedup"),
)
PERCENTILES = (*range(100), 99.5, 99.9, 100)
FIRST, BETWEEN = "first token", "between chunks"


def second_arm(records: Sequence[SampleRecord]) -> Speedups:
    """Return all estimators of the noise floor, over all families."""
    units = times.units_by_decoder(records)
    return speedups(*(units[arm] for arm in baseline_arms(units)))


def rivals(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Rivals:
    """Estimate the speed-up of each decoder over every other decoder, over all families."""
    units = times.units_by_decoder(records)
    return {
        (name, other): paired_speedup(units[other], units[name])
        for name, other in itertools.permutations(decoders, 2)
    }


def acceptance_table(records: Sequence[SampleRecord], plan: Plan) -> pd.DataFrame:
    """Tabulate the fields and properties of `PositionCount` per decoder, family and position."""
    rows = [
        {
            "decoder": decoder,
            "family": family,
            **asdict(count),
            "conditional": count.conditional,
            "unconditional": count.unconditional,
        }
        for decoder, family, answers in _cells(records, plan)
        for count in counters.acceptance_by_position(answers)
    ]
    return pd.DataFrame(rows, columns=list(_ACCEPTANCE_COLUMNS))


def calibration_table(records: Sequence[SampleRecord], decoders: Sequence[str]) -> pd.DataFrame:
    """Tabulate tested drafts by decoder, position in the step and bin of confidence."""
    groups, columns = counters.group_by(records), ["drafts", "accepted", "confidence"]
    rows = []
    for decoder in decoders:
        for position, counts in calibration.count_drafts(groups.get(decoder, ())).items():
            parts = (counts.sum(0), counts[1], counts.sum(0) * calibration.CONFIDENCES)
            sums = np.stack([np.bincount(calibration.BINS, part) for part in parts], 1)
            rows += [
                (decoder, position, bin_ + 1, *map(float, each))
                for bin_, each in enumerate(sums)
                if each[0]
            ]
    frame = pd.DataFrame(rows, columns=["decoder", "position", "bin", *columns])
    return frame.astype({"drafts": int, "accepted": int})


def step_length_table(records: Sequence[SampleRecord], plan: Plan) -> pd.DataFrame:
    """Tabulate later steps by emitted tokens, per decoder over all families."""
    rows = [
        {"decoder": decoder, "tokens": tokens, "steps": steps, "share": steps / sum(num.values())}
        for decoder, family, answers in _cells(records, plan)
        if family == ALL
        for num in [counters.step_lengths(answers)]
        for tokens, steps in num.items()
    ]
    return pd.DataFrame(rows, columns=["decoder", "tokens", "steps", "share"])


def _cells(
    records: Sequence[SampleRecord], plan: Plan
) -> Iterator[tuple[str, str, list[SampleRecord]]]:
    cells = counters.group_by(records)
    for decoder in decoder_order(plan, records):
        for family in [*family_order(r.family for r in cells[decoder]), ALL]:
            yield decoder, family, select_family(cells[decoder], family)


def prompt_table(records: Iterable[SampleRecord], decoders: Iterable[str]) -> pd.DataFrame:
    """Tabulate the times of decoder and baseline, one row per decoder and prompt (or group).

    Times are medians over the repeats that both finished; the baseline's second arm comes last.
    """
    units = times.units_by_decoder(records)
    baseline, second = baseline_arms(units)
    rows: list[Mapping[str, object]] = []
    for decoder in [name for name in decoders if name != baseline] + [second]:
        pairs: dict[str, list[tuple[Unit, Unit]]] = {}
        for other, unit in times.matched(units[baseline], units[decoder]):
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
