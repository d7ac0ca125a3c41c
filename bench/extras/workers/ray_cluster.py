"""Workers as actors of a Ray cluster: each worker is one actor, which lives as long as the run.

Ray places the actors and reports dead ones. Ray's restarts are off: a restart would lose the
worker's models and job, so the queue starts another. https://docs.ray.io (actors, `ray.wait`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bench.errors import UsageError, did_you_mean, optional
from bench.extras.workers.messages import Answer, Request
from bench.extras.workers.worker import Worker, python_path

_NUMBERS = ("num_cpus", "num_gpus", "memory")
_OPTIONS = ["address", *_NUMBERS]


class RayExecutor:
    """Actors of the cluster at ``address``, or of a cluster begun here."""

    def __init__(self, options: Mapping[str, str], num_workers: int, threads: int | None) -> None:
        """Connect, and give each worker its `threads` (None: an equal share of the cores).

        Raises:
            BenchError: Ray is not installed (exit 5), or an option is unknown (2).
        """
        self._ray: Any = optional("ray", "ray", "--executor ray")
        for name in options:
            if name not in _OPTIONS:
                hint = did_you_mean(name, _OPTIONS)
                raise UsageError(f"unknown executor option {name!r}; {hint}")
        self._resources = {name: float(options[name]) for name in _NUMBERS if name in options}
        self._owns_cluster = not self._ray.is_initialized()
        if self._owns_cluster:
            address = options.get("address") or os.environ.get("RAY_ADDRESS")
            beginning = {} if address else {"num_cpus": os.cpu_count(), "include_dashboard": False}
            self._ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": {"PYTHONPATH": python_path()}},
                **beginning,
            )
        num_cores = int(self._ray.cluster_resources().get("CPU", 1))
        self.threads = threads or max(1, num_cores // num_workers)
        self._actors: dict[str, Any] = {}
        self._workers: dict[Any, str] = {}

    def start(self, worker: str) -> None:
        """Request an actor, which begins once the cluster has room."""
        resources = {"num_cpus": self.threads, **self._resources}
        kind = self._ray.remote(Worker).options(max_restarts=0, max_task_retries=0, **resources)
        self._actors[worker] = kind.remote()

    def ask(self, worker: str, request: Request) -> None:
        """Send a request."""
        self._workers[self._actors[worker].answer.remote(request)] = worker

    def wait(self) -> tuple[str, Answer | None]:
        """Return the next answer, or None for a dead worker."""
        (ready,), _ = self._ray.wait(list(self._workers), num_returns=1)
        worker = self._workers.pop(ready)
        try:
            answer: Answer = self._ray.get(ready)
        except self._ray.exceptions.RayError:
            self._ray.kill(self._actors.pop(worker))
            return worker, None
        return worker, answer

    def stop(self) -> None:
        """End all actors, and the cluster if it was begun here."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._workers.clear()
        if self._owns_cluster:
            self._ray.shutdown()
