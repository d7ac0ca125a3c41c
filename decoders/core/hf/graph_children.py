"""Child processes that compile graphs, at most one per processor at a time.

While a child compiles a call's graph, the call runs uncompiled. A compiler that aborts, because a
disk is full for instance, ends only the child.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
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
_MAX_CHARACTERS = 1000
"""Characters of a child's error, which a pipe holds while nobody reads."""


class NoGraphError(ValueError):
    """No graph can be made of a model's calls, or none on this machine."""


class Children:
    """The children of one `side_by_side` context, by the file that each child writes."""

    def __init__(self, max_children: int, *, compiles: bool = True) -> None:
        """Run at most `max_children` children at once, or none if 0.

        Unless missing graphs may be compiled (`compiles`), their paths are kept as `missing`.
        """
        self._max_children, self.compiles = max_children, compiles
        self._children: dict[Path, Any] = {}
        self.missing: list[Path] = []

    def __len__(self) -> int:
        """Return the number of children started so far."""
        return len(self._children)

    def have(self, path: Path, make: Callable[[], object]) -> bool:
        """Start a child that makes a file and return False if the file is to be made here."""
        if not self.compiles:
            self.missing.append(path)
        elif path not in self._children:
            if not self._max_children:
                return False
            while sum(child.is_alive() for child in self._children.values()) >= self._max_children:
                time.sleep(_POLL_S)
            self._children[path], _ = _started(make)
        return True

    def wait(self) -> None:
        """Wait for all children (after a failed one, the next call tries again)."""
        for child in self._children.values():
            child.join()

    def stop(self) -> None:
        """Terminate all running children."""
        for child in self._children.values():
            child.terminate()
            child.join()


current = Children(0)


@contextmanager
def side_by_side(*, compiles: bool = True) -> Iterator[Children]:
    """Let children compile inside the context, on Linux with more than one processor.

    Unless graphs may be compiled (`compiles`), calls without one on disk run uncompiled.
    """
    global current
    processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    before, current = current, Children(processors if processors > 1 else 0, compiles=compiles)
    try:
        yield current
    finally:
        current.stop()
        current = before


def apart(make: Callable[[], object]) -> None:
    """Make a file in a child, where processes can fork safely, and wait for it.

    Raises:
        NoGraphError: a signal ended the child.
        ValueError: the child raised an error; its words.
    """
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        make()
        return
    child, failed = _started(make)
    try:
        child.join()
    finally:
        child.kill()
    with suppress(EOFError):  # it said nothing
        raise ValueError(failed.recv())
    if child.exitcode:
        name = signal.Signals(-child.exitcode).name if child.exitcode < 0 else child.exitcode
        raise NoGraphError(f"the process that compiled calls ended with {name}; is a disk full?")


def _started(make: Callable[[], object]) -> tuple[Any, Any]:
    """Start a child and return it, and the end of a pipe that receives a line if it fails."""
    forks = multiprocessing.get_context("fork")
    failed, fails = forks.Pipe(duplex=False)
    work = partial(_compile_alone, make, torch.get_num_threads(), fails)
    child = forks.Process(target=work, daemon=True)
    with warnings.catch_warnings(action="ignore"):  # Python's about threads, which are idle
        child.start()
    fails.close()
    return child, failed


def _compile_alone(make: Callable[[], object], num_threads: int, fails: Any) -> None:
    """Make code for `num_threads` threads on one thread: a child lacks its parent's threads."""
    torch.set_num_threads(1)
    with Path(os.devnull).open("wb") as silent:
        os.dup2(silent.fileno(), 2)  # what a compiler says as it aborts
    try:
        with torch._inductor.config.patch({"cpp.threads": num_threads}):
            make()
    except (Exception, KeyboardInterrupt) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        with suppress(OSError):  # nobody listens
            fails.send(" ".join(lines[:2])[:_MAX_CHARACTERS])
