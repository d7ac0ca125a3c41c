"""``python -m tests.benchmarks.scripted``: scripted acceptance against what `bench project` says.

Decoders of k drafts that stand with given chances run on models with random weights; beside each
measured speed-up stands that of its trace on a cost curve of calls timed alone. What is no call
(sampling, the scheduler, a draft layer) is taken over from the run in seconds a step, as
`bench project` does. Times mean something on an idle machine alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from statistics import median

import torch
from torch import Tensor

from bench.measure.bare import SPECS, Bench, Plan, Timing
from bench.measure.call_times import Sequences
from bench.records.cost import CostCell
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.stats.cost_curve import CostCurve
from bench.stats.project import Terms, project
from decoders.core.engine.forward import forward
from decoders.core.model import Model
from decoders.core.testing.scripted import Scripted
from decoders.core.types import Call
from tests.answer_records import record_of

ROWS = (1, 2, 3, 5, 9, 17, 34)
CALLS = 9


class Watched:
    """A forward that adds up the seconds of calls that are no prompt's."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.seconds = bench, 0.0

    def __call__(self, calls: Sequence[Call]) -> Tensor:
        session, start_s = calls[0].session, self.bench.clock.now()
        is_prompt = session.model is self.bench.models.target and not session.length
        if is_prompt:
            self.seconds = 0.0
        logits = forward(calls)
        self.seconds += 0.0 if is_prompt else self.bench.clock.now() - start_s
        return logits


def overhead_of(bench: Bench, spec: str, context: int, chance: float) -> float:
    """Seconds a step that are no calls, of a run of its own."""
    bench.forward = watched = Watched(bench)  # type: ignore[assignment]
    try:
        timing = bench.once(spec, bench.models, context, 1, Scripted([chance]))
    finally:
        bench.forward = forward
    return max(0.0, timing.seconds - watched.seconds) / timing.num_steps


def curve_of(bench: Bench, model: Model, context: int) -> CostCurve:
    """Calls of one sequence after `context` tokens."""
    cells = [CostCell(rows=rows, sequences=1, context=context) for rows in ROWS]
    with Sequences(model, cells) as sequences:
        times = {c: [sequences.timed(c, bench.clock) for _ in range(CALLS)][1:] for c in cells}
    return CostCurve({cell: median(seconds) for cell, seconds in times.items()})


def terms_of(bench: Bench, name: str, context: int, overhead_s: dict[str, float]) -> Terms:
    middle = context + bench.plan.num_tokens // 2
    draft = bench.models.draft if name == "spec" else None
    return Terms(
        curve=curve_of(bench, bench.models.target, middle),
        draft=None if draft is None else curve_of(bench, draft, middle),
        overhead_s=overhead_s,
        draft_share={name: 0.0},  # a draft layer's calls are overhead
    )


def projected(terms: Terms, name: str, base: Timing, timing: Timing, context: int) -> float:
    records = [scripted_record(BASELINE, base, context), scripted_record(name, timing, context)]
    (found,) = project(records, terms, [name])
    assert found.speedup.value is not None
    return found.speedup.value


def scripted_record(decoder: str, timing: Timing, context: int) -> SampleRecord:
    (answer,) = timing.answers
    total_s = 1.0 + timing.seconds
    return record_of(decoder, answer, num_prompt_tokens=context, ttft_s=1.0, total_s=total_s)


def numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scripted")
    parser.add_argument("--shape", default="zoo")
    parser.add_argument("--ks", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--chances", type=numbers, default=[0.6, 0.8, 0.9])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args(arguments)
    plan = Plan(
        shape=given.shape,
        device=torch.device("cpu"),
        dtype=torch.float32,
        contexts=(given.context,),
        batches=(1,),
        ks=[int(k) for k in given.ks],
        chances=given.chances,
        num_tokens=given.tokens,
        compile=False,
    )
    bench, context = Bench(plan), given.context
    bench.attach()
    print("| decoder | k | chance | tokens a step | measured | projected | apart |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for chance, k, name in product(plan.chances, plan.ks, SPECS):
        spec = SPECS[name].format(k=k, slots=k + 1)
        # a machine's speed drifts: AR is timed beside each cell
        base = bench.time(BASELINE, context, 1)
        timing = bench.time(spec, context, 1, reading=Scripted([chance]))
        own_s = overhead_of(bench, BASELINE, context, 0.0)
        overhead_s = {BASELINE: own_s, name: overhead_of(bench, spec, context, chance)}
        terms = terms_of(bench, name, context, overhead_s)
        measured = base.token_s / timing.token_s
        expected = projected(terms, name, base, timing, context)
        apart, per_step = expected / measured - 1, timing.tokens / timing.num_steps
        print(f"| {name} | {k} | {chance} | {per_step:.2f} ", end="")
        print(f"| {measured:.2f} | {expected:.2f} | {100 * apart:+.0f} % |", flush=True)


if __name__ == "__main__":
    main()
