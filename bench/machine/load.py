"""The machine's other load between blocks: CPU time of other processes, and throttling.

Read outside of every timed region. *Other cores* of a block is the CPU time that all other visible
processes gained while it ran, divided by its wall time: 0.5 is half a core. A process that started
and ended within one block is not seen. Throttling is the growth of the kernel's thermal counters
(Linux) or, on a GPU, an active slow-down reason. Unknown is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.machine import gpu

_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The machine during one block: CPU time others took, in cores, and why it was slowed down."""

    other_cores: float | None
    throttled: str | None = None


class LoadWatch:
    """Takes the difference between two looks at the process table."""

    def __init__(self, device: str = "cpu") -> None:
        """Look for the first time; `device` is the one in use, e.g. ``cuda:0``."""
        self._handle = gpu.gpu_handle(device)
        self._own = {os.getpid()}
        self._look()

    def ignore(self, pids: Collection[int]) -> None:
        """Pass over these processes from the next look on: workers of the same run."""
        self._own = {os.getpid(), *pids}

    def lap(self) -> Load:
        """Return the load since the last look."""
        then_s, used_s, throttles = self._time_s, self._used_s, self._throttles
        self._look()
        wall_s = self._time_s - then_s
        gained = sum(now - used_s.get(key, 0.0) for key, now in self._used_s.items())
        throttled = gpu.slowdown(self._handle)
        if throttles is not None and (self._throttles or 0) > throttles:
            throttled = "CPU thermal"
        return Load(
            other_cores=round(gained / wall_s, 3) if wall_s > 0 else None, throttled=throttled
        )

    def _look(self) -> None:
        used_s: dict[tuple[int, float], float] = {}
        for process in psutil.process_iter():
            if process.pid in self._own:
                continue
            try:
                times = process.cpu_times()
                used_s[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:
                continue
        self._time_s = time.perf_counter()
        self._used_s = used_s
        self._throttles = _thermal_events()


def _thermal_events() -> int | None:
    counts = []
    for file in _CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts.append(int(file.read_text()))
        except (OSError, ValueError):
            continue
    return sum(counts) if counts else None
