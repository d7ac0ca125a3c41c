"""`--timeout`: a limit of one answer's time, by the system's clock and a timer signal.

A timer ticks `_TICKS` times per limit and costs nothing in between. At a tick the scheduler is
asked to look at its answers at its next turn; those out of time end as `TimeoutError`, all others
go on. Where a decoder itself does not come back (a loop without a yield) and is `_GRACE` beyond the
limit, the signal's handler raises inside it. What runs inside C code (a kernel, a lock) cannot be
interrupted in Python: it ends when that code returns.

Where there are no timer signals (threads other than the main one, Windows) the clock is read at
every turn of the scheduler instead, and only loops without a yield go unstopped.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from decoders.core.engine.deadline import Deadline, OutOfTime

_BASE_S, _PER_TOKEN_S = 300.0, 5.0
"""Default limit: so many seconds, and so many per token of the budget."""
_TICKS = 20
_SHORTEST_TICK_S = 0.01
_GRACE = 1.1
DEAF_S, DEAF_CPU_S = 10.0, 0.02
"""A decoder that swallows the interruption is interrupted again after so long, or so much work."""


def default_limit_s(max_new_tokens: int) -> float:
    """Return a limit in seconds that no honest decoder meets."""
    return _BASE_S + _PER_TOKEN_S * max_new_tokens


class TimeLimit(Deadline):
    """A limit of `limit_s` seconds an answer; `ticking` runs its timer."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` above 0."""
        assert limit_s > 0, f"a limit of {limit_s} s"
        super().__init__(limit_s, time.monotonic, always_due=not _has_signals())
        self._raised = (-1.0, 0.0, 0.0)  # which answer was interrupted, when, after what CPU time

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Let the timer run; signals are as they were when it ends."""
        if self._always_due or not _has_signals():
            yield
            return
        before = signal.signal(signal.SIGALRM, self._tick)
        tick_s = max(self.limit_s / _TICKS, _SHORTEST_TICK_S)
        signal.setitimer(signal.ITIMER_REAL, tick_s, tick_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        self.due = True
        began, now_s = self.inside, time.monotonic()
        if began is None or now_s - began <= self.limit_s * _GRACE:
            return
        used_s = time.process_time()
        raised, raised_s, raised_used_s = self._raised
        if raised == began and now_s - raised_s < DEAF_S and used_s - raised_used_s < DEAF_CPU_S:
            return  # what was raised is on its way: on a busy machine that takes a while
        self._raised = (began, now_s, used_s)
        raise OutOfTime


def _has_signals() -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and hasattr(signal, "setitimer")
