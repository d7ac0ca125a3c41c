"""Hands the passes of a run to workers; this module runs in the run's own process.

It writes the lines that the workers return, whole blocks at a time, and shows the progress.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from bench.errors import UsageError
from bench.measure.phases import SecondPass
from bench.plan.make import batch_size
from bench.plan.select import ResolvedRun
from bench.plan.setup import Opener, Setup
from bench.progress import Progress
from bench.records.files import SampleWriter
from bench.records.plan import Block, Plan
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.settings.spread import WorkerConfig
from bench.workers.crew import Executor, JobQueue
from bench.workers.messages import Done, Hello, Job, Opening, ScorePrompts, SplitBlock, TimeBlock


class Team:
    """The executor of a run, opened once, before any model; None: the run measures by itself."""

    def __init__(self, spread: WorkerConfig, opener: Opener, threads: int | None) -> None:
        """Workers use `opener` and `threads` CPU threads each (None: the executor decides).

        Raises:
            BenchError: as `open_executor` does.
        """
        self.spread, self.opener = spread, opener
        self.executor = None if spread.alone else open_executor(spread, threads)

    def shared_out(self, run: ResolvedRun) -> ResolvedRun:
        """Return the run with the threads of a worker, which a resumed run uses too."""
        return run if self.executor is None else run.with_values(threads=self.executor.threads)


def open_executor(spread: WorkerConfig, threads: int | None) -> Executor:
    """Open the chosen executor, whose workers use `threads` CPU threads each.

    Raises:
        BenchError: its package is not installed (exit 5), an option is unknown (2), or there is no
            room for so many workers (2).
    """
    if spread.kind == "local":
        from bench.workers.local import LocalExecutor

        return LocalExecutor(spread.workers, threads)
    if spread.kind == "ray":
        from bench.workers.ray_cluster import RayExecutor

        return RayExecutor(spread.options, spread.workers, threads)
    from bench.workers.slurm import SubmititExecutor

    return SubmititExecutor(spread.options, threads)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The rest of a run and everything its workers need; `fill` measures it with an executor."""

    setup: Setup
    plan: Plan
    prompts: Mapping[str, Prompt]
    opener: Opener
    key: str | None
    attempt: int
    left: Sequence[Block]
    records: Sequence[SampleRecord]
    writer: SampleWriter
    second: SecondPass
    progress: Progress

    def fill(self, executor: Executor, num_workers: int) -> None:
        """Time the remaining blocks, split the time of some by phase, then score missing answers.

        Timed and untimed work never overlap: untimed work begins after all timed work has ended.

        Raises:
            BenchError: as `JobQueue.run` does, or the results cannot be written (exit 1).
        """
        jobs, scoring, progress = self._timing(), self._scoring(), self.progress
        if not jobs and not scoring:
            return
        num_workers = max(1, min(num_workers, max(len(jobs), len(scoring))))
        progress.note(f"{num_workers} worker(s) open the models")
        prefix = f"r{self.attempt}w" if self.attempt else "w"  # names are unique within a run
        queue = JobQueue(executor, num_workers, self._opening(num_workers), prefix)
        try:
            if jobs:
                num_left = sum(block.num_answers for block in self.left)
                progress.start("timing", self.plan.num_answers, self.plan.num_answers - num_left)
                self._take(queue.run(jobs))
            if scoring:
                num_done = sum(record.kind == "quality" for record in self.records)
                asked = len(self.plan.in_pass("quality")) * len(self.setup.arms)
                progress.start("quality", asked, num_done)
                self._take(queue.run(scoring))
        finally:
            queue.close()

    def _take(self, results: Iterable[tuple[str, Job | None, Done | None]]) -> None:
        """Write the workers' results as they come."""
        for worker, job, done in results:
            if done is None:
                again = f"; {job} runs again elsewhere" if job else ""
                self.progress.note(f"worker {worker} is gone{again}")
                block = job.block.block if isinstance(job, TimeBlock) else None
                self.writer.event("lost", worker=worker, block=block, attempt=self.attempt)
                continue
            self.writer.lines(done.lines)  # first, as only written lines count
            self.writer.sync()
            for name, trace in done.errors:
                self.writer.trace(name, trace)
            if isinstance(job, SplitBlock) or (isinstance(job, TimeBlock) and job.phased):
                self.second.keep(job.block, done.phases)
            if isinstance(job, SplitBlock):
                self.progress.step(worker)
            elif job is not None:
                num = sum(not line.startswith('{"event"') for line in done.lines)
                self.progress.step(worker, num)

    def _opening(self, num_workers: int) -> Callable[[str, Hello, int], Opening]:
        config = self.setup.config

        def opening(worker: str, hello: Hello, slot: int) -> Opening:
            gpus = torch.cuda.device_count() if self.setup.on_gpu and num_workers > 1 else 0
            return Opening(
                opener=self.opener,
                config=config.to_toml(),
                prompts=self.prompts,
                blocks=tuple(self.left),
                identity=self.plan.identity or {},
                key=self.key,
                attempt=self.attempt,
                worker=worker,
                cores=cores_of(slot, config.threads or 1, hello.cores),
                gpu=slot % gpus if gpus > 1 else None,
            )

        return opening

    def _timing(self) -> list[Job]:
        """Return the blocks in plan order, after those whose times a stopped run left unsplit."""
        unsplit = self.second.missing
        left = {block.block for block in self.left}
        failed: defaultdict[int, set[str]] = defaultdict(set)
        for record in self.records:
            if record.kind == "timing" and record.error:
                failed[record.block].add(record.decoder)
        jobs: list[Job] = [
            SplitBlock(block=block, failed=frozenset(failed[number]))
            for number, block in unsplit.items()
            if number not in left
        ]
        return jobs + [TimeBlock(block=b, phased=b.block in unsplit) for b in self.left]

    def _scoring(self) -> list[Job]:
        """Return jobs for the unscored prompts of the quality pass, one batch in each job."""
        cells = list(self.setup.arms)
        done = {(r.decoder, r.prompt) for r in self.records if r.kind == "quality"}
        names = [planned.prompt for planned in self.plan.in_pass("quality")]
        names = [name for name in names if any((cell, name) not in done for cell in cells)]
        size = batch_size(self.setup)
        groups = [tuple(names[i : i + size]) for i in range(0, len(names), size)]
        return [
            ScorePrompts(prompts=g, done=frozenset(key for key in done if key[1] in g))
            for g in groups
        ]


def cores_of(slot: int, threads: int, cores: Collection[int]) -> tuple[int, ...]:
    """Return the cores of a slot, one per thread; slots share cores only when none are free.

    Raises:
        BenchError: exit 2, if a slot needs more cores than its node has.
    """
    if not cores:
        return ()
    have = sorted(cores)
    if threads > len(have):
        line = f"a worker needs {threads} cores and its node has {len(have)}; lower --threads"
        raise UsageError(line)
    first = slot % (len(have) // threads) * threads
    return tuple(have[first : first + threads])
