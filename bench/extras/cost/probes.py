"""Probe a machine as decoding uses it: by matrix-vector products over many matrices.

A step of one row reads every weight matrix exactly once. So bandwidth is measured as bytes per
second of matrix-vector products that read each matrix once; a plain copy writes as much as it
reads, and uses other instructions. There are two sets of matrices. One is as large as the model's
weights: those of a small model stay in a cache between calls, as in decoding. The other is larger
than the caches. The matrix rate is measured on a product of large matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.machine.clock import Clock, Stopwatch

_ROWS = 1024
_SHARE_OF_ROOM = 0.25
_CPU, _CUDA = (1024, 2048, 2**29), (8192, 8192, 2**32)
"""Widths of the matrices that are read and multiplied, and bytes that exceed all caches.

On a GPU the matrices are wide: reading one must take longer than launching its kernel.
"""
_SMALL_READS_ON_CUDA = 4
"""A smaller set of matrices would time kernel launches; memory bandwidth is used instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Hold a piece of work, its amount in bytes or operations, and names of the measured rates."""

    rates: tuple[str, ...]
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
    """Make the probes for a model of `weight_bytes`, within a quarter of `room_bytes`."""
    width, multiplied, beyond_caches = _CUDA if device.type == "cuda" else _CPU
    max_bytes = min(beyond_caches, int(room_bytes * _SHARE_OF_ROOM))
    matrix_bytes = width**2 * dtype.itemsize
    count = max(1, max_bytes // matrix_bytes)
    small = min(count, max(1, round(weight_bytes / matrix_bytes)))
    full = partial(torch.full, dtype=dtype, device=device)
    matrices = [full((width, width), 1 / width) for _ in range(count)]
    alike = small == count or (device.type == "cuda" and small < _SMALL_READS_ON_CUDA)
    reading = [_reading(("memory_bandwidth", *(("bandwidth",) if alike else ())), matrices)]
    if not alike:
        reading.append(_reading(("bandwidth",), matrices[:small]))
    rows, matrix = full((_ROWS, multiplied), 1.0), full((multiplied, multiplied), 1 / multiplied)
    amount = 2 * _ROWS * multiplied**2
    product = Probe(rates=("matrix_rate",), amount=amount, run=lambda: linear(rows, matrix))
    return [*reading, product]


def _reading(rates: tuple[str, ...], matrices: list[Tensor]) -> Probe:
    vector = torch.ones(1, matrices[0].shape[1], dtype=matrices[0].dtype, device=matrices[0].device)

    def run() -> None:
        for matrix in matrices:
            linear(vector, matrix)

    return Probe(rates=rates, amount=sum(matrix.nbytes for matrix in matrices), run=run)
