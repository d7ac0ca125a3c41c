"""Answers without an end: stopped between calls, inside a decoder, and not asked for again."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bench.machine.deadline import TimeLimit, default_limit_s
from decoders.ar import Autoregressive
from decoders.core.decoder import Request, Steps
from decoders.core.engine.deadline import MAX_TIMEOUTS, Deadline, OutOfTime
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Outcome, Sampling

WAYS = ("calls", "loop", "deaf", "at_its_end")
SHORT_S = 1.2
"""Far above what an answer of a table takes, on a busy machine as well."""


@dataclass(frozen=True, kw_only=True)
class Hanging(Autoregressive):
    """Answers like AR, but hangs in some way where the prompt starts with token 3."""

    way: str = "calls"

    def steps(self, request: Request) -> Steps:
        if request.prompt_ids[0] != 3:
            yield from super().steps(request)
        yield from getattr(self, self.way)(request)

    def calls(self, request: Request) -> Steps:
        while True:
            yield request.target.call(request.prompt_ids)
            request.target.truncate(0)

    def loop(self, request: Request) -> Steps:
        yield request.target.call(request.prompt_ids)
        while True:
            pass

    def deaf(self, request: Request) -> Steps:
        yield request.target.call(request.prompt_ids)
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.001)

    def at_its_end(self, request: Request) -> Steps:
        try:
            yield from super().steps(request)
        finally:
            while True:
                pass


def answers(way: str, limit: TimeLimit, batch_size: int = 1) -> list[Outcome]:
    models, sampling = Models(target=TableModel()), Sampling(max_new_tokens=5)
    Scheduler(Autoregressive(), models, sampling).run([[1]])  # the first call of all is slow
    scheduler = Scheduler(Hanging(way=way), models, sampling, batch_size, limit)
    with limit.ticking():
        return scheduler.run([[1], [3], [2], [4]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "batch_size"),
    [
        *((way, 1) for way in WAYS),
        ("calls", 3),
        *(pytest.param(way, 3, marks=pytest.mark.slow) for way in WAYS[1:]),
    ],
)
def test_an_endless_answer_is_stopped_and_all_other_answers_are_complete(
    way: str, batch_size: int
) -> None:
    outcomes = answers(way, TimeLimit(SHORT_S), batch_size)
    assert isinstance(outcomes[1], TimeoutError)
    assert str(outcomes[1]) == f"not finished after {SHORT_S} s; --timeout sets the limit"
    alone = Scheduler(Autoregressive(), Models(target=TableModel()), Sampling(max_new_tokens=5))
    expected = alone.run([[1], [2], [4]])
    assert [outcomes[0], *outcomes[2:]] == expected


@pytest.mark.slow
def test_signals_are_left_as_they_were() -> None:
    before = signal.getsignal(signal.SIGALRM)
    answers("loop", TimeLimit(SHORT_S))
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def in_a_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.slow
def test_endless_calls_are_also_stopped_in_a_thread() -> None:
    outcomes = in_a_thread(lambda: answers("calls", TimeLimit(SHORT_S)))
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Generation, TimeoutError, Generation, Generation]


def test_no_further_answer_is_started_after_too_many_timeouts_in_a_row() -> None:
    limit = TimeLimit(0.05)
    scheduler = Scheduler(
        Hanging(way="calls"), Models(target=TableModel()), Sampling(), deadline=limit
    )
    with limit.ticking():
        outcomes = scheduler.run([[3]] * 6)
    said = [str(outcome) for outcome in outcomes]
    assert all(isinstance(outcome, TimeoutError) for outcome in outcomes)
    assert [text.startswith("not fin") for text in said] == [True] * MAX_TIMEOUTS + [False] * 3
    assert said[-1] == f"not started: the {MAX_TIMEOUTS} answers before it timed out"
    limit.forget()
    assert limit.refuses() is None


def test_a_finished_answer_resets_the_count_of_timeouts() -> None:
    hung = [[3]] * (MAX_TIMEOUTS - 1)
    limit = TimeLimit(0.05)
    decoder, models = Hanging(way="calls"), Models(target=TableModel())
    with limit.ticking():
        outcomes = Scheduler(decoder, models, Sampling(max_new_tokens=2), deadline=limit).run(
            [*hung, [1], *hung]
        )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [TimeoutError] * len(hung) + [Generation] + [TimeoutError] * len(hung)
    assert limit.refuses() is None


def test_the_handling_of_a_timeout_is_not_interrupted_by_the_deadline() -> None:
    deadline, inside = Deadline(1.0), list[float | None]()

    class Job:
        def fail(self, _error: Exception) -> None:
            inside.append(deadline.inside)

    def turn() -> None:
        inside.append(deadline.inside)
        raise OutOfTime

    job: Any = Job()
    deadline.guard(job, turn)
    assert inside == [0.0, None]


@pytest.mark.parametrize("always", [False, True])
def test_without_a_timer_a_check_for_overdue_answers_is_always_due(always: bool) -> None:
    deadline = Deadline(1.0, always_due=always)
    assert deadline.due == always
    deadline.due = True  # as a timer does
    deadline.fail_overdue([])
    assert deadline.due == always


def test_the_default_time_limit_is_five_minutes_plus_five_seconds_per_token() -> None:
    assert default_limit_s(256) == 300 + 5 * 256


def test_among_answers_of_similar_age_the_idlest_answer_is_stopped() -> None:
    now, stopped = [0.0], list[int]()
    deadline = Deadline(10.0, lambda: now[0])

    class Job:
        outcome = None

        def __init__(self, start_s: float, idle_calls: int) -> None:
            self.idle_calls, now[0] = idle_calls, start_s
            job: Any = self
            deadline.guard(job, lambda: None)

        def fail(self, _error: Exception) -> None:
            stopped.append(self.idle_calls)

    jobs: Any = [Job(0.0, 1), Job(0.5, 900), Job(5.0, 5000)]  # the last has waited for nothing
    for now[0] in (9.9, 10.1):
        deadline.fail_overdue(jobs)
    assert stopped == [900]
