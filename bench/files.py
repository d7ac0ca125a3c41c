"""Files that survive kills and full disks: atomic small files, and append-only ``samples.jsonl``.

A small file is replaced as a whole. ``samples.jsonl`` takes one whole line per record: a write that
fails is undone, and a line torn by a kill is ignored by readers and cut off by the next writer.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from bench.errors import BenchError, Exit
from bench.records import SampleRecord

SAMPLES = "samples.jsonl"
SYNC_EVERY_S = 1.0


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Parsed lines of a JSONL file and the byte length of its whole lines.

    A last line without its newline, or one that does not parse, was torn by a kill: it is left out.
    Errors: `BenchError` (exit 4) on a damaged line further up.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    lines: list[dict[str, Any]] = []
    whole = 0
    chunks = raw.split(b"\n")
    for number, chunk in enumerate(chunks[:-1], start=1):
        try:
            parsed = json.loads(chunk)
        except ValueError as error:
            if number == len(chunks) - 1:
                break
            raise BenchError(f"{path} line {number} is damaged: {error}", Exit.INVALID) from error
        lines.append(parsed)
        whole += len(chunk) + 1
    return lines, whole


def write_text(path: Path, text: str) -> None:
    """Replace a small file atomically: readers see the old content or the new, never half.

    Errors: `BenchError` (exit 1) on a full disk or a folder that cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """`write_text` of indented JSON with a final newline."""
    write_text(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


class SampleWriter:
    """Appends whole lines to samples.jsonl; one that cannot be written leaves no trace."""

    def __init__(self, run_dir: Path, write: Callable[[int, bytes], int] = os.write) -> None:
        """Open the file, cutting off a torn last line (`write` is injected by tests)."""
        self.path = run_dir / SAMPLES
        self._write = write
        _, whole = read_lines(self.path)
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._fd, whole)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._size = whole
        self._synced_s = 0.0

    def record(self, record: SampleRecord) -> None:
        """Append one record (errors: `BenchError`, exit 1; earlier lines are untouched)."""
        self._append(record.to_json())

    def event(self, event: str, **fields: object) -> None:
        """Append one event line."""
        self._append(json.dumps({"event": event, **fields}, separators=(",", ":")))

    def sync(self) -> None:
        """Make the lines so far survive a power cut; at most once in `SYNC_EVERY_S` seconds.

        Called between blocks: it may take milliseconds. A killed process loses nothing either way.
        """
        now_s = time.monotonic()
        if now_s - self._synced_s >= SYNC_EVERY_S:
            os.fsync(self._fd)
            self._synced_s = now_s

    def close(self) -> None:
        """Close the file; nothing is buffered here."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _append(self, line: str) -> None:
        data = line.encode() + b"\n"
        try:
            os.lseek(self._fd, self._size, os.SEEK_SET)
            written = self._write(self._fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise cannot_write(self.path, error) from error
        self._size += len(data)


def cannot_write(path: Path, error: OSError) -> BenchError:
    """The one line for a write that failed (full disk, read-only folder, a file in the way)."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space" if full else "choose another --output"
    return BenchError(f"cannot write {path}: {reason}; {advice}")
