"""The one exception that ends a command with a line instead of a traceback, and its exit codes.

Every verb maps what went wrong to a `BenchError`: one line saying what was got, what is allowed and
what to do, and one of the documented exit codes. Anything else that escapes is a bug.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

from bench.text import printable
from decoders.core.nearest import nearest

_LOWER = "lower --batch-size or --max-new-tokens, or take a smaller --dtype (bfloat16) or model"
_SAID = re.compile(r"out of memory|(can't|cannot) allocate memory|not enough memory", re.IGNORECASE)
_TRIED = re.compile(r"tried to allocate (\d[\d.]* \w+)", re.IGNORECASE)


class Exit(IntEnum):
    """Exit codes of `bench` (stable: scripts and CI branch on them)."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REGRESSION = 3
    INVALID = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130


class BenchError(Exception):
    """A failure a user can act on: `message` is one line, `exit_code` one of `Exit`."""

    def __init__(self, message: str, exit_code: int = Exit.FAILED) -> None:
        """Keep the message in one line, whatever it was made from."""
        self.message = printable(" ".join(message.split()))
        self.exit_code = int(exit_code)
        super().__init__(self.message)


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """The end of an error line about an unknown name: the nearest valid one, then all of them."""
    names = sorted(allowed)
    return f"{nearest(name, names)}available: {', '.join(names) or 'none'}"


@contextmanager
def room_for(what: str, advice: str = _LOWER) -> Iterator[None]:
    """Within it a lack of memory is a `BenchError` (exit 1): `what` did not fit, and `advice`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or _SAID.search(str(error))):
            raise
        tried = _TRIED.search(str(error))
        size = f" (tried to allocate {tried[1]})" if tried else ""
        raise BenchError(f"out of memory: {what} did not fit{size}; {advice}") from error
