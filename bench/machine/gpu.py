"""Read the GPU in use through NVML: facts, clocks, slow-downs and energy, and a CPU's energy.

NVML needs the extra `gpu` (nvidia-ml-py). Without it, without a driver, or on a CPU, values are
None. A counter of energy covers all work of its device, including other processes. A CPU's counter
is RAPL, which excludes memory. Without a readable counter (usually only root may read RAPL), energy
is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SLOWDOWNS = {0x8: "hardware slow-down", 0x20: "software thermal", 0x40: "hardware thermal"}
_READINGS: Mapping[str, Callable[[Any, object], Any]] = {
    "driver": lambda nvml, _: str(nvml.nvmlSystemGetDriverVersion()),
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "sm_clock_max_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "power_limit_mw": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu),
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0),
    "slowdown_reasons": lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
}
_RAPL = Path("/sys/class/powercap")


def nvml_reading(handle: object, read: Callable[[Any, object], Any]) -> Any:
    """Return the result of `read` for a GPU, or None without a GPU or if NVML fails."""
    if handle is None:
        return None
    import pynvml

    try:
        return read(pynvml, handle)
    except pynvml.NVMLError:
        return None


def gpu_handle(device: str) -> object:
    """Return the NVML handle of the GPU in use, or None."""
    if not device.startswith("cuda") or find_spec("pynvml") is None:
        return None
    import torch

    def open_handle(nvml: Any, _: object) -> object:
        nvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"  # indices may be remapped
        return nvml.nvmlDeviceGetHandleByUUID(uuid)

    return nvml_reading(device, open_handle)


def gpu_facts(handle: object, device: str) -> dict[str, Any] | None:
    """Return name, memory, driver and current clocks of the GPU in use (None on a CPU)."""
    if not device.startswith("cuda"):
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    facts = {"name": properties.name, "memory_bytes": properties.total_memory}
    readings = _READINGS if handle is not None else {}
    return facts | {name: nvml_reading(handle, read) for name, read in readings.items()}


def slowdown(handle: object | None) -> str | None:
    """Return the reason why the GPU is slowed down now (None: not slowed down, or unknown)."""
    active = nvml_reading(handle, _READINGS["slowdown_reasons"]) or 0
    return ", ".join(name for bit, name in _SLOWDOWNS.items() if active & bit) or None


class EnergyMeter:
    """Measure the energy between two readings of a device's counters."""

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
