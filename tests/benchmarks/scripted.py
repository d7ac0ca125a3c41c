"""``python -m tests.benchmarks.scripted``: scripted acceptance against what `bench project` says.

Decoders of k drafts that stand with given chances run on models with random weights; beside each
measured speed-up stands that of its trace on a cost curve of calls timed alone. What is no call
(sampling, the scheduler, a draft layer) is taken over from a run in seconds a step, and calls of
slots in calls that verify, as `bench project` does. Answers of AR and of the decoder, both again
with their calls timed, and calls of the curve take turns; medians over the turns count. Times mean
something on an idle machine alone.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from bench.measure.bare import SPECS, Bench, Timing
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
CALLS = 5


class Watched:
    """A forward that keeps the seconds of calls that are no prompt's, by what they do."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.times_s = bench, defaultdict[str, list[float]](list)

    def __call__(self, calls: Sequence[Call]) -> Tensor:
        session, start_s = calls[0].session, self.bench.clock.now()
        of_target = session.model is self.bench.models.target
        is_prompt = of_target and not session.length
        if is_prompt:
            self.times_s.clear()
        logits = forward(calls)
        if not is_prompt:
            kind = "draft" if not of_target else "verify" if calls[0].slots is None else "propose"
            self.times_s[kind].append(self.bench.clock.now() - start_s)
        return logits


@dataclass
class Cell:
    """One decoder at one chance: the seconds of each turn, and answers, which are alike in all."""

    ratios: list[float] = field(default_factory=list)
    overhead_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    proposal_shares: list[float] = field(default_factory=list)
    calls_s: list[dict[CostCell, float]] = field(default_factory=list)
    drafts_s: list[dict[CostCell, float]] = field(default_factory=list)
    timings: tuple[Timing, ...] = ()

    def take_turn(self, bench: Bench, name: str, spec: str, chance: float, context: int) -> None:
        """Measure everything once."""
        middle = context + bench.num_tokens // 2
        readings = {BASELINE: Scripted([0.0]), name: Scripted([chance])}
        specs = {BASELINE: BASELINE, name: spec}
        asked = [(bench.models, context, 1, readings[each]) for each in specs]
        runs = zip(specs.values(), asked, strict=True)
        self.timings = base, timing = tuple(bench.once(each, *given) for each, given in runs)
        self.ratios.append(base.token_s / timing.token_s)
        for each, given in zip(specs, asked, strict=True):
            watched = Watched(bench)
            self.overhead_s[each].append(overhead_of(bench, watched, specs[each], *given))
        if proposals := watched.times_s["propose"]:
            self.proposal_shares.append(mean(proposals) / mean(watched.times_s["verify"]))
        self.calls_s.append(calls_of(bench, bench.models.target, middle))
        if name == "spec" and bench.models.draft is not None:
            self.drafts_s.append(calls_of(bench, bench.models.draft, middle))

    def projected(self, name: str, context: int) -> float:
        """The speed-up of the decoder's trace on the medians of its turns."""
        terms = Terms(
            curve=curve_of(self.calls_s),
            draft=curve_of(self.drafts_s) if self.drafts_s else None,
            overhead_s={each: median(seconds) for each, seconds in self.overhead_s.items()},
            draft_share={name: 0.0},  # a draft layer's calls are overhead
            proposal_share={name: median(self.proposal_shares or [1.0])},
        )
        records = [
            scripted_record(each, timing, context)
            for each, timing in zip((BASELINE, name), self.timings, strict=True)
        ]
        (found,) = project(records, terms, [name])
        assert found.speedup.value is not None
        return found.speedup.value


def overhead_of(bench: Bench, watched: Watched, spec: str, *given: Any) -> float:
    """Seconds a step that are no calls, of a run of its own."""
    bench.forward = watched  # type: ignore[assignment]
    try:
        timing = bench.once(spec, *given)
    finally:
        bench.forward = forward
    return max(0.0, timing.seconds - sum(map(sum, watched.times_s.values()))) / timing.num_steps


def calls_of(bench: Bench, model: Model, context: int) -> dict[CostCell, float]:
    """Seconds of calls of one sequence after `context` tokens."""
    cells = [CostCell(rows=rows, sequences=1, context=context) for rows in ROWS]
    with Sequences(model, cells) as sequences:
        times = {c: [sequences.timed(c, bench.clock) for _ in range(CALLS)][1:] for c in cells}
    return {cell: median(seconds) for cell, seconds in times.items()}


def curve_of(turns: Sequence[dict[CostCell, float]]) -> CostCurve:
    """Medians of all turns."""
    return CostCurve({cell: median(turn[cell] for turn in turns) for cell in turns[0]})


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
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args(arguments)
    bench = Bench(
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
    context = given.context
    bench.attach()
    print("| decoder | k | chance | tokens a step | measured | projected | apart |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for chance, k, name in product(bench.chances, bench.ks, SPECS):
        spec, cell = SPECS[name].format(k=k, slots=k + 1), Cell()
        bench.time(spec, context, 1, reading=Scripted([chance]))  # warms up
        for _ in range(given.turns):
            cell.take_turn(bench, name, spec, chance, context)
        timing, measured = cell.timings[1], median(cell.ratios)
        expected = cell.projected(name, context)
        apart, per_step = expected / measured - 1, timing.tokens / timing.num_steps
        print(f"| {name} | {k} | {chance} | {per_step:.2f} ", end="")
        print(f"| {measured:.2f} | {expected:.2f} | {100 * apart:+.0f} % |", flush=True)


if __name__ == "__main__":
    main()
