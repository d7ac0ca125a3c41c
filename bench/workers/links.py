"""Workers at the other end of a connection: what executors of plain processes share. No torch here.

A process that ends, however it ends, closes its end, and that is how it is known to be gone.
"""

from __future__ import annotations

import contextlib
import signal
from multiprocessing.connection import Connection, wait

from bench.workers.messages import Answer, Request
from bench.workers.worker import Worker


class Links:
    """Connections to workers by name."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[str, Connection] = {}

    def add(self, worker: str, connection: Connection) -> None:
        """Hold the connection to a worker."""
        self._open[worker] = connection

    def has(self, worker: str) -> bool:
        """Whether there is a connection to it."""
        return worker in self._open

    def ask(self, worker: str, request: Request) -> None:
        """Send a request; that a worker is gone is found when it is waited for."""
        if worker in self._open:
            with contextlib.suppress(OSError):
                self._open[worker].send(request)

    def wait(self, timeout_s: float | None = None) -> tuple[str, Answer | None] | None:
        """The next answer, or None in its place where a worker is gone; None: nobody spoke."""
        names = {connection: worker for worker, connection in self._open.items()}
        for ready in wait(list(names), timeout_s):
            assert isinstance(ready, Connection)
            worker = names[ready]
            try:
                answer: Answer = ready.recv()
            except (EOFError, OSError):
                self._open.pop(worker).close()
                return worker, None
            return worker, answer
        return None

    def close(self) -> None:
        """Let go of all: workers that wait end."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()


def serve(connection: Connection) -> None:
    """Be a worker until the other end is closed. Ctrl-C is for whoever asks, not for workers."""
    with contextlib.suppress(ValueError):  # only a main thread may say so
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker()
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(worker.answer(connection.recv()))
