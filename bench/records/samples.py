"""Write and read measurements: ``samples.jsonl``, ``errors.log`` and ``phases.json``.

``samples.jsonl`` gets one whole line per record or event. A failed write is undone. Readers ignore
a damaged end (a partial line after a kill or a crash of the machine), and the next writer cuts it
off. The record of a failed answer holds its error in one line and the position in its decoder's
file; ``errors.log`` holds tracebacks. ``phases.json`` holds the time of a few answers by phase
(`bench.measure.phases`).
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from bench.errors import InvalidRunError
from bench.records.files import (
    SCHEMA,
    append_text,
    cannot_write,
    open_in_place,
    parse,
    read_json,
    write_json,
)
from bench.records.record import SampleRecord
from bench.settings.bounds import Num, Time
from bench.text import printable
from decoders.core.decoder import Decoder
from decoders.core.registry import innermost_place

SAMPLES, SAMPLES_TABLE = "samples.jsonl", "samples.parquet"
_SYNC_EVERY_S = 1.0
ERRORS = "errors.log"
PHASES_FILE = "phases.json"
PHASES = ("prefill", "draft", "verify", "sampling", "scheduler", "other")


def intact_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the objects of a JSONL file, if it exists, each with its length in bytes.

    A damaged end is skipped: a last line without a newline, and lines that do not parse, if no
    intact line follows.

    Raises:
        InvalidRunError: a damaged line is followed by an intact line.
    """
    if not path.is_file():
        return
    damaged = 0
    with path.open("rb") as file:
        for number, chunk in enumerate(file, start=1):
            parsed = None
            if chunk.endswith(b"\n"):
                with contextlib.suppress(ValueError, RecursionError):
                    parsed = json.loads(chunk)
            if not isinstance(parsed, dict):
                damaged = damaged or number
            elif damaged:
                line = f"{path} line {damaged} is damaged, and intact lines follow it"
                advice = "delete it and all lines below; `bench resume` measures them again"
                raise InvalidRunError(f"{line}: {advice}")
            else:
                yield parsed, len(chunk)


class Sink:
    """Receive measurements: one line per record or event, and tracebacks of failed answers."""

    def record(self, record: SampleRecord, outcome: object = None) -> None:
        """Write one record, and the traceback if its `outcome` is an error."""
        self._append(record.to_json())
        if isinstance(outcome, Exception):
            pass_ = "quality" if record.kind == "quality" else f"repeat {record.repeat}"
            name = f"{record.decoder}, {record.prompt}, {pass_}, attempt {record.attempt}"
            trace = "".join(traceback.format_exception(outcome))
            self.trace(printable(name), printable(trace))

    def event(self, event: str, **fields: object) -> None:
        """Write one event."""
        self._append(json.dumps({"event": event, **fields}, separators=(",", ":")))

    def trace(self, name: str, trace: str) -> None:
        """Write the traceback of the answer called `name`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Mark the end of a block."""

    def _append(self, line: str) -> None:
        raise NotImplementedError


class SampleWriter(Sink):
    """Append lines to samples.jsonl, undo failed writes, and append tracebacks to errors.log."""

    def __init__(self, run_dir: Path) -> None:
        """Open the file and cut off a damaged end (raises as `open_in_place`)."""
        self.path = run_dir / SAMPLES
        whole = sum(length for _, length in intact_lines(self.path))
        self._fd = open_in_place(self.path, os.O_RDWR)
        try:
            self.num_cut = os.fstat(self._fd).st_size - whole
            os.ftruncate(self._fd, whole)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._size = whole
        self._synced_s = 0.0
        self._traces: dict[str, str] = {}

    def trace(self, name: str, trace: str) -> None:
        """Append a traceback, or a reference to the first equal traceback."""
        first = self._traces.setdefault(trace, name)
        text = trace if first == name else f"as in {first}\n"
        append_text(self.path.with_name(ERRORS), f"{name}\n{text}\n")

    def lines(self, lines: Sequence[str]) -> None:
        """Append lines in one write: all or none."""
        if lines:
            self._append("\n".join(lines))

    def sync(self) -> None:
        """Flush lines to disk against a power cut, at most once per `_SYNC_EVERY_S` seconds."""
        now_s = time.monotonic()
        if now_s - self._synced_s >= _SYNC_EVERY_S:
            self._sync()
            self._synced_s = now_s

    def close(self) -> None:
        """Close the file after flushing: no status may be stored without its lines."""
        try:
            self._sync()
        finally:
            os.close(self._fd)

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _append(self, line: str) -> None:
        data = line.encode() + b"\n"
        try:
            os.lseek(self._fd, self._size, os.SEEK_SET)
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):  # if this fails, readers skip the end
                os.ftruncate(self._fd, self._size)
            raise cannot_write(self.path, error) from error
        self._size += len(data)


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
    return innermost_place(error, files)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasedAnswer:
    """Seconds by phase and counts of one answer (or one group of B) of the second pass.

    `later_*` exclude the first step, as in `bench.stats.counters.Tally`. `repeat` is the repeat of
    the preceding timed block, whose seed the answer shares. `rows` counts the rows of calls, and
    `padded_rows` the padding that gives merged calls one width.
    """

    decoder: str
    prompts: tuple[str, ...]
    seconds: Mapping[str, Time]
    emitted: Num
    later_emitted: Num
    later_steps: Num
    repeat: Num
    rows: Num
    padded_rows: Num

    @property
    def total_s(self) -> float:
        """Seconds of all phases together."""
        return sum(self.seconds.values())


def write_phases(run_dir: Path, answers: Iterable[PhasedAnswer]) -> None:
    """Replace phases.json (`BenchError` if writing fails)."""
    data = {"phases": PHASES, "answers": [asdict(answer) for answer in answers]}
    write_json(run_dir / PHASES_FILE, {"schema": SCHEMA, **data})


def read_phases(run_dir: Path) -> tuple[PhasedAnswer, ...]:
    """Read the answers of the second pass, if it ran (`InvalidRunError`)."""
    path = run_dir / PHASES_FILE
    if (data := read_json(path)) is None:
        return ()
    if "answers" not in data:
        raise InvalidRunError(f"{path} is damaged: its answers are missing")
    return parse(tuple[PhasedAnswer, ...], data["answers"], path)
