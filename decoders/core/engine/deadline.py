"""Limit the time of answers, by a clock that the caller provides.

No clock is read during calls: a timer sets the flag `Deadline.due` (`bench.machine.deadline`), and
only then running answers are checked. A decoder that never returns to its next yield is
interrupted by `OutOfTime`, which no `except Exception` catches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVarTuple

from decoders.core.decoder import Answer
from decoders.core.engine.faults import as_exception

if TYPE_CHECKING:
    from decoders.core.engine.sequence import RunningSequence

MAX_TIMEOUTS = 3
"""After this many timeouts in a row, a decoder gets no further prompts."""
_OLD = 0.9
"""An answer older than this share of the limit may be the one that delayed all other answers."""
_Ts = TypeVarTuple("_Ts")


class OutOfTime(BaseException):
    """Interrupt a decoder that is out of time and does not yield by itself."""


class Deadline:
    """Keep the start time of each running answer, and fail answers that are out of time.

    `inside` is the start of the answer whose decoder is running now; None between decoders.
    """

    def __init__(
        self,
        limit_s: float = math.inf,
        now: Callable[[], float] = lambda: 0.0,
        *,
        always_due: bool = False,
    ) -> None:
        """Limit answers by the clock `now` in seconds (`always_due` if no timer sets the flag)."""
        self.limit_s = limit_s
        self.due = self._always_due = always_due
        self.inside: float | None = None
        self._now = now
        self._starts: dict[RunningSequence, float] = {}
        self._in_a_row = 0

    def guard(self, job: RunningSequence, turn: Callable[[*_Ts], None], *args: *_Ts) -> None:
        """Run a turn of a sequence's decoder within its time, which starts with its first turn.

        Args:
            job: the sequence, which fails if it is out of time.
            turn: a function that runs the decoder.
            args: its arguments.
        """
        start_s = self._starts.get(job)
        if start_s is None:
            start_s = self._starts[job] = self._now()
        try:
            self.inside = start_s
            turn(*args)
        except OutOfTime as stop:
            self.inside = None
            job.fail(self._error().with_traceback(stop.__traceback__))
        finally:
            self.inside = None

    def answer(
        self, read: Callable[[Sequence[Answer]], None], group: Sequence[RunningSequence]
    ) -> None:
        """Give every sequence of a group its outcome within the first sequence's time limit."""
        first, early = group[0], "decoder returned before EOS or budget; go on until cut"
        try:
            self.guard(first, read, group)
        except (Exception, SystemExit) as error:
            for job in group:
                job.fail(as_exception(error))
        late = first.outcome if isinstance(first.outcome, TimeoutError) else None
        for job in group:
            if job.outcome is None:
                job.fail(late or RuntimeError(early))

    def fail_overdue(self, active: Sequence[RunningSequence]) -> None:
        """Fail one answer if any is out of time: of equally old ones, that with most idle calls.

        Other answers may only have waited for that one, so their time restarts when it has `ended`.
        """
        self.due = self._always_due
        now_s = self._now()
        ages_s = {job: now_s - self._starts[job] for job in active if job.outcome is None}
        if max(ages_s.values(), default=0.0) > self.limit_s:
            old = [job for job, age_s in ages_s.items() if age_s > _OLD * self.limit_s]
            max(old, key=lambda job: job.idle_calls).fail(self._error())

    def ended(self, job: RunningSequence) -> None:
        """Forget a job, and restart the time of all other jobs if it timed out."""
        self._starts.pop(job, None)
        if not isinstance(job.outcome, TimeoutError):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        self._starts = dict.fromkeys(self._starts, self._now())

    def refuses(self) -> TimeoutError | None:
        """Return the reason why no further answer may start (`MAX_TIMEOUTS` in a row), or None."""
        if self._in_a_row < MAX_TIMEOUTS:
            return None
        return TimeoutError(f"not started: the {self._in_a_row} answers before it timed out")

    def forget(self) -> None:
        """Reset the count of timeouts in a row."""
        self._in_a_row = 0

    def _error(self) -> TimeoutError:
        return TimeoutError(f"not finished after {self.limit_s:g} s; --timeout sets the limit")
