"""Energy of a timed region: of the GPU in use through NVML, on a CPU of its packages through RAPL.

A counter covers all that its device does, other processes included; RAPL leaves out memory. Where
there is none, or it may not be read (RAPL as a rule by root alone), energy is None and never 0.
"""

from __future__ import annotations

from pathlib import Path

from bench.machine.gpu import gpu_handle, nvml_reading

_RAPL = Path("/sys/class/powercap")


class EnergyMeter:
    """Takes the difference between two looks at the counters of a device."""

    def __init__(self, device: str) -> None:
        """Find the counters of ``cpu``, ``cuda`` or ``cuda:1``, and look for the first time."""
        self._handle = gpu_handle(device)
        self._packages = [] if device != "cpu" else sorted(_RAPL.glob("intel-rapl:[0-9]*"))
        self._packages = [each for each in self._packages if each.name.count(":") == 1]
        self._joules = self._look()

    def lap(self) -> float | None:
        """Return joules since the last look, None where a counter could not be read."""
        before, self._joules = self._joules, self._look()
        if not before or self._joules is None:
            return None
        gained = [now - then for then, now in zip(before, self._joules, strict=True)]
        if min(gained) < 0:  # a counter began anew
            return None
        return sum(gained)

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
