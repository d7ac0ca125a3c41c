"""Child processes that compile graphs, one for each processor at once.

A call whose graph a child compiles runs plainly meanwhile.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

_POLL_S = 0.05


class Children:
    """The children of one `side_by_side`, by the file that each writes."""

    def __init__(self, most: int) -> None:
        """Run so many at once; 0: begin none."""
        self._most = most
        self._begun: dict[Path, Any] = {}

    def __len__(self) -> int:
        """Return how many were begun so far."""
        return len(self._begun)

    def have(self, path: Path, make: Callable[[], object]) -> bool:
        """Begin to `make` a file that is not there; return False if it is, or none are begun."""
        if path not in self._begun:
            if not self._most or path.exists():
                return False
            while sum(child.is_alive() for child in self._begun.values()) >= self._most:
                time.sleep(_POLL_S)
            work = partial(_compile_alone, make, torch.get_num_threads())
            child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
            with warnings.catch_warnings(action="ignore"):  # Python's, of threads: they rest
                child.start()
            self._begun[path] = child
        return True

    def wait(self) -> None:
        """Wait for all; a file that could not be made is missing, and the next call makes it."""
        for child in self._begun.values():
            child.join()

    def stop(self) -> None:
        """End all that still run."""
        for child in self._begun.values():
            child.terminate()
            child.join()


current = Children(0)


@contextmanager
def side_by_side() -> Iterator[Children]:
    """Let children compile inside, where there are processors and Linux forks processes."""
    global current
    processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    before, current = current, Children(processors if processors > 1 else 0)
    try:
        yield current
    finally:
        current.stop()
        current = before


def _compile_alone(make: Callable[[], object], num_threads: int) -> None:
    """Make code for threads that a child must not wait for: its parent has them."""
    torch.set_num_threads(1)
    with (
        suppress(Exception, KeyboardInterrupt),
        torch._inductor.config.patch({"cpp.threads": num_threads}),
    ):
        make()
