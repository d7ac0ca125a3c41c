"""Run workers as processes of this machine, each pinned to its own cores.

``python -m bench.extras.workers.local FD`` is such a process; it communicates over the given
socket. When a process ends in any way, its end of the socket closes, which shows that it has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection, wait

from bench.errors import UsageError
from bench.extras.workers.crew import Answer, Request
from bench.extras.workers.worker import Worker, cores, python_path


class Links:
    """Hold connections to workers by name: the base of executors."""

    def __init__(self) -> None:
        """Begin without connections."""
        self.open: dict[str, Connection] = {}

    def ask(self, worker: str, request: Request) -> None:
        """Send a request. Only `receive` finds out if the worker is gone."""
        if worker in self.open:
            with contextlib.suppress(OSError):
                self.open[worker].send(request)

    def receive(self, timeout_s: float | None = None) -> tuple[str, Answer | None] | None:
        """Return a worker and its answer (None: a dead worker), or None after the timeout."""
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
        """Close all connections, which ends the waiting workers."""
        for connection in self.open.values():
            connection.close()
        self.open.clear()


def serve(connection: Connection) -> None:
    """Work until the other end closes, and leave Ctrl-C to the run's own process."""
    with contextlib.suppress(ValueError):  # only the main thread may set a handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker()
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(worker.answer(connection.recv()))


_PATIENCE_S = 1.0
"""Seconds within which a waiting worker should end by itself."""


class LocalExecutor(Links):
    """Run processes of this machine (`bench.extras.workers.crew.Executor`)."""

    def __init__(self, num_workers: int, threads: int | None) -> None:
        """Give each worker its `threads` (None: an equal share of the cores).

        Raises:
            BenchError: exit 2, if the workers need more cores than there are.
        """
        super().__init__()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        have = len(cores()) or os.cpu_count() or 1
        self.threads = threads or max(1, have // num_workers)
        if (need := num_workers * self.threads) > have:
            line = f"--workers {num_workers} with {self.threads} thread(s) each need {need}"
            limit = max(1, have // self.threads)
            raise UsageError(f"{line} cores, but there are {have}; use at most --workers {limit}")

    def start(self, worker: str) -> None:
        """Begin a process."""
        parent, child = socket.socketpair()
        with child:
            self._processes[worker] = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(child.fileno())],
                pass_fds=[child.fileno()],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
            )
        self.open[worker] = Connection(parent.detach())

    def wait(self) -> tuple[str, Answer | None]:
        """Return the next answer, or None for a dead worker."""
        received = self.receive()
        assert received is not None, "nobody is left to wait for"
        worker, answer = received
        if answer is None:
            _end(self._processes.pop(worker))
        return worker, answer

    def stop(self) -> None:
        """End all processes."""
        self.close()
        for process in self._processes.values():
            _end(process)
        self._processes.clear()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE_S)
        return
    process.kill()
    process.wait()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
