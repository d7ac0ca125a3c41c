"""The time limit of answers, by the clock of whoever has one.

No clock is read on the way of a call: a timer raises the flag `Deadline.due`
(`bench.machine.deadline`), and only then running answers are looked at. A decoder that never comes
back between two yields is interrupted by `OutOfTime`, which no `except Exception` swallows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVarTuple

if TYPE_CHECKING:
    from decoders.core.engine.sequence import RunningSequence

MOST_TIMEOUTS = 3
"""A decoder that is out of time so many answers in a row is not asked again."""
_Ts = TypeVarTuple("_Ts")


class OutOfTime(BaseException):
    """Raised inside a decoder that is out of time and does not come back by itself."""


class Deadline:
    """When each running answer began, and whether it is out of time.

    `inside` is the start of the answer whose decoder runs at this moment, None between decoders.
    """

    def __init__(
        self,
        limit_s: float = math.inf,
        now: Callable[[], float] = lambda: 0.0,
        *,
        always_due: bool = False,
    ) -> None:
        """Limit answers by `now`, in seconds; `always_due` where no timer raises the flag."""
        self.limit_s = limit_s
        self.due = self._always_due = always_due
        self.inside: float | None = None
        self._now = now
        self._began: dict[RunningSequence, float] = {}
        self._in_a_row = 0

    def guard(self, job: RunningSequence, turn: Callable[[*_Ts], None], *args: *_Ts) -> None:
        """Run a turn of a job's decoder, the first of which begins its time."""
        began = self._began.get(job)
        if began is None:
            began = self._began[job] = self._now()
        try:
            self.inside = began
            turn(*args)
        except OutOfTime as stop:
            self.inside = None
            job.fail(self._error().with_traceback(stop.__traceback__))
        finally:
            self.inside = None

    def stop_the_latest(self, active: Sequence[RunningSequence]) -> None:
        """End one answer that is out of time, if any: that of most calls since its last token.

        The others may only have waited for it: when it has `ended` their time starts anew.
        """
        self.due = self._always_due
        now_s = self._now()
        running = [job for job in active if job.outcome is None]
        late = [job for job in running if now_s - self._began[job] > self.limit_s]
        if late:
            max(late, key=lambda job: job.idle_calls).fail(self._error())

    def ended(self, job: RunningSequence) -> None:
        """Forget a job, and count the answers in a row that had no end."""
        self._began.pop(job, None)
        if not isinstance(job.outcome, TimeoutError):
            self._in_a_row = 0
            return
        self._in_a_row = min(self._in_a_row + 1, MOST_TIMEOUTS)
        self._began = dict.fromkeys(self._began, self._now())

    def refuses(self) -> TimeoutError | None:
        """Explain why no further answer should be begun, if so (`MOST_TIMEOUTS`)."""
        if self._in_a_row < MOST_TIMEOUTS:
            return None
        return TimeoutError(f"not asked: {self._in_a_row} answers before had no end either")

    def forget(self) -> None:
        """Start the count of answers without an end anew."""
        self._in_a_row = 0

    def _error(self) -> TimeoutError:
        return TimeoutError(f"no end after {self.limit_s:g} s; --timeout sets the limit")
