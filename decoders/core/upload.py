"""Copies to a device that do not block the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def upload(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return numbers, or a host tensor (in its own dtype), as a tensor on a device.

    Copies to a GPU use pinned memory, so that they are queued after earlier kernels.
    """
    on_host = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    if device.type == "cpu":
        return on_host
    if device.type == "cuda":
        on_host = on_host.pin_memory()
    return on_host.to(device, non_blocking=True)
