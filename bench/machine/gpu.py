"""The GPU in use, through NVML: its facts, its clocks, and whether it is slowed down.

Needs the extra `gpu` (nvidia-ml-py). Without it, without a driver, or on a CPU, values are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
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
    """Return why the GPU is currently slowed down (None: it is not, or unknown)."""
    active = nvml_reading(handle, _READINGS["slowdown_reasons"]) or 0
    return ", ".join(name for bit, name in _SLOWDOWNS.items() if active & bit) or None
