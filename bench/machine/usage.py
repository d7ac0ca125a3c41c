"""Measure the use of the machine: peak memory of one answer, other load during a block.

An answer's memory is the weights that its decoder uses, with adapters, and KV caches. A decoder's
own weights (`decoders.core.own_weights`) are included. On a CPU the memory is the sum of these, and
unknown for a decoder that runs its models itself. On CUDA the growth of the allocator's memory to
its peak is added: activations of calls without a graph, and caches of self-driven decoders. Older
allocations (idle models, captured graphs with their buffers and outputs) do not count.

Other load is CPU time of other processes, and throttling, both read outside all timed regions. The
*other cores* of a block are the CPU time of all other visible processes during the block / the wall
time: 0.5 is half a core. A process that starts and ends within one block is missed. Throttling
means that the kernel's thermal counters grew (Linux), or that the GPU reports a slow-down reason.
Unknown values are None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.machine.env import cgroup_memory_bytes
from bench.machine.gpu import gpu_handle, slowdown
from decoders.core.decoder import Decoder, SelfDriven
from decoders.core.engine.models import Models

_CPUS = Path("/sys/devices/system/cpu")


class PeakMemory:
    """Measure one timed region: create the object right before, and read it right after."""

    def __init__(
        self, loaded: Models, used: Models, decoder: Decoder, decoders: Sequence[Decoder] = ()
    ) -> None:
        """Note all models in memory, the used models, their decoder, and the run's `decoders`."""
        self._loaded = list(loaded.roles.values())
        # the cache is reserved for the decoder that opens most sequences
        self._share = decoder.sequences, max(each.sequences for each in (decoder, *decoders))
        self._used, self._decoder, self._device = used, decoder, loaded.target.device
        self._self_driven = isinstance(decoder, SelfDriven)
        if self._device.type == "cuda":
            import torch

            self._gpus = range(torch.cuda.device_count())  # a placed model is on several devices
            for each in self._gpus:
                torch.cuda.reset_peak_memory_stats(each)
            self._before = sum(map(torch.cuda.memory_allocated, self._gpus))

    def peak_bytes(self) -> int | None:
        """Return the peak in bytes, as the module's docstring defines it, or None if unknown."""
        adapters = {part.adapter_name: part.adapter_of for part in self._decoder.parts}
        # of the reserved caches, none serves a self-driven decoder
        share, whole = (0, 1) if self._self_driven else self._share
        used = 0
        for role, model in self._used.roles.items():
            names = [name for name, of in adapters.items() if name is not None and role == of]
            used += model.weight_bytes + model.cache_bytes() * share // whole
            used += sum(map(model.adapter_bytes, names))
        used += self._weight_bytes()
        if self._device.type != "cuda":
            return None if self._self_driven else used
        import torch

        return used + sum(map(torch.cuda.max_memory_allocated, self._gpus)) - self._before

    def _weight_bytes(self) -> int:
        """Count the decoder's own tensors on the target's device, except loaded models' weights."""
        from decoders.core.own_weights import own_storages, weight_storages

        shared = set[int]().union(*map(weight_storages, self._loaded))
        return sum(
            tensor.untyped_storage().nbytes()
            for place, tensor in own_storages(self._decoder).items()
            if place not in shared and tensor.device.type == self._device.type
        )


def available_bytes(device: str) -> int:
    """Return the free memory of a device, ``cpu`` or ``cuda:N``, in bytes."""
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    free, limit = int(psutil.virtual_memory().available), cgroup_memory_bytes()
    return free if limit is None else min(free, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Hold the load during one block: CPU time of other processes, in cores, and slow-downs."""

    other_cores: float | None
    throttled: str | None = None


class LoadWatch:
    """Measure the load between two readings of the process table."""

    def __init__(self, device: str = "cpu") -> None:
        """Read the load for the first time, for work on a device, e.g. ``cuda:0``."""
        self._handle = gpu_handle(device)
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
        throttled = slowdown(self._handle)
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
