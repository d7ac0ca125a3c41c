"""`--timeout`: how long one answer may take, by the system's clock and a timer signal.

A timer ticks `TICKS` times per limit and costs nothing in between. At a tick the scheduler is asked
to look at its answers at its next turn; those out of time end as `TimeoutError`, all others go on.
Where a decoder itself does not come back (a loop without a yield) and is `GRACE` beyond the limit,
the signal's handler raises inside it. What runs inside C code (a kernel, a lock) cannot be
interrupted in Python: it ends when that code returns.

Where there are no timer signals (threads other than the main one, Windows) the clock is read at
every turn of the scheduler instead, and only loops without a yield go unstopped. No torch here.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from decoders.core.patience import OutOfTime

BASE_S = 300.0
PER_TOKEN_S = 5.0
"""The limit where none is given: so many seconds, and so many per token of the budget."""
TICKS = 20
SHORTEST_TICK_S = 0.01
GRACE = 1.1
DEAF_S, DEAF_CPU_S = 10.0, 0.02
"""A decoder that swallows the interruption is interrupted again after so long, or so much work."""
MOST_TIMEOUTS = 3
"""A cell that is out of time so many answers in a row is not asked again."""


def default_limit_s(max_new_tokens: int) -> float:
    """A limit that no honest decoder meets, in seconds."""
    return BASE_S + PER_TOKEN_S * max_new_tokens


class TimeLimit:
    """A `decoders.core.patience.Patience` of `limit_s` seconds an answer; tick it by `ticking`."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` above 0."""
        assert limit_s > 0, f"a limit of {limit_s} s"
        self.limit_s = limit_s
        self.inside: float | None = None
        self.due = self._always = not _has_signals()
        self._in_a_row = 0
        self._told = (-1.0, 0.0, 0.0)  # which answer was interrupted, when, after what CPU time

    def begin(self) -> float:
        """Now."""
        return time.monotonic()

    def over(self, began: float) -> bool:
        """Whether more than the limit has passed since."""
        self.due = self._always
        return time.monotonic() - began > self.limit_s

    def error(self) -> TimeoutError:
        """The line of the record."""
        return TimeoutError(f"no end after {self.limit_s:g} s; --timeout sets the limit")

    def refuses(self) -> Exception | None:
        """See `MOST_TIMEOUTS`."""
        if self._in_a_row < MOST_TIMEOUTS:
            return None
        return TimeoutError(f"not asked: {self._in_a_row} answers before had no end either")

    def ended(self, outcome: object) -> None:
        """Count answers without an end; one that ends starts over."""
        if not isinstance(outcome, TimeoutError):
            self._in_a_row = 0
        elif self._in_a_row < MOST_TIMEOUTS:
            self._in_a_row += 1

    def forget(self) -> None:
        """What was asked before did not count."""
        self._in_a_row = 0

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Let the timer run; signals are as they were when it ends."""
        if self._always or not _has_signals():
            yield
            return
        before = signal.signal(signal.SIGALRM, self._tick)
        tick_s = max(self.limit_s / TICKS, SHORTEST_TICK_S)
        signal.setitimer(signal.ITIMER_REAL, tick_s, tick_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        self.due = True
        began, now_s = self.inside, time.monotonic()
        if began is None or now_s - began <= self.limit_s * GRACE:
            return
        used_s = time.process_time()
        told, told_s, told_used_s = self._told
        if told == began and now_s - told_s < DEAF_S and used_s - told_used_s < DEAF_CPU_S:
            return  # what was raised is on its way: on a busy machine that takes a while
        self._told = (began, now_s, used_s)
        raise OutOfTime


def _has_signals() -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and hasattr(signal, "setitimer")
