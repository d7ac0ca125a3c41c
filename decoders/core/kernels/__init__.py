"""Kernels in Triton, which run where `device.runs_triton` allows it.

Only the functions here may be imported without Triton, which comes with torch for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from decoders.core.device import power_of_two, runs_triton

_FEW = 16
"""Most rows of a sequence that attend in parts."""
_MAX_GROUP, _MAX_HEAD = 1 << 15, 1 << 10
"""Most bytes of a head's grouped queries, for registers, and of one, for shared memory."""


def fused_kernels(states: Tensor) -> Any:
    """Return the module of kernels that join small operations on states, or None."""
    if not states.is_cuda or not runs_triton(states):
        return None
    from decoders.core.kernels import fused

    return fused


def attention_kernel(query: Tensor, key: Tensor) -> Callable[..., Tensor] | None:
    """Return `split_attention.split_attention`, or None for rows or heads it does not fit."""
    if not query.is_cuda or query.shape[2] > _FEW or not runs_triton(query):
        return None
    if not fits(query.shape[1] // key.shape[1] * query.shape[2], query.shape[3], query.itemsize):
        return None
    from decoders.core.kernels.split_attention import split_attention

    return split_attention


def fits(num_rows: int, width: int, itemsize: int) -> bool:
    """Tell whether our kernel multiplies grouped rows of heads of so many numbers of a size."""
    few = power_of_two(max(16, num_rows)) * width * itemsize <= _MAX_GROUP
    return few and width >= 16 and width == power_of_two(width) and width * itemsize <= _MAX_HEAD
