"""Run worker processes of one thread each.

On a CPU such processes scale better than threads inside operations, and tolerate other load.
"""

from __future__ import annotations

import ctypes
import logging
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessRaisedException

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # options of mallopt in malloc.h


def worker() -> tuple[int, int]:
    """Return this process's rank and the number of workers (0 and 1 outside a group)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def wait_for_all() -> None:
    """Wait until all workers of the group reach this call."""
    if worker()[1] > 1:
        dist.barrier()


def keep_memory() -> None:
    """Let the C library keep freed memory for later allocations.

    By default glibc returns large blocks to the system and requests them again. The page faults
    took two thirds of the time of a training step (docs/log.md). Without glibc this does nothing.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**28)):
            library.mallopt(option, value)


def release_memory() -> None:
    """Return the C library's unused memory to the system (call this from time to time).

    Blocks of changing sizes fragment the heap: a process of 4 GB held 12 GB after two hours.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def spawn(num_workers: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Call ``function(*arguments)`` in `num_workers` processes, or in this one if 1.

    Raises:
        ValueError: a worker raised this error (with its text).
    """
    if num_workers == 1:
        function(*arguments)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
        try:
            torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
                _start, args=(num_workers, folder, function, arguments), nprocs=num_workers
            )
        except ProcessRaisedException as error:
            files = sorted(folder.glob("error*"))
            if not files:
                raise
            raise ValueError(files[0].read_text(encoding="utf-8")) from error


def _start(
    rank: int, world: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store, wait = f"file://{folder}/store", timedelta(days=365)  # the first samples for hours
    dist.init_process_group("gloo", store, wait, rank=rank, world_size=world)
    try:
        function(*arguments)
    except ValueError as error:  # the parent sees only that a process failed
        (folder / f"error{rank}").write_text(str(error), encoding="utf-8")
        raise
    finally:
        dist.destroy_process_group()
