"""`bench project`'s speed-up of a scripted run (`bench.measure.bare`), from calls timed alone."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from bench.measure.call_times import Sequences
from bench.records.cost import CostCell
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord, StepColumns
from bench.stats.cost_curve import CostCurve
from bench.stats.project import Terms, project
from decoders.core.model import Model

if TYPE_CHECKING:
    from bench.measure.bare import Bench, Timing

_ROWS = (1, 2, 3, 5, 9, 17, 34)
_CALLS = 9


def curve_of(bench: Bench, model: Model, context: int) -> CostCurve:
    """Time calls of one sequence after `context` tokens."""
    cells = [CostCell(rows=rows, sequences=1, context=context) for rows in _ROWS]
    with Sequences(model, cells) as sequences:
        times = {c: [sequences.timed(c, bench.clock) for _ in range(_CALLS)][1:] for c in cells}
    return CostCurve({cell: median(seconds) for cell, seconds in times.items()})


def projected_speedup(
    bench: Bench, name: str, base: Timing, timing: Timing, context: int
) -> float | None:
    """Project a decoder's trace, what is no call taken over; a draft layer's calls are none."""
    middle = context + bench.plan.num_tokens // 2
    draft = bench.models.draft if name == "spec" else None
    both = {BASELINE: base, name: timing}
    terms = Terms(
        curve=curve_of(bench, bench.models.target, middle),
        draft=None if draft is None else curve_of(bench, draft, middle),
        overhead_s={n: (each.seconds - each.calls_s) / each.num_steps for n, each in both.items()},
        draft_share={name: 0.0},
    )
    records = [record_of(n, each, context) for n, each in both.items()]
    (found,) = project(records, terms, [name], records)
    return found.speedup.value


def record_of(decoder: str, timing: Timing, context: int) -> SampleRecord:
    """Return the record of a scripted answer."""
    (answer,) = timing.answers
    return SampleRecord(
        kind="timing",
        decoder=decoder,
        family="scripted",
        conversation="scripted",
        turn=1,
        prompt_hash="",
        repeat=0,
        seed=0,
        block=0,
        order=0,
        attempt=0,
        batch_size=1,
        num_prompt_tokens=context,
        tokens=answer.tokens,
        text="",
        stop=answer.stop,
        steps=StepColumns.of(answer),
        ttft_s=timing.first_s,
        total_s=timing.first_s + timing.seconds,
    )
