"""Workers as submitit jobs, in Slurm or as processes of this machine (``cluster=local``).

submitit writes the job and asks Slurm to run it. The job connects back over a socket and is a
worker until the run closes the connection. https://github.com/facebookincubator/submitit
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from queue import SimpleQueue
from typing import Any

from bench.errors import optional
from bench.extras.workers.local import Links, serve
from bench.extras.workers.messages import Answer, Request

_LOOK_EVERY_S = 1.0
"""Seconds between checks of jobs that have not connected yet."""


class SubmititExecutor(Links):
    """Jobs that connect back to the run (`bench.extras.workers.crew.Executor`)."""

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
