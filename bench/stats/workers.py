"""What each worker of a run measured, apart: its noise floor, its speed-ups, its drift.

A block's decoders and both arms of the baseline ran in one worker, so that a worker's own pace
divides out of every paired ratio, and ratios of all workers may be pooled. Whether a worker's pace
was steady is seen only by itself, before pooling.

*Drift* of a worker is how much slower the baseline became from the first to the last third of its
blocks: the difference of the medians of the logs of its times per token, each less the median of
its prompt over all workers. A prompt that was measured in one block only says nothing. No torch
here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.records.plan import BASELINE, SECOND_BASELINE
from bench.records.record import SampleRecord
from bench.stats.intervals import Estimate, paired_speedup
from bench.stats.times import timed_units

_MIN_BLOCKS = 9
"""Blocks below which a worker's drift is not known: three in each third."""
Of = Callable[[SampleRecord], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one worker (or one machine of a merged run) measured.

    `floor` is its second arm of the baseline against the first, `speedups` those of its decoders.
    """

    name: str
    node: str | None
    num_blocks: int
    floor: Estimate
    speedups: Mapping[str, Estimate]
    drift: float | None

    @property
    def title(self) -> str:
        """The name, and the node where that is something else."""
        return f"{self.name} (node {self.node})" if self.node else self.name


def workers(records: Iterable[SampleRecord], decoders: Sequence[str]) -> list[Part]:
    """A part for each worker; empty where the run's own process measured everything."""
    return _parts(records, decoders, lambda record: record.worker)


def machines(records: Iterable[SampleRecord], decoders: Sequence[str]) -> list[Part]:
    """A part for each machine of a merged run; empty where there are not several."""
    parts = _parts(records, decoders, lambda record: record.machine)
    return parts if len(parts) > 1 else []


def _parts(records: Iterable[SampleRecord], decoders: Sequence[str], of: Of) -> list[Part]:
    timing = [record for record in records if record.kind == "timing" and of(record)]
    grouped: defaultdict[str, list[SampleRecord]] = defaultdict(list)
    for record in timing:
        grouped[str(of(record))].append(record)
    drifting = drifts(timing, of)
    return [
        Part(
            name=name,
            node=mine[0].node,
            num_blocks=len({record.block for record in mine}),
            floor=_speedup(mine, SECOND_BASELINE),
            speedups={cell: _speedup(mine, cell) for cell in decoders if cell != BASELINE},
            drift=drifting.get(name),
        )
        for name, mine in sorted(grouped.items(), key=lambda item: (len(item[0]), item[0]))
    ]


def _speedup(records: Sequence[SampleRecord], cell: str) -> Estimate:
    base, mine = (timed_units(r for r in records if r.decoder == name) for name in (BASELINE, cell))
    return paired_speedup(base, mine, lambda unit: unit.time_per_token)


def drifts(records: Iterable[SampleRecord], of: Of) -> dict[str, float]:
    """How much longer a token of the baseline took at the end, by worker (0.05: 5 % longer)."""
    logs: defaultdict[str, dict[tuple[int, int, str, str], float]] = defaultdict(dict)
    for (block, name), seconds in _pace(records, of).items():
        for (attempt, arm, prompts), pace in seconds.items():
            logs[prompts][attempt, block, name, arm] = math.log(pace)
    rest: defaultdict[str, dict[tuple[int, int], list[float]]] = defaultdict(dict)
    for of_prompt in logs.values():
        if len({block for _, block, _, _ in of_prompt}) < 2:
            continue
        usual = median(of_prompt.values())
        for (attempt, block, name, _), log in of_prompt.items():
            rest[name].setdefault((attempt, block), []).append(log - usual)
    known = {name: blocks for name, blocks in rest.items() if len(blocks) >= _MIN_BLOCKS}
    return {name: _change(blocks) for name, blocks in known.items()}


def _change(blocks: Mapping[tuple[int, int], list[float]]) -> float:
    """From the first to the last third, in the order measured."""
    ordered = [blocks[key] for key in sorted(blocks)]
    third = len(ordered) // 3
    early, late = (
        median(log for logs in part for log in logs) for part in (ordered[:third], ordered[-third:])
    )
    return round(math.expm1(late - early), 4)


def _pace(
    records: Iterable[SampleRecord], of: Of
) -> dict[tuple[int, str], dict[tuple[int, str, str], float]]:
    """Seconds per token of the baseline by block and worker; within by attempt, arm and prompts."""
    groups: defaultdict[tuple[int, str, int, str], list[SampleRecord]] = defaultdict(list)
    for r in records:
        if r.decoder in (BASELINE, SECOND_BASELINE) and r.kind == "timing" and r.error is None:
            groups[r.block, str(of(r)), r.attempt, r.decoder].append(r)
    pace: defaultdict[tuple[int, str], dict[tuple[int, str, str], float]] = defaultdict(dict)
    for (block, name, attempt, arm), group in groups.items():
        seconds = group[0].total_s or group[0].group_s
        num_tokens = sum(len(record.tokens or ()) for record in group)
        if seconds and num_tokens:
            prompts = "|".join(sorted(record.prompt for record in group))
            pace[block, name][attempt, arm, prompts] = seconds / num_tokens
    return pace
