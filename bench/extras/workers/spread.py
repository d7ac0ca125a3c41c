"""Share out the passes of a run to workers, in the run's own process.

That process writes the lines that workers return, by whole blocks, and shows the progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial

import torch

from bench.errors import UsageError
from bench.extras.workers.crew import (
    Executor,
    Hello,
    Job,
    JobQueue,
    Opening,
    ScorePrompts,
    TimeBlock,
)
from bench.measure.attempt import Attempt
from bench.plan.make import batch_size
from bench.plan.select import ResolvedRun
from bench.plan.setup import Opener
from bench.records.environment import read_environment
from bench.settings.setting import WorkerConfig


def shared_out(
    run: ResolvedRun, spread: WorkerConfig, opener: Opener
) -> tuple[ResolvedRun, Callable[..., Attempt]]:
    """Open the executor, and return the run with a worker's threads and its class of attempt.

    Raises:
        BenchError: as `open_executor` does.
    """
    executor = open_executor(spread, run.config.threads)
    by_workers = partial(
        SharedAttempt, opener=opener, executor=executor, num_workers=spread.workers
    )
    return run.with_values(threads=executor.threads), by_workers


def open_executor(spread: WorkerConfig, threads: int | None) -> Executor:
    """Open the chosen executor, whose workers use `threads` CPU threads each.

    Raises:
        BenchError: its package is not installed (exit 5), an option is unknown (2), or there is no
            room for so many workers (2).
    """
    if spread.kind == "local":
        from bench.extras.workers.local import LocalExecutor

        return LocalExecutor(spread.workers, threads)
    if spread.kind == "ray":
        from bench.extras.workers.clusters import RayExecutor

        return RayExecutor(spread.options, spread.workers, threads)
    from bench.extras.workers.clusters import SubmititExecutor

    return SubmititExecutor(spread.options, threads)


@dataclass
class SharedAttempt(Attempt):
    """Make an attempt whose passes are done by workers.

    Timed and untimed work never overlap: untimed work begins after all timed work has ended.
    """

    _: KW_ONLY
    opener: Opener
    executor: Executor
    num_workers: int
    _queue: JobQueue | None = None

    def warm_up(self) -> None:
        """Start workers, each of which opens the models and warms up before its first job.

        Raises:
            BenchError: the executor cannot start workers.
        """
        if num_jobs := max(len(self._timing), len(self._scoring)):
            num_workers = min(self.num_workers, num_jobs)
            self.progress.note(f"{num_workers} worker(s) open the models")
            prefix = f"r{self.number}w" if self.number else "w"  # names are unique within a run
            opening = partial(self._opening, num_workers)
            self._queue = JobQueue(self.executor, num_workers, opening, prefix)

    def time_blocks(self) -> None:
        """Time the blocks, and split the time of some.

        Raises:
            BenchError: as `JobQueue.run` does, or the results cannot be written (exit 1).
        """
        self._run_jobs("timing", self._timing, self.plan.num_answers, self.num_done)

    def score_quality(self) -> None:
        """Score missing answers (raises as `time_blocks`)."""
        num_done = sum(record.kind == "quality" for record in self.records)
        num = len(self.plan.in_pass("quality")) * len(self.setup.arms)
        self._run_jobs("quality", self._scoring, num, num_done)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file of answers, and end the workers with it."""
        with super().writing():
            try:
                yield
            finally:
                self.executor.stop()

    def _run_jobs(self, phase: str, jobs: Sequence[Job], total: int, num_done: int) -> None:
        """Run jobs, and write the workers' results as they come."""
        if not jobs:
            return
        assert self._queue is not None
        self.progress.start(phase, total, num_done)
        for worker, job, done in self._queue.run(jobs):
            if done is None:
                again = f"; {job} runs again elsewhere" if job else ""
                self.progress.note(f"worker {worker} is gone{again}")
                block = job.block.block if isinstance(job, TimeBlock) else None
                self.writer.event("lost", worker=worker, block=block, attempt=self.number)
                continue
            self.writer.lines(done.lines)  # done first, as only written lines count
            self.writer.sync()
            for name, trace in done.errors:
                self.writer.trace(name, trace)
            if isinstance(job, TimeBlock) and job.phased:
                self.keep_phases(job.block, done.phases)
            if job is not None:
                num = sum(not line.startswith('{"event"') for line in done.lines)
                self.progress.step(worker, num)

    def _opening(self, num_workers: int, worker: str, hello: Hello, slot: int) -> Opening:
        config = self.setup.config
        # a numbered GPU, or all GPUs of a placed model, is for every worker
        gpus = torch.cuda.device_count() if config.device == "cuda" and num_workers > 1 else 0
        return Opening(
            opener=self.opener,
            config=config.to_toml(),
            prompts=self.prompts,
            blocks=tuple(self.left),
            identity=self.plan.identity or {},
            key=read_environment(self.run_dir).comparability_key,
            attempt=self.number,
            worker=worker,
            cores=slot_cores(slot, config.threads or 1, hello.cores),
            gpu=slot % gpus if gpus > 1 else None,
        )

    @cached_property
    def _timing(self) -> list[Job]:
        """Return the blocks in plan order."""
        return [TimeBlock(block=each, phased=each.block in self.unphased) for each in self.left]

    @cached_property
    def _scoring(self) -> list[Job]:
        """Return jobs for the unscored prompts of the quality pass, one batch per job."""
        cells = list(self.setup.arms)
        done = self.scored
        names = [planned.prompt for planned in self.plan.in_pass("quality")]
        names = [name for name in names if any((cell, name) not in done for cell in cells)]
        size = batch_size(self.setup)
        groups = [tuple(names[i : i + size]) for i in range(0, len(names), size)]
        return [
            ScorePrompts(prompts=g, done=frozenset(key for key in done if key[1] in g))
            for g in groups
        ]


def slot_cores(slot: int, threads: int, cores: Collection[int]) -> tuple[int, ...]:
    """Return the cores of a slot, one per thread, shared only when no core is free.

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
