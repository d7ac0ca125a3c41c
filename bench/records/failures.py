"""A failed answer: its error in one line, the position in its decoder's file, and its traceback.

The record holds the error and the position; ``errors.log`` in the run folder holds tracebacks.
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
    """Format an exception as one line: type and message, with surrogates escaped."""
    message = " ".join(str(error).split()).encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def error_position(error: Exception, decoder: Decoder) -> str | None:
    """Return ``FILE.py:LINE`` of the innermost frame in the decoder's own files, or None."""
    files = {
        function.__code__.co_filename
        for kind in type(decoder).__mro__
        if kind is not Decoder and issubclass(kind, Decoder)
        for function in vars(kind).values()
        if inspect.isfunction(function)
    }
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename in files:
            return f"{Path(frame.f_code.co_filename).name}:{line}"
    return None


def described(record: SampleRecord, error: Exception) -> tuple[str, str]:
    """Return a failed answer's name and traceback as printable text."""
    pass_ = "quality" if record.kind == "quality" else f"repeat {record.repeat}"
    name = printable(f"{record.decoder}, {record.prompt}, {pass_}, attempt {record.attempt}")
    return name, printable("".join(traceback.format_exception(error)))
