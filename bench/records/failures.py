"""An answer that failed: its error as one line, the place in its decoder's file, its traceback.

The line and the place stand in the record; ``errors.log`` in the run folder holds the tracebacks.
No torch here.
"""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from typing import Protocol

from bench.records.files import cannot_write
from bench.records.record import SampleRecord
from bench.text import printable
from decoders.core.decoder import Decoder

ERRORS = "errors.log"


def error_line(error: Exception) -> str:
    """An exception as one line: its type and message, half characters (surrogates) as escapes."""
    message = " ".join(str(error).split()).encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def place_of(error: Exception, decoder: Decoder) -> str | None:
    """``FILE.py:LINE``, the innermost place of a traceback in the file of the decoder's class.

    Files of the classes it inherits from count as well. None where the error arose outside of them.
    """
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
    """Who keeps the tracebacks of failed answers."""

    def add(self, record: SampleRecord, error: Exception) -> None:
        """Keep one."""


class TraceCollector:
    """Keeps them as texts, for an `ErrorLog` elsewhere."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: list[tuple[str, str]] = []

    def add(self, record: SampleRecord, error: Exception) -> None:
        """Keep one."""
        self._kept.append(_told(record, error))

    def take(self) -> tuple[tuple[str, str], ...]:
        """All that was kept since the last time: what failed, and its traceback."""
        kept, self._kept = self._kept, []
        return tuple(kept)


class ErrorLog:
    """Appends the traceback behind every failed answer; one that was seen before is named only."""

    def __init__(self, run_dir: Path) -> None:
        """The file is made with the first error."""
        self._path = run_dir / ERRORS
        self._seen: dict[str, str] = {}

    def add(self, record: SampleRecord, error: Exception) -> None:
        """Append one.

        Raises:
            BenchError: exit 1, where that cannot be written.
        """
        self.keep(*_told(record, error))

    def keep(self, name: str, trace: str) -> None:
        """Append one that a `TraceCollector` kept (raises as `add`)."""
        first = self._seen.setdefault(trace, name)
        text = trace if first == name else f"as in {first}\n"
        try:
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{name}\n{text}\n")
        except OSError as failed:
            raise cannot_write(self._path, failed) from failed


def _told(record: SampleRecord, error: Exception) -> tuple[str, str]:
    """What failed, in a line, and its traceback; both are harmless text."""
    pass_ = "quality" if record.kind == "quality" else f"repeat {record.repeat}"
    name = printable(f"{record.decoder}, {record.prompt}, {pass_}, attempt {record.attempt}")
    return name, printable("".join(traceback.format_exception(error)))
