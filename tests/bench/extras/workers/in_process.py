"""An executor whose workers live in the test's own process, and die when they are told to."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from bench.extras.workers.crew import Answer, Hello, Request, Work
from bench.extras.workers.worker import Worker


class InProcess:
    """Answers in the order asked; `dies(worker, number of its job)` says who dies of what.

    What is sent is pickled, as it is on the way to another process; no worker is pinned.
    """

    threads = 1

    def __init__(self, dies: Callable[[str, int], bool] = lambda *_: False, node: str = "") -> None:
        self._dies, self._node = dies, node
        self._workers: dict[str, Worker] = {}
        self._jobs: dict[str, int] = {}
        self._asked: deque[tuple[str, bytes]] = deque()
        self.stopped = 0
        self.works: list[Work] = []

    def start(self, worker: str) -> None:
        self._workers[worker], self._jobs[worker] = Worker(), 0

    def ask(self, worker: str, request: Request) -> None:
        self._asked.append((worker, pickle.dumps(request)))

    def wait(self) -> tuple[str, Answer | None]:
        worker, data = self._asked.popleft()
        request = pickle.loads(data)
        if isinstance(request, Work):
            self.works.append(request)
            self._jobs[worker] += 1
            if self._dies(worker, self._jobs[worker]):
                self._workers[worker].answer(request)  # measured, and never told
                return worker, None
        answer = self._workers[worker].answer(request)
        if isinstance(answer, Hello):
            answer = replace(answer, cores=(), node=self._node or answer.node)
        return worker, pickle.loads(pickle.dumps(answer))

    def stop(self) -> None:
        self.stopped += 1
