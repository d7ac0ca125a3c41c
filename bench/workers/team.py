"""What a run has to measure with: an executor and its workers, or its own process alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.settings.config import RunConfig
from bench.settings.spread import Kind, WorkerConfig
from bench.workers.executor import Executor


class Team:
    """The executor of a run (None: it measures itself), opened once, before any model is."""

    def __init__(
        self, spread: WorkerConfig, opener: Callable[[Any], Any], threads: int | None
    ) -> None:
        """Workers use `opener`, and `threads` CPU threads each (None: what the executor says).

        Raises:
            BenchError: what `open_executor` and `Executor.threads` do.
        """
        self.spread, self.opener = spread, opener
        self.executor: Executor | None = None
        self._threads = threads
        if not spread.alone:
            self.executor = open_executor(spread, threads)
            self._threads = self.executor.threads(spread.workers)

    def shared_out(self, config: RunConfig) -> RunConfig:
        """The configuration with the threads of a worker: also a resumed run computes with them."""
        if self.executor is None:
            return config
        return config.with_values(threads=self._threads)


def open_executor(spread: WorkerConfig, threads: int | None) -> Executor:
    """The executor that was asked for; its workers are to use `threads` CPU threads each.

    Raises:
        BenchError: its package is not installed (exit 5), or it does not know an option (2).
    """
    if spread.kind == Kind.local:
        from bench.workers.local import LocalExecutor

        return LocalExecutor(threads)
    if spread.kind == Kind.ray:
        from bench.workers.ray_cluster import RayExecutor

        return RayExecutor(spread.options, spread.workers, threads)
    from bench.workers.slurm import SubmititExecutor

    return SubmititExecutor(spread.options, threads)
