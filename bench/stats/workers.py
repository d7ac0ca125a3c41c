"""Compute statistics of each worker of a run: noise floor, drift.

All decoders and both baseline arms of a block run in one worker. A worker's own speed therefore
cancels in every paired ratio, and the ratios of all workers may be pooled.

The *drift* of a worker, or of a run without workers, is the slow-down of the baseline from the
first to the last third of the blocks. It is the difference of two medians of log times per
token, each time relative to its prompt's median over all workers. If every prompt was measured in
only one block, it is a `trend`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean, median
from typing import Literal

from scipy import stats

from bench.records.plan import baseline_arms
from bench.records.record import SampleRecord
from bench.stats.counters import group_by
from bench.stats.intervals import Estimate, paired_speedup
from bench.stats.times import Unit, timed_units, units_by_decoder

_MIN_BLOCKS = 9
"""Minimum number of blocks for a worker's drift: three in each third."""
_LEVEL = 0.01
"""Significance level of a trend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Hold the measurements of one worker (or one machine of a merged run).

    `floor` compares the baseline's second arm with the first. `units` are timed units by arm.
    """

    name: str
    node: str | None
    num_blocks: int
    floor: Estimate
    units: Mapping[str, Sequence[Unit]]
    drift: float | None

    @property
    def title(self) -> str:
        """Name of the worker, with the node if known."""
        return f"{self.name} (node {self.node})" if self.node else self.name


def run_parts(records: Iterable[SampleRecord], kind: Literal["worker", "machine"]) -> list[Part]:
    """Return a part for each worker of a run, or each machine of a merged run, if there are any."""
    of = attrgetter(kind)
    grouped = group_by((r for r in records if r.kind == "timing" and of(r)), of)
    drifting = drifts(grouped)
    result = []
    for name, group in sorted(grouped.items(), key=lambda item: (len(item[0]), item[0])):
        units = units_by_decoder(group)
        baseline, second = baseline_arms(units)
        result.append(
            Part(
                name=name,
                node=group[0].node,
                num_blocks=len({record.block for record in group}),
                floor=paired_speedup(units[baseline], units[second]),
                units=units,
                drift=drifting[name],
            )
        )
    return result


def noise_floor(records: Iterable[SampleRecord]) -> Estimate:
    """Estimate the A/A noise floor: the "speed-up" of the baseline's second arm over the first."""
    units = units_by_decoder(records)
    first, second = baseline_arms(units)
    return paired_speedup(units[first], units[second])


def baseline_units(records: Iterable[SampleRecord]) -> Iterator[tuple[tuple[int, int], Unit]]:
    """Yield the timed units of both baseline arms, each with its (attempt, block)."""
    groups: defaultdict[tuple[int, int, str], list[SampleRecord]] = defaultdict(list)
    for r in records:
        if r.kind == "timing":
            groups[r.attempt, r.block, r.decoder].append(r)
    arms = baseline_arms(decoder for *_, decoder in groups)
    for (attempt, block, decoder), group in groups.items():
        if decoder in arms:
            for unit in timed_units(group):
                yield (attempt, block), unit


def drifts(parts: Mapping[str, Sequence[SampleRecord]]) -> dict[str, float | None]:
    """Return the baseline's drift by part of a run (0.05: a token took 5 % longer at the end)."""
    logs: defaultdict[str, list[tuple[str, tuple[int, int], float]]] = defaultdict(list)
    for name, records in parts.items():
        for place, unit in baseline_units(records):
            if pace := unit.time_per_token:
                logs[unit.key].append((name, place, math.log(pace)))
    rest: defaultdict[str, dict[tuple[int, int], list[float]]] = defaultdict(dict)
    for of_prompt in logs.values():
        if len({block for _, (_, block), _ in of_prompt}) < 2:
            continue
        usual = median(log for *_, log in of_prompt)
        for name, place, log in of_prompt:
            rest[name].setdefault(place, []).append(log - usual)
    return {
        name: _change(rest[name]) if len(rest[name]) >= _MIN_BLOCKS else trend(records)
        for name, records in parts.items()
    }


def trend(records: Iterable[SampleRecord]) -> float | None:
    """Return the drift over different prompts in random order: Theil's slope times 2/3 of blocks.

    The drift is 0 unless Kendall's rank correlation of time per token and block is significant at
    `_LEVEL`, and None below `_MIN_BLOCKS` blocks. Times exclude the first token if possible,
    because the prefill's share differs between answers.
    """
    paces: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for place, unit in baseline_units(records):
        pace = unit.decode_time_per_token or unit.time_per_token
        if pace is not None and pace > 0:  # below 0 in a run that is INVALID
            paces[place].append(math.log(pace))
    logs = [fmean(paces[key]) for key in sorted(paces)]
    if len(logs) < _MIN_BLOCKS:
        return None
    places = range(len(logs))
    if not stats.kendalltau(places, logs).pvalue < _LEVEL:
        return 0.0
    slope = float(stats.theilslopes(logs, places).slope)
    return round(math.expm1(slope * 2 / 3 * len(logs)), 4)


def _change(blocks: Mapping[tuple[int, int], list[float]]) -> float:
    """Return the relative change from the first to the last third of blocks, in measured order."""
    ordered = [blocks[key] for key in sorted(blocks)]
    third = len(ordered) // 3
    early, late = (
        median(log for logs in part for log in logs) for part in (ordered[:third], ordered[-third:])
    )
    return round(math.expm1(late - early), 4)
