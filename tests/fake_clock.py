"""A clock for exact tests of timed regions."""

from __future__ import annotations

import sys

from bench.machine.clock import Clock


class FakeClock(Clock):
    """A clock that moves only when told to, or by `step_s` at every reading."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.time_s = 0.0
        self._step_s = step_s

    def advance(self, seconds: float) -> None:
        self.time_s += seconds

    def now(self) -> float:
        self.time_s += self._step_s
        return self.time_s

    def glance(self) -> float:
        if sys._getframe(1).f_code.co_name == "answered":  # a step later than the last token
            return self.now()
        return self.time_s
