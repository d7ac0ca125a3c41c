"""Energy of a timed region: the GPU's through NVML, or the CPU packages' through RAPL.

A counter covers all work of its device, including other processes; RAPL excludes memory. Without a
readable counter (usually only root may read RAPL), energy is None, never 0.
"""

from __future__ import annotations

from pathlib import Path

from bench.machine.gpu import gpu_handle, nvml_reading

_RAPL = Path("/sys/class/powercap")


class EnergyMeter:
    """Measures the energy between two readings of a device's counters."""

    def __init__(self, device: str) -> None:
        """Find the counters of a device (``cpu``, ``cuda``, ``cuda:1``) and read them."""
        self._handle = gpu_handle(device)
        self._packages = [] if device != "cpu" else sorted(_RAPL.glob("intel-rapl:[0-9]*"))
        self._packages = [each for each in self._packages if each.name.count(":") == 1]
        self._joules = self._look()

    def lap(self) -> float | None:
        """Return joules since the last reading, or None if a counter could not be read."""
        before, self._joules = self._joules, self._look()
        if not before or self._joules is None:
            return None
        gained = [now - then for then, now in zip(before, self._joules, strict=True)]
        return sum(gained) if min(gained) >= 0 else None  # a counter restarted

    def _look(self) -> list[float] | None:
        if self._handle is not None:
            read = nvml_reading(
                self._handle, lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
            )
            return None if read is None else [read / 1e3]
        try:
            return [int((each / "energy_uj").read_text()) / 1e6 for each in self._packages]
        except (OSError, ValueError):
            return None
