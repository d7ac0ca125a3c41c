"""Run workers on a cluster: actors of Ray, or submitit's jobs.

A worker of Ray is one actor, which lives as long as the run. Ray places the actors and reports dead
ones. Ray's restarts are off: a restart would lose the worker's models and job, so the queue starts
another. https://docs.ray.io (actors, `ray.wait`).

submitit writes a job and asks Slurm to run it, or runs it as a process of this machine
(``cluster=local``). The job connects back over a socket and is a worker until the run closes the
connection. https://github.com/facebookincubator/submitit
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from queue import SimpleQueue
from typing import Any

from bench.errors import UsageError, did_you_mean, optional
from bench.extras.workers.crew import Answer, Request
from bench.extras.workers.local import Links, serve
from bench.extras.workers.worker import Worker, python_path

_NUMBERS = ("num_cpus", "num_gpus", "memory")
_OPTIONS = ["address", *_NUMBERS]
_LOOK_EVERY_S = 1.0
"""Seconds between checks of jobs that have not connected yet."""


class RayExecutor:
    """Run actors of the cluster at ``address``, or of a cluster started here."""

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


class SubmititExecutor(Links):
    """Run jobs that connect back to the run (`bench.extras.workers.crew.Executor`)."""

    def __init__(self, options: Mapping[str, str], threads: int | None) -> None:
        """Listen for jobs with `options`: ``folder``, ``cluster``, and submitit's parameters.

        Raises:
            BenchError: submitit is not installed (exit 5).
        """
        super().__init__()
        submitit: Any = optional("submitit", "submitit", "--executor submitit")
        parameters = dict(options)
        cluster = parameters.pop("cluster", None)
        folder = parameters.pop("folder", ".submitit")
        self.threads = threads or 1  # the node's cores are unknown yet
        self._submitter = submitit.AutoExecutor(folder=folder, cluster=cluster)
        numbers = {key: int(v) if v.isdigit() else v for key, v in parameters.items()}
        self._submitter.update_parameters(
            **{"name": "bench", "cpus_per_task": self.threads, "timeout_min": 24 * 60, **numbers}
        )
        self._key = secrets.token_bytes(32)
        host = "127.0.0.1" if cluster in ("local", "debug") else socket.gethostname()
        self._listener = Listener((host, 0), authkey=self._key)
        self._jobs: dict[str, Any] = {}
        self._unsent: dict[str, Request] = {}
        self._callers: SimpleQueue[tuple[str, Connection]] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, worker: str) -> None:
        """Submit a job."""
        address = self._listener.address
        self._jobs[worker] = self._submitter.submit(_call, address, self._key, worker)

    def ask(self, worker: str, request: Request) -> None:
        """Send a request, or keep it until the worker has connected."""
        if worker in self._unsent or worker not in self.open:
            self._unsent[worker] = request
        else:
            super().ask(worker, request)

    def wait(self) -> tuple[str, Answer | None]:
        """Return the next answer, or None for a dead worker."""
        while True:
            while not self._callers.empty():
                worker, connection = self._callers.get()
                self.open[worker] = connection
                super().ask(worker, self._unsent.pop(worker))
            received = self.receive(_LOOK_EVERY_S)
            if received is not None:
                return received
            for worker in self._unsent:
                if self._jobs[worker].done() and self._callers.empty():
                    del self._unsent[worker]
                    return worker, None

    def stop(self) -> None:
        """Cancel all jobs, and close all connections."""
        self.close()
        self._listener.close()
        for job in self._jobs.values():
            with contextlib.suppress(Exception):  # fails if the job has ended or Slurm is gone
                job.cancel(check=False)
        self._jobs.clear()

    def _listen(self) -> None:
        """Accept connections until the listener closes, and refuse callers without the key."""
        while True:
            try:
                connection = self._listener.accept()
                self._callers.put((str(connection.recv()), connection))
            except (AuthenticationError, EOFError):
                continue
            except OSError:
                return


def _call(address: tuple[str, int], key: bytes, worker: str) -> None:
    """Connect to the run, send the worker's name, and work."""
    with Client(address, authkey=key) as connection:
        connection.send(worker)
        serve(connection)
