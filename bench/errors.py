"""The one exception that ends a command with a line instead of a traceback, and its exit codes.

Every verb maps what went wrong to a `BenchError`: one line saying what was got, what is allowed and
what to do, and one of the documented exit codes. Anything else that escapes is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum

from bench.plain import printable


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
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return f"{guess}available: {', '.join(names) or 'none'}"
