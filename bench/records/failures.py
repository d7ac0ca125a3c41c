"""A failed answer: its error as one line, the line of its decoder's file, and its traceback.

The first two stand in the record; ``errors.log`` in the run folder holds the tracebacks.
"""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from typing import Protocol

from bench.records.files import append_text
from bench.records.record import SampleRecord
from bench.text import printable
from decoders.core.decoder import Decoder

ERRORS = "errors.log"


def error_line(error: Exception) -> str:
    """Return an exception as one line: its type and message, surrogates as escapes."""
    message = " ".join(str(error).split()).encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def position_of(error: Exception, decoder: Decoder) -> str | None:
    """Return ``FILE.py:LINE``, the innermost frame in a file of the decoder's classes, or None."""
    own = {
        function.__code__.co_filename
        for kind in type(decoder).__mro__
        if kind is not Decoder and issubclass(kind, Decoder)
        for function in vars(kind).values()
        if inspect.isfunction(function)
    }
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename in own:
            return f"{Path(frame.f_code.co_filename).name}:{line}"
    return None


class Tracebacks(Protocol):
    """Keeper of the tracebacks of failed answers."""

    def add(self, record: SampleRecord, error: Exception) -> None:
        """Keep one."""


class TraceCollector:
    """Keeps tracebacks as texts, for an `ErrorLog` elsewhere."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: list[tuple[str, str]] = []

    def add(self, record: SampleRecord, error: Exception) -> None:
        """Keep one."""
        self._kept.append(_described(record, error))

    def take(self) -> tuple[tuple[str, str], ...]:
        """Return and forget the names and tracebacks kept so far."""
        kept, self._kept = self._kept, []
        return tuple(kept)


class ErrorLog:
    """Appends the traceback behind every failed answer; a repeated one is named only."""

    def __init__(self, run_dir: Path) -> None:
        """Leave making the file to the first error."""
        self._path = run_dir / ERRORS
        self._seen: dict[str, str] = {}

    def add(self, record: SampleRecord, error: Exception) -> None:
        """Append one (`BenchError` where it cannot be written)."""
        self.keep(*_described(record, error))

    def keep(self, name: str, trace: str) -> None:
        """Append one that a `TraceCollector` kept (raises as `add`)."""
        first = self._seen.setdefault(trace, name)
        text = trace if first == name else f"as in {first}\n"
        append_text(self._path, f"{name}\n{text}\n")


def _described(record: SampleRecord, error: Exception) -> tuple[str, str]:
    pass_ = "quality" if record.kind == "quality" else f"repeat {record.repeat}"
    name = printable(f"{record.decoder}, {record.prompt}, {pass_}, attempt {record.attempt}")
    return name, printable("".join(traceback.format_exception(error)))
