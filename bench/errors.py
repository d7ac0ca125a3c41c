"""Define exceptions that end a command with one line instead of a traceback, and exit codes.

A `BenchError` is one line: the value, the allowed values, the remedy. Any other exception that
escapes is a bug.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import ModuleType

from bench.text import printable
from decoders.core.nearest import nearest

_LOWER = "lower --batch-size or --max-new-tokens, or take a smaller --dtype (bfloat16) or model"
_NO_ROOM = re.compile(
    r"out of memory|(can't|cannot) allocate memory|not enough memory", re.IGNORECASE
)
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
    """Report a failure that a user can mend, by a `message` of one line and an `exit_code`."""

    exit_code: int = Exit.FAILED

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        """Join the message's lines. An `exit_code`, e.g. a worker's, replaces the class's."""
        self.message = printable(" ".join(message.split()))
        self.exit_code = self.exit_code if exit_code is None else int(exit_code)
        super().__init__(self.message)


class UsageError(BenchError):
    """Report a command, option or file that is not allowed."""

    exit_code = Exit.USAGE


class InvalidRunError(BenchError):
    """Report a broken invariant, a damaged run, or a run that proves nothing."""

    exit_code = Exit.INVALID


class UnavailableError(BenchError):
    """Report a missing part, or runs that cannot be compared."""

    exit_code = Exit.UNAVAILABLE


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return the end of an error line about an unknown name: the nearest name, then all names."""
    names = sorted(allowed)
    return f"{nearest(name, names)}available: {', '.join(names) or 'none'}"


def optional(module: str, extra: str, asker: str) -> ModuleType:
    """Import a package that an extra installs, or exit 5 if the package cannot be imported."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        line = f"{asker} needs the package {module} ({error})"
        advice = f"install it with: pip install 'decoding-bench[{extra}]'"
        raise UnavailableError(f"{line}; {advice}") from error


@contextmanager
def as_error(
    kind: type[BenchError],
    errors: type[Exception] | tuple[type[Exception], ...] = ValueError,
    before: str = "",
) -> Iterator[None]:
    """Turn `errors` into a `BenchError` of a kind, with the same message after `before`."""
    try:
        yield
    except errors as error:
        raise kind(f"{before}{error}") from error


@contextmanager
def room_for(subject: str, advice: str = _LOWER) -> Iterator[None]:
    """Turn a lack of memory into a `BenchError`: `subject` did not fit, with `advice`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or _NO_ROOM.search(str(error))):
            raise
        tried = _TRIED.search(str(error))
        size = f" (tried to allocate {tried[1]})" if tried else ""
        raise BenchError(f"out of memory: {subject} did not fit{size}; {advice}") from error
