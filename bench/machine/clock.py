"""Measure time by one monotonic clock: at a request's start, the end of step 0, and its end.

A GPU queues work, so the first two readings wait for the device. Ends of later steps and of answers
do not: a decoder that emits tokens knows the tokens, so the device has delivered them, and work
still queued (`hf.ahead`) serves no answer. Python's garbage collector is off in a `Stopwatch`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self


def utc_now() -> str:
    """Return the present moment in ISO format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Clock:
    """Read `time.perf_counter_ns` after a device synchronisation."""

    def __init__(self, sync: Callable[[], None] | None = None) -> None:
        """Keep `sync`, which waits for the device (None on a CPU, whose calls are synchronous)."""
        self._sync = sync

    @classmethod
    def for_device(cls, device: str) -> Self:
        """Return the clock of a device, e.g. ``cpu``, ``cuda`` or ``cuda:1``."""
        if not device.startswith("cuda"):
            return cls()
        import torch

        return cls(lambda: torch.cuda.synchronize(device))

    def now(self) -> float:
        """Read the clock after the device has finished its work."""
        if self._sync is not None:
            self._sync()
        return self.glance()

    def glance(self) -> float:
        """Read the clock without waiting for the device."""
        return time.perf_counter_ns() / 1e9


class Stopwatch:
    """Time one region: ``with Stopwatch(clock) as watch: ...``.

    `emitted` is called after each step. `total_s` runs from entry to `answered`, or to exit.
    """

    def __init__(self, clock: Clock) -> None:
        """Keep the clock, which is read when the region is entered."""
        self._clock = clock
        self._start_s = 0.0
        self.total_s = 0.0
        self._stamps: list[float] = []

    def emitted(self, _index: int = 0, number: int = 0) -> None:
        """Record the end of step `number`, or of step 0 unless it is recorded already."""
        if number:
            self._stamps.append(self._clock.glance())
        elif not self._stamps:
            self._stamps.append(self._clock.now())

    @property
    def ended_s(self) -> tuple[float, ...]:
        """Seconds from entry to the end of every step."""
        return tuple(stamp - self._start_s for stamp in self._stamps)

    def answered(self) -> None:
        """Record the end of all answers."""
        self.total_s = self._clock.glance() - self._start_s

    def __enter__(self) -> Self:
        self._collects = gc.isenabled()
        gc.disable()
        self._start_s = self._clock.now()
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            ended_s = self._clock.now() - self._start_s
            self.total_s = self.total_s or ended_s
        finally:
            if self._collects:
                gc.enable()
