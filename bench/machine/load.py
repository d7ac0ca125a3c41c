"""Other load of the machine during a block: CPU time of other processes, and throttling.

Both are read outside all timed regions. The *other cores* of a block are the CPU time of all other
visible processes during the block / its wall time: 0.5 is half a core. A process that starts and
ends within one block is missed. Throttling means that the kernel's thermal counters grew (Linux),
or that the GPU reports a slow-down reason. Unknown values are None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.machine import gpu

_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The machine during one block: CPU time of other processes, in cores, and slow-downs."""

    other_cores: float | None
    throttled: str | None = None


class LoadWatch:
    """Measures the load between two readings of the process table."""

    def __init__(self, device: str = "cpu") -> None:
        """Read for the first time, beside work on a device, e.g. ``cuda:0``."""
        self._handle = gpu.gpu_handle(device)
        self._ignored = {os.getpid()}
        self._look()

    def ignore(self, pids: Collection[int]) -> None:
        """Ignore these processes (workers of the same run) from the next reading on."""
        self._ignored = {os.getpid(), *pids}

    def lap(self) -> Load:
        """Return the load since the last reading."""
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
            if process.pid in self._ignored:
                continue
            with suppress(psutil.Error):
                times = process.cpu_times()
                used_s[process.pid, process.create_time()] = times.user + times.system
        self._time_s = time.perf_counter()
        self._used_s = used_s
        counts = []
        for file in _CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
            with suppress(OSError, ValueError):
                counts.append(int(file.read_text()))
        self._throttles = sum(counts) if counts else None
