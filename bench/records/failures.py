"""A failed answer: its error as one line, the line of its decoder's file, and its traceback.

The first two stand in the record; ``errors.log`` in the run folder holds the tracebacks.
"""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path

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


def described(record: SampleRecord, error: Exception) -> tuple[str, str]:
    """Return the name of a failed answer, and its traceback, as printable text."""
    pass_ = "quality" if record.kind == "quality" else f"repeat {record.repeat}"
    name = printable(f"{record.decoder}, {record.prompt}, {pass_}, attempt {record.attempt}")
    return name, printable("".join(traceback.format_exception(error)))
