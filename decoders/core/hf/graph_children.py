"""Child processes that compile graphs, at most one per processor at a time.

While a child compiles a call's graph, the call runs uncompiled.
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
    """The children of one `side_by_side` context, by the file that each child writes."""

    def __init__(self, most: int) -> None:
        """Run at most `most` children at once; 0 starts none."""
        self._most = most
        self._begun: dict[Path, Any] = {}

    def __len__(self) -> int:
        """Return the number of children started so far."""
        return len(self._begun)

    def have(self, path: Path, make: Callable[[], object]) -> bool:
        """Start a child for a missing file; return False if the file exists or none may start."""
        if path not in self._begun:
            if not self._most or path.exists():
                return False
            while sum(child.is_alive() for child in self._begun.values()) >= self._most:
                time.sleep(_POLL_S)
            work = partial(_compile_alone, make, torch.get_num_threads())
            child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
            with warnings.catch_warnings(action="ignore"):  # Python's about threads, which are idle
                child.start()
            self._begun[path] = child
        return True

    def wait(self) -> None:
        """Wait for all children; if one failed to make its file, the next call makes the file."""
        for child in self._begun.values():
            child.join()

    def stop(self) -> None:
        """Terminate all running children."""
        for child in self._begun.values():
            child.terminate()
            child.join()


current = Children(0)


@contextmanager
def side_by_side() -> Iterator[Children]:
    """Let children compile inside the context, on Linux with more than one processor."""
    global current
    processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    before, current = current, Children(processors if processors > 1 else 0)
    try:
        yield current
    finally:
        current.stop()
        current = before


class _Stored(Children):
    """Compiles nothing; keeps the paths of the missing graphs, whose calls run uncompiled."""

    def __init__(self) -> None:
        super().__init__(0)
        self.missing: list[Path] = []

    def have(self, path: Path, make: Callable[[], object]) -> bool:
        if path.exists():
            return False
        self.missing.append(path)
        return True


@contextmanager
def stored_only() -> Iterator[list[Path]]:
    """Compile nothing inside the context: use graphs on disk; yield the list of missing ones."""
    global current
    before, stored = current, _Stored()
    current = stored
    try:
        yield stored.missing
    finally:
        current = before


def _compile_alone(make: Callable[[], object], num_threads: int) -> None:
    """Make code for `num_threads` threads on one thread: a child lacks its parent's threads."""
    torch.set_num_threads(1)
    with (
        suppress(Exception, KeyboardInterrupt),
        torch._inductor.config.patch({"cpp.threads": num_threads}),
    ):
        make()
