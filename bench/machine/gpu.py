"""The GPU in use through NVML: what it is, its clocks, and whether it is slowed down.

Needs the extra `gpu` (nvidia-ml-py); without it, without a driver or on a CPU all of it is None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SLOWDOWNS = {0x8: "hardware slow-down", 0x20: "software thermal", 0x40: "hardware thermal"}


def gpu_handle(device: str) -> object:
    """Return the NVML handle of the GPU in use, if there is one."""
    if not device.startswith("cuda"):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    import torch

    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"  # indices may be remapped
        handle: object = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return None
    return handle


def gpu_facts(handle: object, device: str) -> dict[str, Any] | None:
    """Return name, memory, driver and present clocks of the GPU in use (None on a CPU)."""
    if not device.startswith("cuda"):
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    known = {"name": properties.name, "memory_bytes": properties.total_memory}
    return known | (_nvml_facts(handle) if handle is not None else {})


def _nvml_facts(handle: object) -> dict[str, Any]:
    import pynvml

    readings: dict[str, Callable[[], Any]] = {
        "driver": lambda: str(pynvml.nvmlSystemGetDriverVersion()),
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "power_limit_mw": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle),
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "slowdown_reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    }
    facts: dict[str, Any] = {}
    for name, read in readings.items():
        try:
            facts[name] = read()
        except pynvml.NVMLError:
            facts[name] = None
    return facts


def slowdown(handle: object | None) -> str | None:
    """Say why the GPU is slowed down right now (None: it is not, or nobody knows)."""
    if handle is None:
        return None
    import pynvml

    try:
        active = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except pynvml.NVMLError:
        return None
    return ", ".join(name for bit, name in _SLOWDOWNS.items() if active & bit) or None
