"""A queue of jobs and the workers that take them, one job at a time.

Whoever is free takes the next job. One that dies loses the job it had, which goes back to the head
of the queue, and is replaced; nothing of that job is written yet, so nothing is lost and nothing
double. That is all: where workers run is the executor's business, what a job is the worker's. No
torch here.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.errors import BenchError
from bench.workers.executor import Executor
from bench.workers.messages import (
    Answer,
    Done,
    Failed,
    Hello,
    Job,
    Opened,
    Opening,
    Ping,
    Work,
)

_DEATHS = 3
"""A job that this many workers died of is at fault itself; so is a start, times the workers."""


class WorkerEvents(Protocol):
    """Who is told what the workers do; called in the run's own process, one call at a time."""

    def joined(self, worker: str, hello: Hello, opening: Opening) -> None:
        """A worker is ready, there and so."""

    def done(self, worker: str, job: Job, done: Done) -> None:
        """A job is done."""

    def lost(self, worker: str, job: Job | None) -> None:
        """A worker is gone, and the job it had runs again elsewhere."""


@dataclass(slots=True, kw_only=True)
class _Member:
    """A worker: what it said of itself, the place it took on its node, and what it is doing."""

    hello: Hello | None = None
    opening: Opening | None = None
    place: int = -1
    ready: bool = False
    job: Job | None = None


class JobQueue:
    """Workers that stay open between queues."""

    def __init__(
        self,
        executor: Executor,
        num_workers: int,
        opening: Callable[[str, Hello, int], Opening],
        ledger: WorkerEvents,
        prefix: str = "w",
    ) -> None:
        """Start them; `opening` makes a worker's from its name, its hello and its place.

        Their names are `prefix` and a number.
        """
        self._executor, self._opening, self._ledger = executor, opening, ledger
        self._num_workers = num_workers
        self._names = (f"{prefix}{number}" for number in itertools.count())
        self._members: dict[str, _Member] = {}
        self._queue: deque[Job] = deque()
        self._deaths: Counter[str] = Counter()
        for _ in range(num_workers):
            self._start()

    def run(self, jobs: Sequence[Job]) -> None:
        """Have all of `jobs` done; they begin in order.

        Raises:
            BenchError: what a worker raised, or exit 1 where workers die of a job again and again.
        """
        self._queue.extend(jobs)
        for worker, member in self._members.items():
            if member.ready:
                self._next(worker, member)
        while self._queue or any(member.job for member in self._members.values()):
            worker, answer = self._executor.wait()
            member = self._members[worker]
            if answer is None:
                self._gone(worker, member)
            else:
                self._answered(worker, member, answer)

    def close(self) -> None:
        """End all workers."""
        self._executor.stop()

    def _start(self) -> None:
        worker = next(self._names)
        self._members[worker] = _Member()
        self._executor.start(worker)
        self._executor.ask(worker, Ping())

    def _answered(self, worker: str, member: _Member, answer: Answer) -> None:
        if isinstance(answer, Failed):
            raise BenchError(f"worker {worker}: {answer.message}", exit_code=answer.exit_code)
        if isinstance(answer, Hello):
            member.hello, member.place = answer, self._free_place(answer.node)
            member.opening = self._opening(worker, answer, member.place)
            self._executor.ask(worker, member.opening)
            return
        assert member.hello is not None
        assert member.opening is not None
        if isinstance(answer, Opened):
            member.ready = True
            self._ledger.joined(worker, member.hello, member.opening)
        else:
            job, member.job = member.job, None
            assert job is not None, f"{worker} answers what nobody asked"
            self._ledger.done(worker, job, answer)
        self._next(worker, member)

    def _next(self, worker: str, member: _Member) -> None:
        """Give a free worker the next job, where there is one."""
        if not self._queue:
            return
        member.job = self._queue.popleft()
        node = member.hello and member.hello.node
        here = [m.hello for m in self._members.values() if m.hello and m.hello.node == node]
        peers = tuple(hello.pid for hello in here)
        self._executor.ask(worker, Work(job=member.job, peers=peers))

    def _gone(self, worker: str, member: _Member) -> None:
        """Put its job back and start another in its place, but not for ever."""
        del self._members[worker]
        self._ledger.lost(worker, member.job)
        fault = "start" if member.job is None else str(member.job)
        self._deaths[fault] += 1
        most = _DEATHS * (self._num_workers if member.job is None else 1)
        if self._deaths[fault] >= most:
            what = "before they began" if member.job is None else f"during {fault}"
            line = f"{self._deaths[fault]} workers died {what}, {worker} the last"
            raise BenchError(f"{line}; look at its machine's memory and log")
        if member.job is not None:
            self._queue.appendleft(member.job)
        self._start()
        free = [(w, m) for w, m in self._members.items() if m.ready and m.job is None]
        for name, idle in free:
            self._next(name, idle)

    def _free_place(self, node: str) -> int:
        """The first place of a node that no worker has."""
        here = {m.place for m in self._members.values() if m.hello and m.hello.node == node}
        return next(place for place in itertools.count() if place not in here)
