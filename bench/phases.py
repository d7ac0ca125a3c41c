"""The instrumented second pass: where the time of an answer goes, phase by phase.

It runs after the measured repeats, on a few prompts, and is no part of any other number: its clock
is read around every call (on a GPU each reading waits for the device), which the timed pass must
not suffer. What it measures lies in ``phases.json``. Nothing here costs the timed pass anything:
the phases are cut by a scheduler and a decoder that wrap the plain ones.

=========  =========================================================================================
prefill    all up to the first emit (at batch size > 1: target calls on an empty cache)
draft      calls of the draft model, and target calls whose tokens nobody reads: slots that propose
verify     all other target calls
sampling   from logits to what the decoder is sent: warping, picking, verdicts
scheduler  choosing and merging calls, cutting and counting what is emitted
other      the decoder's own code
=========  =========================================================================================

They add up to the whole. Letters: B sequences at a time.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.errors import BenchError, Exit
from bench.files import write_json
from bench.records import SCHEMA
from bench.rundir import load_records

if TYPE_CHECKING:
    from bench.plan import Plan
    from bench.progress import Progress
    from bench.prompts import Prompt
    from bench.workbench import Arm, Workbench

PHASES_FILE = "phases.json"
PHASES = ("prefill", "draft", "verify", "sampling", "scheduler", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasedAnswer:
    """One answer (or a group of B at a time) of the second pass: its seconds by phase, its counts.

    `later_*` count what came after the first step, as `bench.metrics.Tally` does.
    """

    decoder: str
    prompts: tuple[str, ...]
    seconds: Mapping[str, float]
    emitted: int
    later_emitted: int
    later_steps: int

    @property
    def total_s(self) -> float:
        """All phases together."""
        return sum(self.seconds.values())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Back from JSON data."""
        return cls(**{**data, "prompts": tuple(data["prompts"])})


def read_phases(run_dir: Path) -> tuple[PhasedAnswer, ...]:
    """What the second pass of a run measured; empty where it had none.

    Errors: `BenchError` (exit 4) on a damaged file.
    """
    path = run_dir / PHASES_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return tuple(PhasedAnswer.from_dict(answer) for answer in data["answers"])
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path} is damaged: {error}", Exit.INVALID) from error


class PhaseClock:
    """Charges all time that passes to the phase it is in."""

    def __init__(self, now: Any) -> None:
        """`now` reads a clock in seconds."""
        self._now = now
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._phase = "scheduler"
        self._since_s = 0.0

    def start(self) -> None:
        """Begin in the scheduler."""
        self._phase, self._since_s = "scheduler", self._now()

    def switch(self, phase: str) -> str:
        """Charge what passed since the last switch, go on in `phase`; returns the phase left."""
        now_s = self._now()
        self.seconds[self._phase] += now_s - self._since_s
        left, self._phase, self._since_s = self._phase, phase, now_s
        return left

    def first(self, _index: int = 0) -> None:
        """The first token is there: all so far was the prefill's."""
        self.switch(self._phase)
        spent_s = sum(self.seconds.values())
        self.seconds = dict.fromkeys(PHASES, 0.0) | {"prefill": spent_s}

    @contextmanager
    def within(self, phase: str) -> Generator[None]:
        """Be in `phase`, and then in the one before."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)


# ---------------------------------------------------------------- measuring


def split_time(
    bench: Workbench,
    plan: Plan,
    prompts: Mapping[str, Prompt],
    run_dir: Path,
    progress: Progress,
) -> None:
    """Measure the phases of every arm on a few prompts, spread over the families, and store them.

    What gave no answer in the timed pass is not asked again. Does nothing where it is switched off
    or was done before (a resumed run).
    """
    from bench.clock import Stopwatch
    from bench.runner import frozen_garbage
    from decoders.core.types import Generation

    groups = chosen_groups(plan, bench.config.phase_limit)
    if not groups or (run_dir / PHASES_FILE).is_file():
        return
    records = load_records(run_dir)
    failed = {(r.decoder, r.prompt) for r in records if r.kind == "timing" and r.error}
    answers: list[PhasedAnswer] = []
    arms = list(bench.arms.items())
    shuffler = random.Random(plan.order_seed)
    progress.start("phases", len(groups) * len(arms))
    with frozen_garbage():
        for group in groups:
            for cell, arm in shuffler.sample(arms, len(arms)):
                if any((cell, name) in failed for name in group):
                    continue
                clock = PhaseClock(bench.clock.now)
                with Stopwatch(bench.clock):
                    outcomes = _run(arm, [prompts[name] for name in group], bench, clock)
                done = [outcome for outcome in outcomes if isinstance(outcome, Generation)]
                if len(done) == len(group):
                    answers.append(_answer(cell, group, done, clock))
                progress.step()
    data = [dataclasses.asdict(answer) for answer in answers]
    write_json(run_dir / PHASES_FILE, {"schema": SCHEMA, "phases": PHASES, "answers": data})


def chosen_groups(plan: Plan, limit: int) -> list[tuple[str, ...]]:
    """Blocks of the first repeat, the families by turns, that hold `limit` prompts at most.

    At least one, unless `limit` is 0.
    """
    families = {prompt.prompt: prompt.family for prompt in plan.prompts}
    blocks = [block.prompts for block in plan.blocks if block.repeat == 0]
    queues: dict[str, list[tuple[str, ...]]] = {}
    for group in sorted(blocks):
        queues.setdefault(families[group[0]], []).append(group)
    chosen: list[tuple[str, ...]] = []
    turn = [group for row in _transposed(list(queues.values())) for group in row]
    for group in turn if limit else ():
        if chosen and sum(map(len, chosen)) + len(group) > limit:
            break
        chosen.append(group)
    return chosen


def _transposed(queues: Sequence[list[tuple[str, ...]]]) -> list[list[tuple[str, ...]]]:
    longest = max(map(len, queues), default=0)
    return [[queue[i] for queue in queues if i < len(queue)] for i in range(longest)]


def _run(arm: Arm, prompts: Sequence[Prompt], bench: Workbench, clock: PhaseClock) -> list[Any]:
    from bench.phased_scheduler import PhasedScheduler

    alone = bench.config.batch_size == 1
    scheduler = PhasedScheduler(arm, bench.sampling, bench.config.batch_size, clock)
    clock.start()
    outcomes = scheduler.run(
        [prompt.ids for prompt in prompts], on_first=clock.first if alone else None
    )
    clock.switch("scheduler")
    return outcomes


def _answer(
    cell: str, prompts: tuple[str, ...], done: Sequence[Any], clock: PhaseClock
) -> PhasedAnswer:
    emitted = sum(len(generation.tokens) for generation in done)
    first = sum(len(generation.steps[0].tokens) for generation in done)
    return PhasedAnswer(
        decoder=cell,
        prompts=prompts,
        seconds={phase: round(spent_s, 9) for phase, spent_s in clock.seconds.items()},
        emitted=emitted,
        later_emitted=emitted - first,
        later_steps=sum(len(generation.steps) - 1 for generation in done),
    )
