"""Tables of time: by phase, the parts of a speed-up, waiting times of readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pandas as pd

from bench.records.phases import PHASES
from bench.report.tables.table import Columns, Table, TableCell, number
from bench.stats.decompose import MAX_RESIDUAL, Decomposition, Split
from bench.stats.further_tables import BETWEEN, FIRST
from bench.text import UNKNOWN, change, counted, factor, percent

_PASS = (
    "From an instrumented second pass over {}, separate from the timed pass: it reads the clock "
    "around every call."
)
_PARTS: Columns = {
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
        "Costs are per step, in units of ar's seconds per token; overhead is sampling, scheduler "
        f"and the decoder's own code. {_PASS.format(_prompts(decomposed))} Measured: the timed "
        "pass's ratio of totals of the same answers. Residual: measured / predicted - 1; bold "
        f"beyond {MAX_RESIDUAL:.0%}, which means that one of the two passes was disturbed."
    )
    return Table.of("What the speed-up is made of", note, _PARTS, decomposed)


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
