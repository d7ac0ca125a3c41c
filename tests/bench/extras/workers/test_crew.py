"""The queue alone: who gets what, and which place on a node a worker has."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from bench.errors import BenchError
from bench.extras.workers.crew import (
    Answer,
    Done,
    Hello,
    JobQueue,
    Opening,
    Request,
    TimeBlock,
    Work,
)
from bench.extras.workers.worker import nth_gpu
from bench.records.plan import Block


class Scripted:
    """Workers on nodes by turns; those in `dead` are gone at their first job."""

    threads = 1

    def __init__(self, nodes: list[str], dead: set[str], unborn: int = 0) -> None:
        self._nodes, self._dead, self._unborn = deque(nodes), dead, unborn
        self._asked: deque[tuple[str, Request]] = deque()
        self.peers: dict[str, tuple[int, ...]] = {}

    def start(self, worker: str) -> None:
        pass

    def ask(self, worker: str, request: Request) -> None:
        self._asked.append((worker, request))

    def wait(self) -> tuple[str, Answer | None]:
        worker, request = self._asked.popleft()
        if request is None:
            if self._unborn:
                self._unborn -= 1
                return worker, None
            return worker, Hello(node=self._nodes.popleft(), pid=int(worker[1:]), cores=(0, 1))
        if isinstance(request, Opening):
            return worker, Done()
        assert isinstance(request, Work)
        self.peers[worker] = request.peers
        if worker in self._dead:
            self._dead.discard(worker)
            return worker, None
        return worker, Done(lines=(worker,))

    def stop(self) -> None:
        pass


class Told:
    """A ledger that remembers."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.places: dict[str, int] = {}
        self.lost_by: list[str] = []

    def opening(self, worker: str, hello: Hello, place: int) -> Opening:
        self.places[worker] = place
        plain: dict[str, Any] = {"opener": print, "config": "", "prompts": {}, "blocks": ()}
        return Opening(**plain, identity={}, key=None, attempt=0, worker=worker)

    def take(self, results: Any) -> None:
        for worker, job, done in results:
            if done is None:
                self.lost_by.append(worker)
            elif job is not None:
                assert done.lines == (worker,)
                self.blocks.append(job.block.block)


def jobs(num: int) -> list[TimeBlock]:
    plain: dict[str, Any] = {"repeat": 0, "prompts": (), "order": ()}
    return [TimeBlock(block=Block(block=number, **plain)) for number in range(num)]


def test_every_block_is_done_once_and_the_place_of_a_dead_worker_is_reused() -> None:
    told, executor = Told(), Scripted(["a", "a", "b", "a"], {"w1"})
    crew = JobQueue(executor, 3, told.opening)
    told.take(crew.run(jobs(7)))
    assert sorted(told.blocks) == list(range(7))
    assert told.lost_by == ["w1"]
    assert told.places == {"w0": 0, "w1": 1, "w2": 0, "w3": 1}


def test_the_job_of_a_dead_worker_is_done_next() -> None:
    told = Told()
    told.take(JobQueue(Scripted(["a", "a"], {"w0"}), 1, told.opening).run(jobs(3)))
    assert told.blocks == [0, 1, 2]


def test_a_worker_learns_only_of_the_runs_processes_on_its_own_node() -> None:
    told, executor = Told(), Scripted(["a", "b", "a"], set())
    told.take(JobQueue(executor, 3, told.opening).run(jobs(6)))
    assert executor.peers == {"w0": (0, 2), "w1": (1,), "w2": (0, 2)}


def test_workers_stay_for_the_next_queue() -> None:
    told, executor = Told(), Scripted(["a", "a"], set())
    crew = JobQueue(executor, 2, told.opening)
    told.take(crew.run(jobs(3)))
    told.take(crew.run(jobs(3)))
    assert sorted(told.blocks) == [0, 0, 1, 1, 2, 2]
    assert len(told.places) == 2


def test_workers_that_die_at_startup_are_replaced_a_limited_number_of_times() -> None:
    told = Told()
    told.take(JobQueue(Scripted(["a"], set(), unborn=2), 1, told.opening).run(jobs(1)))
    assert told.blocks == [0]
    with pytest.raises(BenchError, match="3 workers died before they began, most recently w2"):
        told.take(JobQueue(Scripted(["a"], set(), unborn=3), 1, told.opening).run(jobs(1)))


def test_the_limit_of_deaths_at_startup_grows_with_the_number_of_workers() -> None:
    told = Told()
    told.take(JobQueue(Scripted(["a", "a"], set(), unborn=5), 2, told.opening).run(jobs(1)))
    assert told.blocks == [0]
    with pytest.raises(BenchError, match="6 workers died before they began"):
        told.take(JobQueue(Scripted(["a"], set(), unborn=6), 2, told.opening).run(jobs(1)))


def test_a_run_survives_jobs_that_kill_one_worker_each() -> None:
    class DeadlyAtFirst(Scripted):
        """Each job kills the first worker that takes it."""

        def ask(self, worker: str, request: Request) -> None:
            if isinstance(request, Work) and str(request.job) not in fatal:
                fatal.add(str(request.job))
                self._dead.add(worker)
            super().ask(worker, request)

    told, fatal = Told(), set[str]()
    told.take(JobQueue(DeadlyAtFirst(["a"] * 5, set()), 1, told.opening).run(jobs(4)))
    assert told.blocks == [0, 1, 2, 3]
    assert len(told.lost_by) == 4


def test_an_error_of_a_worker_ends_the_run_with_its_message() -> None:
    class Refusing(Scripted):
        def wait(self) -> tuple[str, Answer | None]:
            worker, answer = super().wait()
            return worker, BenchError("no room", exit_code=5) if answer == Done() else answer

    told = Told()
    with pytest.raises(BenchError, match="worker w0: no room") as raised:
        told.take(JobQueue(Refusing(["a"], set()), 1, told.opening).run(jobs(1)))
    assert raised.value.exit_code == 5


@pytest.mark.parametrize(
    ("number", "visible", "name"),
    [
        *((1, None, "1"), (0, "", "0"), (1, "2,3", "3"), (0, "GPU-5a,GPU-7c", "GPU-5a")),
        *((1, "3", "3"), (1, "0", "0")),  # Ray and Slurm show a worker its own GPU alone
    ],
)
def test_a_worker_takes_only_a_gpu_that_is_visible_to_its_process(
    number: int, visible: str | None, name: str
) -> None:
    assert nth_gpu(number, visible) == name
