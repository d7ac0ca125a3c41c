"""Worker processes of one thread each.

On a CPU they scale better than threads inside each operation, and bear other load.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def worker() -> tuple[int, int]:
    """This process's rank and the number of workers (0 and 1 outside a group)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def spawn(num_workers: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls ``function(*arguments)`` in `num_workers` processes that form a group, or here if 1."""
    if num_workers == 1:
        function(*arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            _start, args=(num_workers, store, function, arguments), nprocs=num_workers
        )


def _start(
    rank: int, world: int, store: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    try:
        function(*arguments)
    finally:
        dist.destroy_process_group()
