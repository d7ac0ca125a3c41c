"""Copies to a device that do not block the host, and sizes that keep the shapes of graphs few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(slots=True)
class Switches:
    """Ways to compute calls that differ in speed alone and that no GPU has compared yet.

    `attention` is how a GPU attends with few rows: by two products, or by the kernel of
    `hf.split_attention`. `fused` joins small operations on a GPU (`hf.fused`).
    """

    attention: Literal["products", "split"] = "split"
    fused: bool = True

    @property
    def any_kernel(self) -> bool:
        """True if a kernel of this project is used."""
        return self.fused or self.attention == "split"


switches = Switches()
"""Those of this process; `bench.extras.cost.bare` sets them to compare them."""
_has_triton = find_spec("triton") is not None


def has_kernels(device: torch.device) -> bool:
    """Tell whether kernels in Triton can run on a device."""
    return device.type == "cuda" and _has_triton


def runs_triton(states: Tensor) -> bool:
    """Tell whether kernels in Triton, which have no gradient, can compute with states."""
    return has_kernels(states.device) and not torch.is_grad_enabled()


def upload(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return numbers, or a host tensor (in its own dtype), as a tensor on a device.

    Copies to a GPU use pinned memory, so that they are queued after earlier kernels.
    """
    on_host = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    return staged(on_host, device).to(device, non_blocking=True)


def staged(on_host: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor in pinned memory if the device is a GPU."""
    return on_host.pin_memory() if device.type == "cuda" else on_host


def graph_size(number: int, bucketed: bool) -> int:
    """Round a size up: to a power of two if `bucketed`, else to 2, as 1 needs another graph."""
    return 1 << max(0, number - 1).bit_length() if bucketed else max(2, number)


def first_rows(rows: Iterable[int], num_rows: int) -> range:
    """Return all of `num_rows` rows up to the last of `rows`, rounded up to a power of two."""
    return range(min(power_of_two(max(rows) + 1), num_rows))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least a number."""
    return 1 << (number - 1).bit_length()


def padded(numbers: Sequence[float]) -> list[Any]:
    """Return numbers with zeros up to a power of two of them, or none."""
    num = len(numbers)
    return [*numbers, *[0] * ((1 << (num - 1).bit_length()) - num)] if num else []
