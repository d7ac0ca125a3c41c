"""Copy to a device without blocking the host, and round sizes so that graphs have few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Switches:
    """Select ways to compute calls on a GPU that differ in speed alone.

    `kernels` are this project's, in Triton (`core.kernels`). `ahead` begins calls before the token
    that they feed is read (`hf.ahead`).
    """

    kernels: bool = True
    ahead: bool = True


switches = Switches()
"""The switches of this process; `bench.extras.cost.bare` sets them to compare speeds."""
_has_triton = find_spec("triton") is not None


def has_kernels(device: torch.device) -> bool:
    """Return whether Triton kernels run on a device, which must be the process's current device."""
    return (
        switches.kernels
        and _has_triton
        and device.type == "cuda"
        and device.index in (None, torch.cuda.current_device())
    )


def runs_triton(states: Tensor) -> bool:
    """Return whether Triton kernels, which have no gradient and add in float32, can read states."""
    return has_kernels(states.device) and states.itemsize <= 4 and not torch.is_grad_enabled()


def upload(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Copy numbers to a tensor on a device, to a GPU behind the kernels that are queued there.

    Args:
        values: numbers, nested or not, or a tensor on the host.
        device: where the result is; copies to a GPU go through pinned memory.
        dtype: of the result, unless `values` is a tensor, whose dtype is kept.
    """
    on_host = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    return staged(on_host, device).to(device, non_blocking=True)


def staged(on_host: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to pinned memory if the device is a GPU, else return it unchanged."""
    return on_host.pin_memory() if device.type == "cuda" else on_host


def fetched(values: Tensor) -> Callable[[], Tensor]:
    """Queue a copy to the host, and return a function that waits for the copy and returns it."""
    if values.device.type == "cpu":
        return lambda: values
    on_host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    on_host.copy_(values, non_blocking=True)
    copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> Tensor:
        copied.synchronize()
        return on_host

    return wait


def graph_size(number: int, bucketed: bool) -> int:
    """Round a size up to a power of two if `bucketed`, else 1 to 2, as 1 needs another graph."""
    return power_of_two(max(1, number)) if bucketed else max(2, number)


def first_rows(rows: Iterable[int], num_rows: int) -> range:
    """Return the first rows up to the last of `rows`, a power of two of them, within `num_rows`."""
    return range(min(power_of_two(max(rows) + 1), num_rows))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least a number."""
    return 1 << (number - 1).bit_length()


def padded(numbers: Sequence[float]) -> list[Any]:
    """Append zeros to numbers up to a power of two, but return an empty list as it is."""
    return [*numbers, *[0] * (power_of_two(len(numbers)) - len(numbers))] if numbers else []
