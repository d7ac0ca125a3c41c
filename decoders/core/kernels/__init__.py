"""Kernels in Triton, which run where `device.runs_triton` allows it.

Only the functions here may be imported without Triton, which comes with torch for CUDA.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from decoders.core.device import power_of_two, runs_triton

_FEW = 16
"""Most rows of a sequence that attend in parts."""


def fused_kernels(states: Tensor) -> Any:
    """Return the module of kernels that join small operations on states, or None."""
    if not states.is_cuda or not runs_triton(states):
        return None
    from decoders.core.kernels import fused

    return fused


def attend_in_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor | None:
    """Return `split_attention.split_attention`, or None for many rows or heads it does not fit."""
    if not query.is_cuda or query.shape[2] > _FEW or not runs_triton(query):
        return None
    if not 16 <= query.shape[3] == power_of_two(query.shape[3]):  # Triton multiplies no others
        return None
    from decoders.core.kernels.split_attention import split_attention

    return split_attention(query, key, value, mask, scale)
