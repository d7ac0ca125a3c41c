"""Limit the time of each answer (`--timeout`) by the system clock and a timer signal.

A timer ticks `_TICKS` times per limit and costs nothing between ticks. After a tick, the scheduler
checks its answers at its next turn: answers out of time end with `TimeoutError`, all others
continue. If a decoder does not return (a loop without a yield) and has used `_GRACE` times the
limit, the signal handler raises inside the decoder. Python cannot interrupt C code (a kernel, a
lock), so the error waits until that code returns.

Outside the main thread there are no timer signals: the scheduler reads the clock at every turn, and
only loops without a yield are not stopped.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from decoders.core.engine.deadline import Deadline, OutOfTime

_BASE_S, _PER_TOKEN_S = 300.0, 5.0
"""Default limit: a constant, plus seconds per token of the budget."""
_TICKS = 20
_MIN_TICK_S = 0.01
_GRACE = 1.1
DEAF_S, DEAF_CPU_S = 10.0, 0.02
"""Seconds or CPU seconds until a decoder that swallows the error is interrupted again."""


def default_limit_s(max_new_tokens: int) -> float:
    """Return a limit in seconds that no working decoder reaches."""
    return _BASE_S + _PER_TOKEN_S * max_new_tokens


class TimeLimit(Deadline):
    """Limit every answer to `limit_s` seconds, while the timer of `ticking` runs."""

    def __init__(self, limit_s: float) -> None:
        """Set a limit above 0."""
        assert limit_s > 0, f"a limit of {limit_s} s"
        super().__init__(limit_s, time.monotonic, always_due=not _in_main_thread())
        self._raised = (-1.0, 0.0, 0.0)  # interrupted answer's start, its time, CPU time

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Run the timer, and restore the signal handler afterwards."""
        if self._always_due or not _in_main_thread():
            yield
            return
        tick_s = max(self.limit_s / _TICKS, _MIN_TICK_S)
        with _alarms(self._tick, tick_s, tick_s):
            yield

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        self.due = True
        start_s, now_s = self.inside, time.monotonic()
        if start_s is None or now_s - start_s <= self.limit_s * _GRACE:
            return
        used_s = time.process_time()
        raised, raised_s, raised_used_s = self._raised
        if raised == start_s and now_s - raised_s < DEAF_S and used_s - raised_used_s < DEAF_CPU_S:
            return  # the last error may still be on its way on a busy machine
        self._raised = (start_s, now_s, used_s)
        raise OutOfTime


@contextmanager
def interrupting(limit_s: float, again_s: float) -> Iterator[None]:
    """Raise `TimeoutError` after `limit_s` seconds, and every `again_s` while code swallows it.

    Nothing is raised outside of the main thread.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not finished after {limit_s:g} s")

    with _alarms(stop, limit_s, again_s) if _in_main_thread() else nullcontext():
        yield


@contextmanager
def _alarms(
    handler: Callable[[int, FrameType | None], None], first_s: float, again_s: float
) -> Iterator[None]:
    """Call `handler` by a timer, and restore the signal handler afterwards."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, first_s, again_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
