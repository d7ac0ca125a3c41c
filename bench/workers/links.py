"""Connections to workers that are plain processes.

A process that ends, however it ends, closes its end, and that is how it is known to be gone.
"""

from __future__ import annotations

import contextlib
import signal
from multiprocessing.connection import Connection, wait

from bench.workers.messages import Answer, Request
from bench.workers.worker import Worker


class Links:
    """Connections to workers by name, of which executors are made."""

    def __init__(self) -> None:
        """Begin with none."""
        self.open: dict[str, Connection] = {}

    def ask(self, worker: str, request: Request) -> None:
        """Send a request; that a worker is gone is found when it is waited for."""
        if worker in self.open:
            with contextlib.suppress(OSError):
                self.open[worker].send(request)

    def receive(self, timeout_s: float | None = None) -> tuple[str, Answer | None] | None:
        """Return the next answer, or None in its place for a dead worker; None: nobody spoke."""
        names = {connection: worker for worker, connection in self.open.items()}
        for ready in wait(list(names), timeout_s):
            assert isinstance(ready, Connection)
            worker = names[ready]
            try:
                answer: Answer = ready.recv()
            except (EOFError, OSError):
                self.open.pop(worker).close()
                return worker, None
            return worker, answer
        return None

    def close(self) -> None:
        """Let go of all: workers that wait end."""
        for connection in self.open.values():
            connection.close()
        self.open.clear()


def serve(connection: Connection) -> None:
    """Be a worker until the other end is closed; Ctrl-C is left to the run's own process."""
    with contextlib.suppress(ValueError):  # only a main thread may say so
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker()
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(worker.answer(connection.recv()))
