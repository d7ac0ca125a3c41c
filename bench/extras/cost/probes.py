"""Probe a machine as decoding uses it: by matrix-vector products over many matrices.

A step of one row reads every weight matrix exactly once. So bandwidth is measured as bytes per
second of matrix-vector products that read each matrix once; a plain copy writes as much as it
reads, and uses other instructions. The matrices are together as large as the model's weights: those
of a small model stay in a cache between calls, as in decoding. The matrix rate is measured on a
product of large matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import linear

from bench.machine.clock import Clock, Stopwatch

_ROWS = 1024
_SHARE_OF_ROOM = 0.25
_CPU, _CUDA = (1024, 2048, 2**29), (8192, 8192, 2**32)
"""Widths of the matrices that are read and multiplied, and limit of bytes that are read.

On a GPU the matrices are wide: reading one must take longer than launching its kernel.
"""
_MIN_READS_ON_CUDA = 4
"""Fewer matrices would time kernel launches: as many as the limit allows are read instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Hold a piece of work, its amount in bytes or operations, and the name of its rate."""

    rate: str
    amount: float
    run: Callable[[], object]

    @torch.inference_mode()
    def per_second(self, clock: Clock) -> float:
        """Run the work twice, and return the rate of the second run."""
        self.run()
        with Stopwatch(clock) as watch:
            self.run()
        return self.amount / watch.total_s


def make_probes(
    weight_bytes: int, *, dtype: torch.dtype, device: torch.device, room_bytes: float
) -> list[Probe]:
    """Make the probes for a model.

    Args:
        weight_bytes: bytes of the model's weights; the matrices have about as many, within limits.
        dtype: that of the model's weights, and of the matrices.
        device: the device to probe.
        room_bytes: free memory; matrices that are read take a quarter at most, but one is made.
    """
    width, multiplied, max_bytes = _CUDA if device.type == "cuda" else _CPU
    matrix_bytes = width**2 * dtype.itemsize
    max_count = max(1, min(max_bytes, int(room_bytes * _SHARE_OF_ROOM)) // matrix_bytes)
    count = min(max_count, max(1, round(weight_bytes / matrix_bytes)))
    if device.type == "cuda" and count < _MIN_READS_ON_CUDA:
        count = max_count
    full = partial(torch.full, dtype=dtype, device=device)
    matrices = [full((width, width), 1 / width) for _ in range(count)]
    vector = full((1, width), 1.0)

    def read() -> None:
        for each in matrices:
            linear(vector, each)

    rows, matrix = full((_ROWS, multiplied), 1.0), full((multiplied, multiplied), 1 / multiplied)
    amount = 2 * _ROWS * multiplied**2
    return [
        Probe(rate="bandwidth", amount=count * matrix_bytes, run=read),
        Probe(rate="matrix_rate", amount=amount, run=lambda: linear(rows, matrix)),
    ]
