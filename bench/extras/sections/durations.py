"""Report time by phase, the parts of a speed-up, and how long readers wait.

Costs are in units of ar's time per token. After the first token, a decoder that emits AL tokens per
step at a cost of verify + draft + overhead has the speed-up AL / (verify + draft + overhead). The
costs come from the second pass (`bench.measure.phases`), the measured speed-up from the timed
blocks. The residual between the two shows disturbances of the second pass, and drift.

Readers wait for the first token, and between *chunks*. A chunk is the tokens of one step; the time
of a step without tokens counts for the next chunk. Only unbatched answers have these times.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bench.records.plan import baseline_arms
from bench.records.record import SampleRecord
from bench.records.samples import PHASES, PhasedAnswer, read_phases
from bench.report.figures.style import Look
from bench.report.findings import Findings
from bench.report.sections import Figure, Plot, Section
from bench.report.tables.table import Columns, Table, TableCell, number
from bench.stats import counters, times
from bench.stats.counters import ratio
from bench.text import UNKNOWN, change, counted, factor, percent

PERCENTILES = (*range(100), 99.5, 99.9, 100)
FIRST, BETWEEN = "first token", "between chunks"
_PERCENTILES = (50, 95, 99)
MAX_RESIDUAL = 0.05
"""Limit of a residual; a larger one is flagged as a disturbance of one of the two passes."""
OVERHEAD = ("sampling", "scheduler", "other")
"""Phases other than calls and the prefill."""
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
_PHASE_COLOURS = {
    "prefill": "#9aa7b8",
    "draft": "#c8a45c",
    "verify": "#5a6f8f",
    "sampling": "#8aa886",
    "scheduler": "#b58a86",
    "other": "#c3bdb4",
}
"""Muted, so that no phase looks like a decoder."""
_PHASE_NAMES = {"verify": "target calls"}
"""AR verifies nothing: its ``verify`` time is the time of the target calls after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Hold one decoder's time in the second pass, by phase.

    The `shares` add up to 1. `against_timed` is the second pass's time per token / the timed
    pass's, for the same answers.
    `padding` is the share of computed rows that only pad merged calls to one width.
    """

    decoder: str
    prompts: int
    time_per_token_s: float
    shares: Mapping[str, float]
    against_timed: float | None
    padding: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """Hold the parts of one decoder's speed-up after the first token.

    Costs are in ar's seconds per token. `measured` is the ratio of totals of the same answers in
    the timed pass.
    """

    decoder: str
    prompts: int
    acceptance_length: float
    verify: float
    draft: float
    overhead: float
    measured: float | None

    @property
    def cost(self) -> float:
        """Return the cost of a step."""
        return self.verify + self.draft + self.overhead

    @property
    def predicted(self) -> float:
        """Return the speed-up predicted from the parts."""
        return self.acceptance_length / self.cost

    @property
    def residual(self) -> float | None:
        """Return measured / predicted - 1."""
        return None if self.measured is None else self.measured / self.predicted - 1


def splits(
    answers: Sequence[PhasedAnswer], records: Iterable[SampleRecord], decoders: Iterable[str]
) -> list[Split]:
    """Split every decoder's time by phase, in the order of `decoders`."""
    units, phased = times.units_by_decoder(records), counters.group_by(answers)
    rows = []
    for decoder in decoders:
        repeats = phased.get(decoder, [])
        emitted, total_s = sum(a.emitted for a in repeats), sum(a.total_s for a in repeats)
        if not emitted or not total_s:
            continue
        timed = times.time_per_token_s(_repeated(units[decoder], repeats))
        each = total_s / emitted
        grouped = [answer for answer in repeats if len(answer.prompts) > 1]
        padded = sum(answer.padded_rows for answer in grouped)
        rows.append(
            Split(
                decoder=decoder,
                prompts=sum(len(answer.prompts) for answer in repeats),
                time_per_token_s=each,
                shares={phase: spent_s(repeats, phase) / total_s for phase in PHASES},
                against_timed=each / timed if timed else None,
                padding=ratio(padded, sum(answer.rows for answer in grouped) + padded),
            )
        )
    return rows


def decompositions(
    answers: Sequence[PhasedAnswer], records: Iterable[SampleRecord], decoders: Iterable[str]
) -> list[Decomposition]:
    """Decompose every decoder's speed-up, on unbatched prompts with later steps on both sides."""
    units = times.units_by_decoder(records)
    baseline = baseline_arms(units)[0]
    alone = [a for a in answers if len(a.prompts) == 1 and a.later_steps]
    reference = {a.prompts: a for a in alone if a.decoder == baseline}
    rows = []
    for decoder in decoders:
        repeats = [a for a in alone if a.decoder == decoder and a.prompts in reference]
        base = [reference[answer.prompts] for answer in repeats]
        unit_s = ratio(spent_s(base, *PHASES[1:]), sum(a.later_emitted for a in base))
        if decoder == baseline or not unit_s:
            continue
        num_steps = sum(answer.later_steps for answer in repeats)
        step_s = num_steps * unit_s
        sides = (_repeated(units[name], repeats) for name in (baseline, decoder))
        before, after = map(times.decode_time_per_token_s, sides)
        rows.append(
            Decomposition(
                decoder=decoder,
                prompts=len(repeats),
                acceptance_length=sum(a.later_emitted for a in repeats) / num_steps,
                verify=spent_s(repeats, "verify") / step_s,
                draft=spent_s(repeats, "draft") / step_s,
                overhead=spent_s(repeats, *OVERHEAD) / step_s,
                measured=before / after if before and after else None,
            )
        )
    return rows


def spent_s(answers: Iterable[PhasedAnswer], *phases: str) -> float:
    """Return the seconds that answers spent in some phases."""
    return sum(answer.seconds.get(phase, 0.0) for answer in answers for phase in phases)


def _repeated(units: Iterable[times.Unit], answers: Iterable[PhasedAnswer]) -> list[times.Unit]:
    """Return the timed units that the second pass repeated."""
    repeats = {("|".join(sorted(answer.prompts)), answer.repeat) for answer in answers}
    return [u for u in units if (u.key, u.repeat) in repeats]


def split(splits: Sequence[Split]) -> Table:
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
        "cache); draft: calls of what drafts, and target calls that only propose; target calls: "
        "all other target calls, which verify drafts or, in decoders without verification, "
        "predict; sampling: from logits to tokens and verdicts; scheduler: merging and splitting "
        "calls, counting; other: the decoder's own code. Time against the timed pass: per token, "
        "in this pass / in that one, for the same answers; the clock costs a few per cent."
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

    If the second pass was faster, or slower by more than instruments can cost, the machine's speed
    changed, because no other cause acts on all decoders.
    """
    ratios = [item.against_timed for item in splits if item.against_timed is not None]
    if len(ratios) < 2 or min(ratios) <= 1 <= max(ratios):
        return []
    word = "faster" if max(ratios) < 1 else "slower"
    why = "the machine's speed changed in between, so shares of time hold, milliseconds do not"
    if 1 < min(ratios) <= 1 + MAX_RESIDUAL:
        why = "reading the clock costs a few per cent, which the milliseconds of that pass include"
    return [
        f"The second pass was {word} than the timed one for every decoder "
        f"({factor(min(ratios))} to {factor(max(ratios))}): {why}."
    ]


def parts(decomposed: Sequence[Decomposition]) -> Table:
    """Make the table of speed-ups split into parts, if there was a second pass."""
    note = (
        "After the first token: speed-up = tokens per step / (target calls + draft + overhead). "
        "Costs are per step, in units of the baseline's seconds per token; overhead is sampling, "
        f"scheduler and the decoder's own code. {_PASS.format(_prompts(decomposed))} Measured: the "
        "timed pass's ratio of totals of the same answers. Residual: measured / predicted - 1; "
        f"bold beyond {100 * MAX_RESIDUAL:.0f} %, where one of the two passes was disturbed."
    )
    return Table.of("What the speed-up is made of", note, _SPEEDUP_PARTS, decomposed)


def time_split_figure(splits: Sequence[Split], summary: pd.DataFrame) -> Plot | None:
    """Draw the time of a token by phase, as shares and in milliseconds, a bar per decoder."""
    from bench.report.figures import canvas  # matplotlib: only where something is drawn

    splits = [split for split in splits if split.decoder in set(summary["decoder"])]
    if not splits:
        return None
    each = [1e3 * split.time_per_token_s for split in splits]
    rows = [
        (split.decoder, phase, share, share * ms)
        for split, ms in zip(splits, each, strict=True)
        for phase, share in split.shares.items()
    ]
    data = pd.DataFrame(rows, columns=["decoder", "phase", "share", "ms_per_token"])
    phases = [phase for phase in PHASES if data.loc[data["phase"] == phase, "share"].max() > 0]
    figure, grid = canvas.row_of_panels(2, 0.3 * len(splits) + 1.1, rows=True)
    for column, axes in zip(("share", "ms_per_token"), grid, strict=True):
        left = np.zeros(len(splits))
        for phase in phases:
            widths = data.loc[data["phase"] == phase, column].to_numpy()
            label, colour = _PHASE_NAMES.get(phase, phase), _PHASE_COLOURS[phase]
            axes.barh(range(len(splits)), widths, 0.7, left=left, label=label, color=colour)
            left += widths
    for y, ms in enumerate(each):
        style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        grid[1].annotate(f"{ms:.{1 if ms >= 10 else 2}f}", (ms, y), (3, 0), **style)
    canvas.percent_ticks(grid[0].xaxis, 5)
    grid[0].set_xlim(0, 1)
    grid[1].set_xlim(0, 1.15 * max(each))
    grid[1].tick_params(axis="y", length=0)
    grid[0].set_title("share of time", fontsize=9)
    grid[1].set_title("ms per token", fontsize=9)
    canvas.name_rows(grid[0], Look.of(summary).names(split.decoder for split in splits))
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(phases), frameon=False)
    return figure, data


def _phases(findings: Findings) -> tuple[PhasedAnswer, ...]:
    return read_phases(findings.run.path)


def time_splits(findings: Findings) -> list[Split]:
    """Return the time by phase in a run's second pass, if there was one."""
    return splits(findings.once(_phases), findings.run.records, findings.decoders)


def speedup_parts(findings: Findings) -> list[Decomposition]:
    """Return a run's speed-ups split into parts, if there was a second pass."""
    return decompositions(findings.once(_phases), findings.run.records, findings.decoders)


def caveats(findings: Findings) -> Iterable[str]:
    """State a common change of speed between both passes."""
    return instrument_bias_note(findings.once(time_splits))


_FIGURE = Figure(
    "time_split",
    "Time of a token by phase, from the instrumented second pass over {sample}.",
    "there was no second pass",
    lambda findings, summary: time_split_figure(findings.once(time_splits), summary),
    9,
    sample=lambda findings: _prompts(findings.once(time_splits)),
)
TIME = Section(
    "time",
    lambda f: [split(f.once(time_splits)), parts(f.once(speedup_parts))],
    7,
    figures=(_FIGURE,),
)


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


def waits(latency: pd.DataFrame) -> Table | None:
    """Make the table of percentiles of the time to the first token and between chunks.

    `latency` comes from `latency_table`. Percentile p is shown from
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


def latency_figure(latency: pd.DataFrame, summary: pd.DataFrame) -> Plot | None:
    """Draw the cumulative shares of waits for the first token, and for the next chunk.

    `latency` comes from `latency_table`.
    """
    from bench.report.figures import canvas  # matplotlib: only where something is drawn

    data = latency[latency["decoder"].isin(summary["decoder"])].reset_index(drop=True)
    if data.empty:
        return None
    look = Look.of(summary)
    waits = [wait for wait in (BETWEEN, FIRST) if (data["wait"] == wait).any()]
    figure, grid = canvas.row_of_panels(len(waits), 2.8, rows=True)
    for wait, axes in zip(waits, grid, strict=True):
        for decoder, rows in data[data["wait"] == wait].groupby("decoder", sort=False):
            style: dict[str, Any] = {"color": look.palette[str(decoder)], "lw": 1.5}
            style |= {"ls": (0, (3, 1.5)) if decoder in look.marks else "-"}
            x, y = 1e3 * rows["seconds"], rows["percentile"] / 100
            axes.plot(x, y, drawstyle="steps-post", **style)
        axes.set_title(f"time to {wait}" if wait == FIRST else f"time {wait}", fontsize=9)
        axes.set_xlabel("ms")
        axes.grid(visible=True)
        axes.set_ylim(0, 1.01)
        axes.set_xscale("log")
        canvas.log_ticks(axes.xaxis)
    canvas.percent_ticks(grid[0].yaxis, 5)
    grid[0].set_yticks([0, 0.25, 0.5, 0.75, 0.9, 0.99])
    grid[0].set_ylabel("cumulative share of waits")
    canvas.key(figure, list(data["decoder"].unique()), look)
    return figure, data


def _latency(findings: Findings) -> pd.DataFrame:
    return latency_table(findings.run.records, findings.decoders)


_LATENCY_FIGURE = Figure(
    "latency",
    "Cumulative share of waits for the first token and for the next chunk, over all answers. A "
    "chunk is the tokens of a step. Dashed: lossy.",
    "no unbatched answer with recorded steps was timed",
    lambda findings, summary: latency_figure(findings.once(_latency), summary),
    8,
)
LATENCY = Section("latency", lambda f: [waits(f.once(_latency))], 6, figures=(_LATENCY_FIGURE,))
