"""The instrumented second pass: where the time of an answer goes, phase by phase.

It asks a few prompts once more, each right after the block that timed it, so that both passes see
the machine at the same speed, which drifts over a run. It is no part of any other number: its clock
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
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.errors import BenchError, Exit
from bench.files import write_json
from bench.records import SCHEMA
from bench.rundir import load_records

if TYPE_CHECKING:
    from bench.plan import Block, Plan
    from bench.progress import Progress
    from bench.prompts import Prompt
    from bench.workbench import Workbench

PHASES_FILE = "phases.json"
PHASES = ("prefill", "draft", "verify", "sampling", "scheduler", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasedAnswer:
    """One answer (or a group of B at a time) of the second pass: its seconds by phase, its counts.

    `later_*` count what came after the first step, as `bench.metrics.Tally` does. `repeat` is that
    of the timed block before it, whose seed it shares (None: the pass came after all of them, as it
    did in older runs).
    """

    decoder: str
    prompts: tuple[str, ...]
    seconds: Mapping[str, float]
    emitted: int
    later_emitted: int
    later_steps: int
    repeat: int | None = None

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


class SecondPass:
    """The instrumented answers of a run: taken `after` timed blocks, `complete` in the end."""

    def __init__(
        self, bench: Workbench, plan: Plan, prompts: Mapping[str, Prompt], run_dir: Path
    ) -> None:
        """Of a run that is resumed, what it has is kept (errors as `read_phases`)."""
        self._bench, self._prompts, self._run_dir = bench, prompts, run_dir
        self._answers = list(read_phases(run_dir))
        chosen = chosen_blocks(plan, bench.config.phase_limit)
        have = {(answer.prompts, answer.repeat) for answer in self._answers}
        whole = any(repeat is None for _, repeat in have)
        missing = [] if whole else [b for b in chosen if (b.prompts, b.repeat) not in have]
        self._missing = {block.block: block for block in missing}

    def after(self, block: Block, failed: Collection[str]) -> None:
        """Ask the prompts of a block that was just timed, if it is one of those chosen.

        Cells that `failed` there are not asked again. Every arm answers in an order of its own.
        """
        if self._missing.pop(block.block, None) is None:
            return
        cells = [cell for cell in self._bench.arms if cell not in failed]
        for cell in random.Random(f"phases {block.block}").sample(cells, len(cells)):
            answer = self._measured(cell, block)
            if answer is not None:
                self._answers.append(answer)
        data = [dataclasses.asdict(answer) for answer in self._answers]
        write_json(
            self._run_dir / PHASES_FILE, {"schema": SCHEMA, "phases": PHASES, "answers": data}
        )

    def complete(self, progress: Progress) -> None:
        """Ask what was not asked: the run was stopped between a block's end and its phases."""
        if not self._missing:
            return
        from bench.runner import frozen_garbage

        records = [r for r in load_records(self._run_dir) if r.kind == "timing" and r.error]
        progress.start("phases", len(self._missing))
        with frozen_garbage():
            for block in list(self._missing.values()):
                self.after(block, {r.decoder for r in records if r.block == block.block})
                progress.step()

    def _measured(self, cell: str, block: Block) -> PhasedAnswer | None:
        """One arm's answers to a block, by phase; None where one of them failed."""
        from bench.clock import Stopwatch
        from bench.phased_scheduler import PhasedScheduler
        from decoders.core.types import Generation

        bench, clock = self._bench, PhaseClock(self._bench.clock.now)
        num_rows, sampling = bench.config.batch_size, bench.repeated(block.repeat)
        scheduler = PhasedScheduler(bench.arms[cell], sampling, num_rows, clock)
        ids = [self._prompts[name].ids for name in block.prompts]
        with Stopwatch(bench.clock):
            clock.start()
            outcomes = scheduler.run(ids, on_first=clock.first if num_rows == 1 else None)
            clock.switch("scheduler")
        done = [outcome for outcome in outcomes if isinstance(outcome, Generation)]
        return _answer(cell, block, done, clock) if len(done) == len(ids) else None


def chosen_blocks(plan: Plan, limit: int) -> list[Block]:
    """The blocks that the second pass follows: of every chosen group one, the repeats by turns."""
    groups = chosen_groups(plan, limit)
    repeats = sorted({block.repeat for block in plan.blocks})
    wanted = {group: repeats[i % len(repeats)] for i, group in enumerate(groups)}
    return [block for block in plan.blocks if wanted.get(block.prompts) == block.repeat]


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


def _answer(cell: str, block: Block, done: Sequence[Any], clock: PhaseClock) -> PhasedAnswer:
    emitted = sum(len(generation.tokens) for generation in done)
    first = sum(len(generation.steps[0].tokens) for generation in done)
    return PhasedAnswer(
        decoder=cell,
        prompts=block.prompts,
        repeat=block.repeat,
        seconds={phase: round(spent_s, 9) for phase, spent_s in clock.seconds.items()},
        emitted=emitted,
        later_emitted=emitted - first,
        later_steps=sum(len(generation.steps) - 1 for generation in done),
    )
