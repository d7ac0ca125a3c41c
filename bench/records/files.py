"""Files that survive kills and full disks: atomic small files, and append-only ``samples.jsonl``.

A small file is replaced as a whole. ``samples.jsonl`` gets one whole line per record. A failed
write is undone. Readers ignore a damaged end (a partial line after a kill or a crash of the
machine), and the next writer cuts it off. A folder has one writer at a time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self

from bench.errors import BenchError, InvalidRunError, UnavailableError, UsageError
from bench.records.failures import ERRORS, described
from bench.records.record import SampleRecord

try:
    import fcntl
except ImportError:  # this system has no such locks
    fcntl = None  # type: ignore[assignment]

SAMPLES, SAMPLES_TABLE = "samples.jsonl", "samples.parquet"
_SYNC_EVERY_S = 1.0
_SCRATCH = re.compile(r"\..+\.\d+")


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
            parsed = _object(chunk) if chunk.endswith(b"\n") else None
            if parsed is None:
                damaged = damaged or number
            elif damaged:
                line = f"{path} line {damaged} is damaged, and intact lines follow it"
                advice = "delete it and all lines below; `bench resume` measures them again"
                raise InvalidRunError(f"{line}: {advice}")
            else:
                yield parsed, len(chunk)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a run folder against other writers, with the operating system's lock on the folder.

    The lock ends with the process, even after a crash, and leaves no file behind. On a file system
    without locks, nothing is locked.

    Raises:
        UnavailableError: another process holds the lock.
        UsageError: the folder does not exist.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"{folder} is not a run folder: {error.strerror}") from error
    try:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                line = f"another process is writing to {folder}; wait until it ends, or stop it"
                raise UnavailableError(line) from error
            except OSError:  # a file system without locks
                pass
        yield
    finally:
        os.close(descriptor)


def remove_scratch(folder: Path) -> None:
    """Remove temporary files of replacements that a kill interrupted."""
    for file in folder.rglob(".*"):
        if _SCRATCH.fullmatch(file.name) and file.is_file():
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(folder, error) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Replace a file atomically while writing in pieces (`BenchError` if writing fails)."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.unlink(missing_ok=True)
        with scratch.open("xb") as file:  # never through a link of that name
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # fails as well on a read-only file system
            scratch.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a small file atomically (raises as `replacing`)."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace a small file with UTF-8 text (raises as `replacing`)."""
    write_bytes(path, text.encode())


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Replace files by their paths in `folder`, creating folders, and return the full paths.

    Raises:
        BenchError: a folder on the way is a link, or writing fails.
    """
    for name, data in files.items():
        path = folder / name
        refuse_links(folder, path.parent)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        write_bytes(path, data)
    return [folder / name for name in files]


def write_json(path: Path, data: Mapping[str, Any], indent: int = 1) -> None:
    """Replace a small file with indented JSON (raises as `replacing`)."""
    write_text(path, json.dumps(data, ensure_ascii=False, indent=indent) + "\n")


def append_text(path: Path, text: str) -> None:
    """Append text, escaping what UTF-8 cannot encode (raises as `open_in_place`)."""
    descriptor = open_in_place(path, os.O_WRONLY | os.O_APPEND)
    try:
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise cannot_write(path, error) from error


class Sink:
    """Receives measurements: one line per record or event, and tracebacks of failed answers."""

    def record(self, record: SampleRecord, outcome: object = None) -> None:
        """Take one record, and the traceback if its `outcome` is an error."""
        self._append(record.to_json())
        if isinstance(outcome, Exception):
            self.trace(*described(record, outcome))

    def event(self, event: str, **fields: object) -> None:
        """Take one event."""
        self._append(json.dumps({"event": event, **fields}, separators=(",", ":")))

    def trace(self, name: str, trace: str) -> None:
        """Take the traceback of the answer called `name`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Mark the end of a block."""

    def _append(self, line: str) -> None:
        raise NotImplementedError


class LineCollector(Sink):
    """Collects lines and tracebacks for a `SampleWriter`, labelled with `worker` and `node`."""

    def __init__(self, worker: str | None = None, node: str | None = None) -> None:
        """Start empty."""
        self._worker, self._node = worker, node
        self._event = {} if worker is None else {"worker": worker}
        self.lines: list[str] = []
        self._traces: list[tuple[str, str]] = []

    def record(self, record: SampleRecord, outcome: object = None) -> None:
        """Keep one record, and the traceback if its `outcome` is an error."""
        super().record(replace(record, worker=self._worker, node=self._node), outcome)

    def event(self, event: str, **fields: object) -> None:
        """Keep one event."""
        super().event(event, **fields, **self._event)

    def trace(self, name: str, trace: str) -> None:
        """Keep one traceback."""
        self._traces.append((name, trace))

    def _append(self, line: str) -> None:
        self.lines.append(line)

    def take(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Return the lines and the named tracebacks collected so far, and forget them."""
        kept = tuple(self.lines), tuple(self._traces)
        self.lines.clear()
        self._traces.clear()
        return kept


class SampleWriter(Sink):
    """Appends lines to samples.jsonl, undoing failed writes, and tracebacks to errors.log."""

    def __init__(self, run_dir: Path, name: str = SAMPLES) -> None:
        """Open the file `name` and cut off a damaged end (raises as `open_in_place`)."""
        self.path = run_dir / name
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
        """Append a traceback, or a reference to the first that is equal."""
        first = self._traces.setdefault(trace, name)
        text = trace if first == name else f"as in {first}\n"
        append_text(self.path.with_name(ERRORS), f"{name}\n{text}\n")

    def lines(self, lines: Sequence[str]) -> None:
        """Append the lines of a `LineCollector` in one write: all or none."""
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


def refuse_links(folder: Path, path: Path) -> None:
    """Refuse to write to `path` if it, or a folder between `folder` and it, is a link.

    A folder may come from a stranger, and its links lead anywhere. `folder` itself is the user's
    choice, and so are the folders above it.

    Raises:
        BenchError: there is such a link.
    """
    below = path.relative_to(folder)
    for link in (folder / part for part in (*reversed(below.parents), below)):
        if link != folder and link.is_symlink():
            raise _is_link(link)


def open_in_place(path: Path, flags: int) -> int:
    """Open or create a file to change in place, and return its descriptor.

    Raises:
        BenchError: the path is a link, a hard link or no ordinary file, or cannot be opened.
    """
    flags |= os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise _is_link(path) if path.is_symlink() else cannot_write(path, error) from error
    state = os.fstat(descriptor)
    if state.st_nlink > 1 or not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise _is_link(path)
    return descriptor


def _is_link(path: Path) -> BenchError:
    line = f"{path} is a link or no ordinary file, and is not followed"
    return BenchError(f"{line}; put a copy of what it points to in its place, or remove it")


def cannot_write(path: Path, error: OSError | ValueError) -> BenchError:
    """Return the error of a failed write (full disk, read-only folder, file in the way)."""
    reason = getattr(error, "strerror", None) or str(error)
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space" if full else "choose a writable folder"
    return BenchError(f"cannot write {path}: {reason}; {advice}")
