"""Report speed-ups by estimator, between decoders, by worker, by machine and by prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Literal

import pandas as pd

from bench.records.plan import SECOND, baseline_arms
from bench.records.record import SampleRecord
from bench.report.sections import Section
from bench.report.tables.conclusion import WITHIN, Rivals
from bench.report.tables.table import (
    EXPLORATORY,
    SESSIONS,
    Columns,
    Table,
    TableCell,
    against_floor,
    estimated,
    number,
    over,
    speed,
)
from bench.stats import times
from bench.stats.intervals import LEVEL, Estimate, paired_speedup
from bench.stats.metrics import summary_rows
from bench.stats.speedups import Speedups, speedups
from bench.stats.summary import ALL
from bench.stats.times import Unit
from bench.stats.workers import Part, run_parts
from bench.text import UNKNOWN, change

_ESTIMATORS: Columns = {
    "decoder": lambda r: r.decoder,
    f"geometric mean [{LEVEL} t]": speed,
    f"ratio of totals [{LEVEL}]": partial(speed, column="speedup_total"),
    f"specbench_compat [{LEVEL}]": partial(speed, column="specbench_compat"),
    f"prompts needed for {WITHIN}": lambda r: number(r.prompts_needed, ".0f"),
}
_PARTS = {
    "worker": (
        "Each worker before pooling. Both sides of a ratio ran in the same worker, so its speed "
        "cancels. A/A: the baseline's second arm against its first. Drift: how much longer a token "
        "of the baseline took in the last third of a worker's blocks than in the first."
    ),
    "machine": (
        "Parts of this run were measured on different machines: counters are pooled; times and "
        "speed-ups hold only within a machine and are shown only here."
    ),
}
"""Notes below the tables of a run's parts, by kind of part."""
_PROMPT_COLUMNS = (
    *("decoder", "family", "conversation", "prompt"),
    *("tokens", "ar_time_per_token_s", "time_per_token_s", "speedup"),
)


def second_arm(records: Sequence[SampleRecord]) -> Speedups:
    """Return all estimators of the noise floor, over all families."""
    units = times.units_by_decoder(records)
    return speedups(*(units[arm] for arm in baseline_arms(units)))


def estimators(summary: pd.DataFrame, second_arm: Speedups) -> Table:
    """Make the table of every estimator over all families, with the baseline's second arm last."""
    note = (
        f"End to end, over {over(summary)}. Geometric mean (the headline) of paired per-prompt "
        "ratios, with a t-interval of their logs, clustered by conversation; the other intervals "
        "are jackknife. Ratio of totals: the baseline's seconds per token over all answers / the "
        "decoder's. specbench_compat: mean over questions of the decoder's tokens per second / the "
        "baseline's, unpaired, as in Spec-Bench. Prompts needed: how many more would narrow the "
        f"headline's interval to {WITHIN}. {SESSIONS}"
    )
    rows = [row for row in summary_rows(summary, ALL) if row.decoder != row.over]
    table = Table.of("Speed-up by estimator", note, _ESTIMATORS, rows)
    if not rows:
        return table  # which has no place for the noise floor alone
    texts = (
        f"{over(summary)}{SECOND} (A/A)",
        estimated(second_arm.geometric),
        estimated(second_arm.totals),
        estimated(second_arm.specbench),
        number(second_arm.more_prompts, ".0f"),
    )
    return replace(table, rows=(*table.rows, tuple(map(TableCell, texts))))


def pairwise_speedups(pairs: Rivals, floor: Estimate) -> Table | None:
    """Make the table of speed-ups between all decoders, if there are three."""
    decoders = list(dict.fromkeys(name for pair in pairs for name in pair))
    if len(decoders) < 3:
        return None  # the main table already has all speed-ups
    note = (
        "Speed of the row's decoder / speed of the column's: geometric mean over prompts of "
        f"paired ratios of time per emitted token, end to end, {LEVEL} t-interval over "
        "conversations; bold if it excludes 1 and exceeds the A/A floor. Only speed is compared, "
        f"not guarantees or quality. {EXPLORATORY}"
    )

    def cell(row: str, column: str) -> TableCell | str:
        return UNKNOWN if row == column else against_floor(pairs[row, column], floor)

    columns: Columns = {"decoder": str, **{d: partial(cell, column=d) for d in decoders}}
    return Table.of("Decoders against one another", note, columns, decoders)


def by_part(
    kind: Literal["worker", "machine"], parts: Sequence[Part], decoders: Iterable[str]
) -> Table | None:
    """Make the table of a run's workers, or of a merged run's machines if there are several."""
    if not parts or (kind == "machine" and len(parts) == 1):
        return None
    columns: Columns = {
        kind: lambda part: part.name,
        "node": lambda part: part.node or UNKNOWN,
        "blocks": lambda part: str(part.num_blocks),
        "A/A": lambda part: TableCell(estimated(part.floor), bad=part.floor.differs_from_one),
        "drift %": lambda part: change(part.drift, ""),
    }

    def speedup(part: Part, decoder: str) -> TableCell:
        baseline, _ = baseline_arms(part.units)
        ratio = paired_speedup(part.units[baseline], part.units[decoder])
        return against_floor(ratio, part.floor)

    for decoder in decoders:
        if decoder != baseline_arms(parts[0].units)[0]:
            columns[decoder] = partial(speedup, decoder=decoder)
    note = f"{_PARTS[kind]} Geometric means with {LEVEL} intervals over conversations."
    return Table.of(f"By {kind}", note, columns, parts)


def prompt_table(records: Iterable[SampleRecord], decoders: Iterable[str]) -> pd.DataFrame:
    """Tabulate the times of decoder and baseline, one row per decoder and prompt (or group).

    Times are medians over the repeats that both cells finished. The baseline's second arm is last.
    """
    units = times.units_by_decoder(records)
    baseline, second = baseline_arms(units)
    rows: list[tuple[object, ...]] = []
    for decoder in [name for name in decoders if name != baseline] + [second]:
        pairs: dict[str, list[tuple[Unit, Unit]]] = {}
        for other, unit in times.matched(units[baseline], units[decoder]):
            if unit.ok and other.ok:
                pairs.setdefault(unit.key, []).append((other, unit))
        for repeats in pairs.values():
            base_s, arm_s = (
                median(unit.time_per_token or 0.0 for unit in side)
                for side in zip(*repeats, strict=True)
            )
            first, tokens = repeats[0][1], median(unit.tokens for _, unit in repeats)
            place = (decoder, first.family, first.cluster, first.key)
            rows.append((*place, tokens, base_s, arm_s, base_s / arm_s if arm_s else None))
    return pd.DataFrame(rows, columns=list(_PROMPT_COLUMNS))


ESTIMATORS = Section(
    "estimators",
    lambda f: [estimators(f.report_summary, second_arm(f.run.records))],
    1,
    data={"by_prompt": lambda f: prompt_table(f.run.records, f.decoders)},
)
RIVALS = Section("rivals", lambda f: [pairwise_speedups(f.rivals, f.floor)], 2)
PARTS = Section(
    "part",
    lambda f: [
        by_part("machine", run_parts(f.run.records, "machine"), f.timed_decoders),
        by_part("worker", run_parts(f.run.records, "worker"), f.timed_decoders),
    ],
    3,
)
