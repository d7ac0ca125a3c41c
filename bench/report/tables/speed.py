"""Tables of speed-ups and times.

Speed-ups by estimator, between decoders, by worker and machine; time by phase, the parts of a
speed-up, waiting times of readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import pandas as pd

from bench.records.plan import BASELINE, SECOND
from bench.records.samples import PHASES
from bench.report.tables.table import (
    EXPLORATORY,
    SESSIONS,
    Columns,
    Table,
    TableCell,
    against_floor,
    by_family,
    estimated,
    number,
    over,
    speed,
)
from bench.stats.decompose import MAX_RESIDUAL, Decomposition, Split
from bench.stats.further_tables import BETWEEN, FIRST, Rivals
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.speedups import PRECISION, Speedups
from bench.stats.summary import ALL
from bench.stats.workers import Part
from bench.text import UNKNOWN, change, counted, factor, percent

WITHIN = f"±{100 * PRECISION:.0f} %"
_BOOTSTRAP = f"{LEVEL} bootstrap (from 8 conversations on)"
_FAMILY_TABLES = {
    "speedup": (
        "geometric mean",
        f"Geometric mean over prompts of paired ratios, end to end, {LEVEL} t-interval",
    ),
    "speedup_decode": (
        "decode",
        f"The same from the first token on, in answers that go on, {LEVEL} t-interval",
    ),
    "speedup_total": (
        "ratio of totals",
        f"Total seconds per token of the baseline / the decoder's, end to end, {_BOOTSTRAP}",
    ),
    "specbench_compat": (
        "specbench_compat",
        "Spec-Bench's unpaired ratio of mean tokens per second of questions, end to end, "
        f"{_BOOTSTRAP}",
    ),
}
"""Columns of the summary, each with its name and definition."""
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
_PASS = (
    "From an instrumented second pass over {}, separate from the timed pass: it reads the clock "
    "around every call."
)
_SPEEDUP_PARTS: Columns = {
    "decoder": lambda item: item.decoder,
    "tokens per step": lambda item: number(item.acceptance_length),
    "target calls": lambda item: number(item.verify),
    "draft": lambda item: number(item.draft),
    "overhead": lambda item: number(item.overhead),
    "predicted speed-up": lambda item: factor(item.predicted),
    "measured": lambda item: factor(item.measured),
    "residual %": lambda item: TableCell(
        change(item.residual, ""), abs(item.residual or 0) > MAX_RESIDUAL
    ),
}
_PERCENTILES = (50, 95, 99)
_DATASHEETS = {"NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA H200": 4.8e12}
"""Bytes per second of GPUs' memory, by NVIDIA's datasheets of H100 (SXM) and H200."""


def estimators(summary: pd.DataFrame, second_arm: Speedups) -> Table | None:
    """Make the table of every estimator over all families, with the baseline's second arm last."""
    note = (
        f"End to end, over {over(summary)}. Geometric mean (the headline) of paired per-prompt "
        "ratios, with a t-interval of their logs, clustered by conversation; the other intervals "
        "are bootstraps. Ratio of totals: the baseline's seconds per token over all answers / the "
        "decoder's. specbench_compat: mean over questions of the decoder's tokens per second / the "
        "baseline's, unpaired, as in Spec-Bench. Prompts needed: how many more would narrow the "
        f"headline's interval to {WITHIN}. {SESSIONS}"
    )
    rows = [row for row in summary_rows(summary, ALL) if row.decoder != row.over]
    table = Table.of("Speed-up by estimator", note, _ESTIMATORS, rows)
    if table is None:
        return None
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


def by_families(summary: pd.DataFrame, sizes: str) -> list[Table]:
    """Make a table by family per estimator, the first with a last row of A/A floors."""
    tables = []
    for column, (name, definition) in _FAMILY_TABLES.items():
        if column != "speedup" and summary[column].isna().all():  # none from the first token on
            continue
        note = (
            f"{definition} over conversations; bold if it excludes 1 and exceeds the A/A floor. "
            f"{EXPLORATORY} {sizes} prompts."
        )
        cell = partial(speed, column=column)
        tables.append(by_family(summary, f"Speed-up by family ({name})", note, cell))
    floors = {row.family: TableCell(estimated(row.floor)) for row in summary_rows(summary, None)}
    cells = (floors.get(family, TableCell(UNKNOWN)) for family in tables[0].headings[1:])
    last = (TableCell(f"{over(summary)}{SECOND} (A/A)"), *cells)
    return [replace(tables[0], rows=(*tables[0].rows, last)), *tables[1:]]


def needs(summary: pd.DataFrame) -> str:
    """State how many more prompts the wide intervals need, widest first."""
    wide = {
        row.decoder: row.prompts_needed for row in summary_rows(summary, ALL) if row.prompts_needed
    }
    if not wide:
        return ""
    first, *rest = sorted(wide, key=lambda decoder: -wide[decoder])
    more = "".join(f", {wide[decoder]} for {decoder}" for decoder in rest)
    return f"Wide intervals: {WITHIN} needs {wide[first]} more prompts for {first}{more}."


def no_speedups(summary: pd.DataFrame) -> Iterable[str]:
    """Name the decoders that have no speed-up of their own, with the reason and the families."""
    families: dict[tuple[str, str], list[str]] = {}
    for row in summary_rows(summary, None):
        if row.no_speedup:
            families.setdefault((row.decoder, row.no_speedup), []).append(row.family)
    for (decoder, reason), where in families.items():
        yield f"{decoder} has no speed-up (-) in {', '.join(where)}: {reason}."


def weights_sentence(summary: pd.DataFrame, gpu: str | None) -> str:
    """State how fast ar reads weights, and its share of a GPU's published bandwidth, if known."""
    rows = (row for row in summary_rows(summary, ALL) if row.decoder == BASELINE)
    rate, peak = next((row.weights_per_s for row in rows), None), _DATASHEETS.get(gpu or "")
    if rate is None:
        return ""
    text = f"{BASELINE} reads the target's weights at {number(rate, ',.1f', 1e-9)} GB/s"
    return f"{text}{f', {percent(rate / peak)} of the datasheet of {gpu}' if peak else ''}."


def floor_note(row: SummaryRow) -> str:
    """State the A/A floor of one speed-up, if it is known."""
    return "" if row.aa_speedup is None else f"A/A {estimated(row.floor)}"


def by_part(kind: Literal["worker", "machine"], parts: Sequence[Part]) -> Table | None:
    """Make the table of a run's workers, or of a merged run's machines."""
    columns: Columns = {
        kind: lambda part: part.name,
        "node": lambda part: part.node or UNKNOWN,
        "blocks": lambda part: str(part.num_blocks),
        "A/A": lambda part: TableCell(estimated(part.floor), bad=part.floor.differs_from_one),
        "drift %": lambda part: change(part.drift, ""),
    }

    def speedup(part: Part, decoder: str) -> TableCell:
        return against_floor(part.speedups[decoder], part.floor)

    for decoder in parts[0].speedups if parts else ():
        columns[decoder] = partial(speedup, decoder=decoder)
    note = f"{_PARTS[kind]} Geometric means with {LEVEL} intervals over conversations."
    return Table.of(f"By {kind}", note, columns, parts)


def split(splits: Sequence[Split]) -> Table | None:
    """Make the table of time by phase, if there was a second pass."""

    def share(item: Split, phase: str) -> str:
        return percent(item.shares[phase], "")

    columns: Columns = {
        "decoder": lambda item: item.decoder,
        "ms per token": lambda item: number(item.time_per_token_s, ".2f", 1e3),
    }
    for phase in PHASES:
        name = "target calls" if phase == "verify" else phase
        columns[f"{name} %"] = partial(share, phase=phase)
    note = (
        f"{_PASS.format(_prompts(splits))} Shares of the time from request start to last token, "
        "per cent. Prefill: all up to the first token (in batches: target calls on an empty "
        "cache); draft: calls of the draft model, and target calls that only propose; target "
        "calls: all other target calls, which verify drafts or, in decoders without verification, "
        "predict; sampling: from logits to tokens and verdicts; scheduler: merging and splitting "
        "calls, counting; other: the decoder's own code, which includes draft layers and heads "
        "that it runs itself. Time against the timed pass: time per token in this pass / in the "
        "timed pass, for the same answers; reading the clock costs a few per cent."
    )
    if any(item.padding is not None for item in splits):
        columns["padding %"] = lambda item: percent(item.padding, "")
        note += (
            " Padding: share of computed rows (not of time) that only pad merged calls to the same "
            "width."
        )
    columns["time against the timed pass"] = lambda item: factor(item.against_timed)
    note = " ".join([note, *instrument_bias_note(splits)])
    return Table.of("Where the time goes", note, columns, splits)


def _prompts(measured: Iterable[Split | Decomposition]) -> str:
    return counted(max((item.prompts for item in measured), default=0), "prompt")


def instrument_bias_note(splits: Iterable[Split]) -> list[str]:
    """State that the second pass was faster, or slower, than the timed pass for every decoder.

    If it was faster, or slower by more than instruments can cost, the machine's speed changed: of
    all causes, only the machine's speed is common to all decoders.
    """
    ratios = [item.against_timed for item in splits if item.against_timed is not None]
    if len(ratios) < 2 or min(ratios) <= 1 <= max(ratios):
        return []
    word = "faster" if max(ratios) < 1 else "slower"
    why = "the machine's speed changed in between, so shares of time hold, milliseconds do not"
    if 1 < min(ratios) <= 1 + MAX_RESIDUAL:
        why = "reading the clock costs that much, and the milliseconds above include it"
    return [
        f"The second pass was {word} than the timed one for every decoder "
        f"({factor(min(ratios))} to {factor(max(ratios))}): {why}."
    ]


def parts(decomposed: Sequence[Decomposition]) -> Table | None:
    """Make the table of speed-ups split into parts, if there was a second pass."""
    note = (
        "After the first token: speed-up = tokens per step / (target calls + draft + overhead). "
        "Costs are per step, in units of the baseline's seconds per token; overhead is sampling, "
        f"scheduler and the decoder's own code. {_PASS.format(_prompts(decomposed))} Measured: the "
        "timed pass's ratio of totals of the same answers. Residual: measured / predicted - 1; "
        f"bold beyond {100 * MAX_RESIDUAL:.0f} %, where one of the two passes was disturbed."
    )
    return Table.of("What the speed-up is made of", note, _SPEEDUP_PARTS, decomposed)


def waits(latency: pd.DataFrame) -> Table | None:
    """Make the table of percentiles of the time to the first token and between chunks.

    `latency` comes from `bench.stats.further_tables.latency_table`. Percentile p is shown from
    100 / (100 - p) waits on, so that at least one wait may exceed it.
    """
    if latency.empty:
        return None
    values = latency.set_index(["decoder", "wait", "percentile"])["seconds"]
    counts = latency.groupby(["decoder", "wait"])["n"].first()

    def percentile(decoder: str, wait: str, p: int) -> str:
        enough = counts.get((decoder, wait), 0) * (100 - p) >= 100
        return number(values[decoder, wait, p], ".1f", 1e3) if enough else UNKNOWN

    def num(decoder: str, wait: str) -> str:
        return str(counts.get((decoder, wait), 0))

    columns: Columns = {"decoder": str}
    for wait, name in ((FIRST, "TTFT"), (BETWEEN, "between chunks")):
        for p in _PERCENTILES:
            columns[f"{name} p{p}"] = partial(percentile, wait=wait, p=p)
        columns[f"{name} n"] = partial(num, wait=wait)
    ends = ", ".join(f"p{p}" for p in _PERCENTILES)
    note = (
        f"Milliseconds until the first token (TTFT) and between chunks (a chunk is the tokens of a "
        f"step), {ends} over all unbatched timed answers. pX: the least measured wait that "
        "X per cent of the waits do not exceed; '-': too few waits (n) to exceed it."
    )
    return Table.of("Latency, ms", note, columns, latency["decoder"].unique())
