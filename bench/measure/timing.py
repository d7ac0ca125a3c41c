"""Make the timing pass: every cell answers every prompt, block by block, one line per answer.

Only `Scheduler.run` is timed. Before it, caches are reserved; after it, texts are decoded, lines
are written and the progress is redrawn; between blocks, garbage is collected and the machine's load
is read. If a decoder raises an error on a prompt, an error row is written and the run goes on.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

from bench.errors import BenchError, room_for
from bench.machine.clock import Stopwatch
from bench.machine.gpu import EnergyMeter
from bench.machine.usage import Load, PeakMemory
from bench.plan.past import later_turns
from bench.plan.setup import Arm, Setup
from bench.progress import Progress
from bench.records.plan import Block
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord, StepColumns, drafter_names
from bench.records.samples import Sink, error_line, error_position
from bench.settings.protocol import recount
from decoders.core.decoder import Memory
from decoders.core.engine.scheduler import Scheduler
from decoders.core.types import Generation, Outcome, Sampling

_WARMUP_TOKENS = 16
WARMUP_MAX = 6
WARMUP_BUDGET_S = 10.0
_MAX_TRIES = 20
_STABLE = 0.05
"""The warm-up of a length bucket ends when its last three times are within 5 % of their median."""


@dataclass(frozen=True, slots=True)
class _Timing:
    """Hold answers of one arm: stopwatch, peak memory (bytes), energy (joules), past answers."""

    outcomes: list[Outcome]
    watch: Stopwatch
    peak: int | None
    energy_j: float | None
    past: Memory | None


@dataclass
class Runner:
    """Measure a plan's blocks with an open `Setup`, and append their records.

    `lap` is `LoadWatch.lap`; `after` is called after every block with the cells that failed in it.
    """

    setup: Setup
    prompts: Mapping[str, Prompt]
    writer: Sink
    progress: Progress
    _: KW_ONLY
    attempt: int
    lap: Callable[[], Load]
    after: Callable[[Block, Collection[str]], None] | None = None

    def __post_init__(self) -> None:
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        # no meter covers several devices
        self._energy = EnergyMeter("" if self.setup.config.device_map else self.setup.device)

    def run(self, blocks: Sequence[Block], *, num_done: int = 0) -> None:
        """Measure `blocks` in order after `prepare`, while `num_done` answers exist already."""
        if not blocks:
            return
        num_left = sum(block.num_answers for block in blocks)
        self.progress.start("timing", num_done + num_left, num_done)
        with frozen_garbage():
            for block in blocks:
                self.measure(block)
                gc.collect()

    def prepare(self, blocks: Sequence[Block]) -> None:
        """Reserve caches for `blocks` (``BenchError``, exit 1, if memory is short), and warm up."""
        if not blocks:
            return
        names = dict.fromkeys(name for block in blocks for name in block.prompts)
        prompts = [self.prompts[name] for name in names]
        # for the longest prompt and answer, so that no timed region allocates
        num_prompt_tokens = max(len(prompt.ids) for prompt in prompts)
        sequences = max(arm.decoder.sequences for arm in self.setup.arms.values())
        num_rows = self.setup.config.batch_size * sequences
        # the plan's prompts leave room for answers
        num_tokens = num_prompt_tokens + self.setup.sampling.max_new_tokens
        with room_for(f"the KV cache of {num_rows} x {num_tokens} tokens"):
            self.setup.models.reserve(num_rows, num_tokens)
        self.warm_up(prompts)

    def measure(self, block: Block) -> None:
        """Measure the cells of a block in order. Its last line makes the block count."""
        failed: set[str] = set()
        prompts = [self.prompts[name] for name in block.prompts]
        sampling = self.setup.repeated(block.repeat)
        num_rows = self.setup.config.batch_size
        self.lap()  # load between blocks is not load during a block
        for order, cell in enumerate(block.order):
            timed = self._time_answers(self.setup.arm(cell), prompts, sampling, block)
            where = {"kind": "timing", "decoder": cell, "block": block.block, "order": order}
            where |= {"repeat": block.repeat, "seed": sampling.seed, "batch_size": num_rows}
            pairs = list(zip(prompts, timed.outcomes, strict=True))
            self.setup.past.add(cell, block, pairs, timed.past)
            for prompt, outcome in pairs:
                record = self._record(prompt, outcome, timed, attempt=self.attempt, **where)
                if isinstance(outcome, Exception):
                    failed.add(cell)
                self.writer.record(record, outcome)
            self._seconds[cell] += timed.watch.total_s
            generated = [each for each in timed.outcomes if isinstance(each, Generation)]
            self._tokens[cell] += sum(len(each.tokens) for each in generated)
            self.progress.step(self._speeds(), len(prompts))
        load = dataclasses.asdict(self.lap())
        self.writer.event("load", block=block.block, attempt=self.attempt, **load)
        self.writer.sync()
        if self.after is not None:
            self.after(block, failed)

    def warm_up(self, prompts: Sequence[Prompt]) -> None:
        """Run every arm on a batch of each length bucket until its times are stable.

        Buckets are powers of two of prompt tokens. Each prompt is a `warm_up_prompt`, and no stop
        id ends an answer, unless a law may forbid all that follows. Results are dropped. The arms
        take turns of `_WARMUP_TOKENS` tokens in every bucket: one each, then up to `WARMUP_MAX`
        until `WARMUP_BUDGET_S` in all is spent.
        """
        buckets: defaultdict[int, list[Prompt]] = defaultdict(list)
        for prompt in prompts:
            buckets[len(prompt.ids).bit_length()].append(warm_up_prompt(prompt))
        sampling = self.setup.sampling
        budget = min(_WARMUP_TOKENS, sampling.max_new_tokens)
        stops = sampling.stop_ids if sampling.law else frozenset[int]()
        sampling = dataclasses.replace(sampling, max_new_tokens=budget, stop_ids=stops)
        arms, spent_s = self.setup.arms.values(), 0.0
        unstable = [(arm, group, list[float]()) for arm in arms for group in buckets.values()]
        self.progress.start("warm-up", len(unstable))
        for turn in range(WARMUP_MAX):
            unstable, current = [], unstable
            for arm, group, times in current:
                if turn and spent_s > WARMUP_BUDGET_S:
                    return
                batch = group[: self.setup.config.batch_size]
                timed = self._time_answers(arm, batch, sampling)
                arm.deadline.forget()
                times.append(timed.watch.total_s)
                spent_s += times[-1]
                failed = any(isinstance(outcome, Exception) for outcome in timed.outcomes)
                if not (failed or _stable(times)):
                    unstable.append((arm, group, times))
                if not turn:
                    self.progress.step()

    def _time_answers(
        self, arm: Arm, prompts: Sequence[Prompt], sampling: Sampling, block: Block | None = None
    ) -> _Timing:
        """Time answers, again if a graph was compiled meanwhile, so as not to time compiling."""
        for _ in range(_MAX_TRIES):
            before = arm.models.num_graphs
            past = self.setup.past.memory(arm.cell.cell, arm.decoder, block) if block else None
            timed = self._time_once(arm, prompts, sampling, past)
            num_graphs, seconds = arm.models.num_graphs - before, timed.watch.total_s
            if not num_graphs:
                return timed
            self.writer.event("compiled", cell=arm.cell.cell, graphs=num_graphs, seconds=seconds)
        raise BenchError(f"{arm.cell.cell} needs more graphs than a GPU keeps; lower --batch-size")

    def _time_once(
        self, arm: Arm, prompts: Sequence[Prompt], sampling: Sampling, past: Memory | None
    ) -> _Timing:
        ids = [prompt.ids for prompt in prompts]
        batch_size = self.setup.config.batch_size
        where = arm.decoder, arm.models, sampling, batch_size, arm.deadline
        scheduler = Scheduler(*where, memory=past, unremembered=later_turns(prompts))
        if self.setup.config.reuse_prefix:
            scheduler.prefill_prefix(ids[0], prompts[0].num_kept)
        decoders = [each.decoder for each in self.setup.arms.values()]
        memory = PeakMemory(self.setup.models, arm.models, arm.decoder, decoders)
        self._energy.lap()
        with arm.deadline.ticking(), Stopwatch(self.setup.clock) as watch:
            outcomes = scheduler.run(ids, on_emit=watch.emitted if batch_size == 1 else None)
            watch.answered()
        energy_j = self._energy.lap()  # before a search for the decoder's weights
        return _Timing(outcomes, watch, memory.peak_bytes(), energy_j, past)

    def _record(
        self, prompt: Prompt, outcome: Outcome, timed: _Timing, **where: Any
    ) -> SampleRecord:
        watch, energy_j = timed.watch, timed.energy_j
        record = make_record(self.setup, prompt, outcome, watch.ended_s, **where)
        if record.error is not None:
            return record
        alone, steps = record.batch_size == 1, record.steps
        recounts = self.setup.config.protocol is not None and record.decoder == self.setup.baseline
        return dataclasses.replace(
            record,
            recounted=recount(self.setup.tokenizer, record.text or "") if recounts else None,
            ttft_s=watch.ended_s[steps.first] if alone and steps and steps.ended_s else None,
            total_s=watch.total_s if alone else None,
            group_s=None if alone else watch.total_s,
            peak_memory_bytes=timed.peak,
            energy_j=None if energy_j is None else energy_j / len(timed.outcomes),
        )

    def _speeds(self) -> str:
        return "tok/s: " + ", ".join(
            f"{cell} {self._tokens[cell] / self._seconds[cell]:.0f}"
            for cell in self.setup.arms
            if self._seconds[cell]
        )


def warm_up_prompt(prompt: Prompt) -> Prompt:
    """Return a prompt of the same length and the same ids in another order, for the warm-up.

    So nothing that a decoder keeps of the warm-up helps with the measured prompt. The first id,
    which may have to begin every text, stays first.
    """
    first, *rest = prompt.ids
    return dataclasses.replace(prompt, ids=(first, *reversed(rest)))


def make_record(
    setup: Setup,
    prompt: Prompt,
    outcome: Outcome,
    ended_s: Sequence[float] = (),
    *,
    decoder: str,
    **where: Any,
) -> SampleRecord:
    """Return the record of an answer and its steps, or of its error as one line.

    Args:
        setup: the setup of the run, which turns tokens into text.
        prompt: the prompt that was answered.
        outcome: the answer, or the exception that ended it.
        ended_s: end times of the steps, if they were measured.
        decoder: the cell that answered.
        where: fields that name the pass, the block and the position in the block.
    """
    record = SampleRecord(
        decoder=decoder,
        family=prompt.family,
        conversation=prompt.conversation,
        turn=prompt.turn,
        prompt_hash=prompt.hash,
        num_prompt_tokens=len(prompt.ids),
        **where,
    )
    if isinstance(outcome, Exception):
        place = error_position(outcome, setup.arm(decoder).decoder)
        return dataclasses.replace(record, error=error_line(outcome), error_at=place)
    return dataclasses.replace(
        record,
        tokens=outcome.tokens,
        text=setup.text(outcome.tokens).strip(),
        stop=outcome.stop,
        num_behind=setup.num_behind(outcome.tokens) or None,
        steps=StepColumns.of(outcome, ended_s),
        drafters=drafter_names(outcome),
    )


def _stable(times: Sequence[float]) -> bool:
    last = times[-3:]
    middle = statistics.median(last) if len(last) == 3 else 0.0
    return len(last) == 3 and all(abs(time - middle) <= _STABLE * middle for time in last)


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """Hide all loaded objects from the garbage collector, so that it is fast between blocks."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
