"""Products of a fixed number of rows: what `decoders.core.hf.tiles` rests on.

A row of a product does not depend on the rows beside it, but the kernel does, which is chosen by
shape: one shape, one kernel. While a pass runs in tiles, a layer is given no other shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Run = Callable[[Tensor], Tensor]
_rows: int | None = None


@contextmanager
def tiles_of(rows: int) -> Iterator[None]:
    """While inside, `by_tiles` cuts what it is given into tiles of so many rows."""
    global _rows
    before, _rows = _rows, rows
    try:
        yield
    finally:
        _rows = before


def by_tiles(run: Run, x: Tensor) -> Tensor:
    """``run(x)`` of rows ``[R, D]`` or ``[1, R, …]``, tile by tile where a pass runs in tiles.

    R is a multiple of the tile; what `run` makes of a tile has the rows where they were.
    """
    dim = 0 if x.dim() == 2 else 1
    if _rows is None or x.shape[dim] <= _rows:
        return run(x)
    return torch.cat([run(part) for part in x.split(_rows, dim)], dim)  # type: ignore[no-untyped-call]


def tiled(run: Run) -> Run:
    """`run` by tiles."""
    return lambda x: by_tiles(run, x)
