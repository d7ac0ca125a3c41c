"""Queue jobs for workers, which take one job at a time, and define the messages between both.

A free worker takes the next job. If a worker dies, its job goes back to the head of the queue and
another worker replaces it. No results of that job have been written, so none are lost or written
twice.

Messages are pickled for transport. A worker answers one request after another: None with `Hello`,
`Opening` and `Work` with `Done`, or any request with the `BenchError` that stops it. A worker
writes no files. It returns a job's measurements all at once, so a worker that dies leaves nothing
behind.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.errors import BenchError
from bench.records.plan import Block
from bench.records.prompts import Prompt
from bench.records.samples import PhasedAnswer

_DEATHS = 3
"""A job that killed this many workers is at fault. So is the start, after as many per worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Name the worker's machine: `node` is a hash of its name, `cores` are its usable cores."""

    node: str
    pid: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Describe the task of a worker: the run to open, and the way to measure.

    `opener` makes the `Setup` of the run stored in `config` (TOML). The worker is pinned to `cores`
    and sees only `gpu` (None: all GPUs). The worker refuses the task unless its code and weights
    have the run's `identity`, and its machine and setup the run's `key`. It reserves caches for the
    prompts of the coming `blocks`, and warms up with them.
    """

    opener: Callable[[Any], Any]
    config: str
    prompts: Mapping[str, Prompt]
    blocks: tuple[Block, ...]
    identity: Mapping[str, str | None]
    key: str | None
    attempt: int
    worker: str
    cores: tuple[int, ...] = ()
    gpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBlock:
    """Time a block with all its cells, and if `phased`, split its time by phase."""

    block: Block
    phased: bool = False

    def __str__(self) -> str:
        return f"block {self.block.block}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePrompts:
    """Answer prompts of the quality pass with every cell, except (cell, prompt) in `done`."""

    prompts: tuple[str, ...]
    done: frozenset[tuple[str, str]]

    def __str__(self) -> str:
        return f"the quality pass over {', '.join(self.prompts)}"


Job = TimeBlock | ScorePrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Give a worker a job. The worker's node also has the run's processes `peers`."""

    job: Job
    peers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Return results of a job: lines of samples.jsonl, named tracebacks, and seconds by phase."""

    lines: tuple[str, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()
    phases: tuple[PhasedAnswer, ...] = ()


Request = Opening | Work | None
"""The first request is None, to which a worker answers with its machine."""
Answer = Hello | Done | BenchError


class Executor(Protocol):
    """Start workers, and send each worker one request at a time."""

    threads: int
    """Number of CPU threads of each worker."""

    def start(self, worker: str) -> None:
        """Begin a process or job called `worker`, without waiting until it runs."""

    def ask(self, worker: str, request: Request) -> None:
        """Send a request and return at once. The request is lost if the worker is dead."""

    def wait(self) -> tuple[str, Answer | None]:
        """Return the next answer of any worker, or None, once, for a dead worker."""

    def stop(self) -> None:
        """End all workers, even busy ones."""


@dataclass(slots=True, kw_only=True)
class _Member:
    """Hold a worker's hello, its slot on its node, and its job."""

    hello: Hello | None = None
    slot: int = -1
    ready: bool = False
    job: Job | None = None

    @property
    def node(self) -> str | None:
        return None if self.hello is None else self.hello.node


class JobQueue:
    """Queue jobs for workers that stay open between runs of the queue."""

    def __init__(
        self,
        executor: Executor,
        num_workers: int,
        opening: Callable[[str, Hello, int], Opening],
        prefix: str = "w",
    ) -> None:
        """Start workers named `prefix` and a number, whose `opening` takes name, hello and slot."""
        self._executor, self._opening = executor, opening
        self._num_workers = num_workers
        self._names = (f"{prefix}{number}" for number in itertools.count())
        self._members: dict[str, _Member] = {}
        self._queue: deque[Job] = deque()
        self._deaths: Counter[str] = Counter()
        for _ in range(num_workers):
            self._start()

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[str, Job | None, Done | None]]:
        """Run `jobs`, starting them in order.

        Each worker, its job and its results are yielded as they come. A worker that has just opened
        has results but no job. A dead worker has no results, and its job runs again elsewhere.

        Raises:
            BenchError: a worker raised this error, or workers died repeatedly (exit 1).
        """
        self._queue.extend(jobs)
        self._assign_jobs()
        while self._queue or any(member.job for member in self._members.values()):
            worker, answer = self._executor.wait()
            member = self._members[worker]
            if answer is None:
                del self._members[worker]
                yield worker, member.job, None
                fault = "start" if member.job is None else str(member.job)
                limit = _DEATHS * (self._num_workers if member.job is None else 1)
                self._deaths[fault] += 1
                if self._deaths[fault] >= limit:
                    phase = "before they began" if member.job is None else f"during {fault}"
                    line = f"{self._deaths[fault]} workers died {phase}, most recently {worker}"
                    raise BenchError(f"{line}; check its machine's memory and log")
                if member.job is not None:
                    self._queue.appendleft(member.job)
                self._start()
            elif isinstance(answer, BenchError):
                raise BenchError(f"worker {worker}: {answer.message}", exit_code=answer.exit_code)
            elif isinstance(answer, Hello):
                used_slots = {m.slot for m in self._members.values() if m.node == answer.node}
                member.slot = next(slot for slot in itertools.count() if slot not in used_slots)
                member.hello = answer
                self._executor.ask(worker, self._opening(worker, answer, member.slot))
            else:
                job, member.job, member.ready = member.job, None, True
                yield worker, job, answer
            self._assign_jobs()

    def _start(self) -> None:
        worker = next(self._names)
        self._members[worker] = _Member()
        self._executor.start(worker)
        self._executor.ask(worker, None)

    def _assign_jobs(self) -> None:
        """Assign the next jobs to free workers."""
        for worker, member in self._members.items():
            if self._queue and member.ready and member.job is None:
                member.job = self._queue.popleft()
                beside = [m.hello for m in self._members.values() if m.node == member.node]
                peers = tuple(hello.pid for hello in beside if hello)
                self._executor.ask(worker, Work(job=member.job, peers=peers))
