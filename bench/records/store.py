"""Answers outside of memory: a reader of millions of steps holds who was asked what.

An `AnswerStore` takes a record's answer as bytes (`packed`) and gives it back on demand. The latest
bytes are in memory, those before them in a temporary file without a name, which ends with the
store.
"""

from __future__ import annotations

import itertools
import struct
import tempfile
import weakref
from array import array
from collections.abc import Sequence
from typing import IO, Any

from bench.errors import BenchError

_MOST_HELD = 16_000_000
_WIDTHS = "BHiq"
"""Codes of integer columns, as `array` has them: 1, 2, 4 and 8 bytes a number."""
_REAL, _TEXT = "d", "s"
Column = str | Sequence[int] | Sequence[float]


def packed(columns: Sequence[Column], reals: Sequence[bool]) -> bytes:
    """Return columns as bytes: number, ends, codes, data (`OverflowError`: above 8-byte ints)."""
    codes, parts = "", []
    for column, real in zip(columns, reals, strict=True):
        if isinstance(column, str):
            codes += _TEXT
            parts.append(column.encode(errors="surrogatepass"))
        else:
            numbers = array(_REAL, column) if real else _narrow(column)
            codes += numbers.typecode
            parts.append(numbers.tobytes())
    ends = itertools.accumulate(map(len, parts), initial=5 * len(parts) + 5)
    head = struct.pack(f"<B{len(parts) + 1}I", len(parts), *ends)
    return b"".join([head, codes.encode(), *parts])


class Packed:
    """Columns of `packed`, each read on demand as a string or a tuple of numbers."""

    __slots__ = ("_codes", "_data", "_ends")

    def __init__(self, data: bytes) -> None:
        """Read where each begins."""
        num = data[0]
        self._data = data
        self._ends = struct.unpack_from(f"<{num + 1}I", data, 1)
        self._codes = data[4 * num + 5 : 5 * num + 5].decode()

    def __getitem__(self, number: int) -> Any:
        start, end = self._ends[number : number + 2]
        code, part = self._codes[number], self._data[start:end]
        if code == _TEXT:
            return part.decode(errors="surrogatepass")
        return tuple(part) if code == "B" else tuple(array(code, part))


def _narrow(column: Sequence[Any]) -> array[int]:
    for code in _WIDTHS[:-1]:
        try:
            return array(code, column)
        except OverflowError:
            continue
    return array(_WIDTHS[-1], column)


class AnswerStore:
    """Bytes by position, in memory up to a bound and in a temporary file beyond it."""

    def __init__(self, most_held: int = _MOST_HELD) -> None:
        """Begin with none."""
        self._most_held = most_held
        self._held = bytearray()
        self._written = 0
        self._file: IO[bytes] | None = None

    def add(self, data: bytes) -> tuple[int, int]:
        """Keep bytes and return their start and length (`BenchError` without room on disk)."""
        position = self._written + len(self._held), len(data)
        self._held += data
        if len(self._held) > self._most_held:
            self._write()
        return position

    def read(self, position: tuple[int, int]) -> bytes:
        """Return the bytes of a start and length (`BenchError` where that fails)."""
        start, length = position
        if start >= self._written:
            start -= self._written
            return bytes(self._held[start : start + length])
        assert self._file is not None
        try:
            self._file.seek(start)
            return self._file.read(length)
        except OSError as error:
            raise _unusable(error) from error

    def _write(self) -> None:
        data = bytes(self._held)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  see next line
                weakref.finalize(self, self._file.close)
            self._file.seek(self._written)
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise _unusable(error) from error
        self._written += len(self._held)
        self._held.clear()


def _unusable(error: OSError) -> BenchError:
    where = f"a large run is read by way of a temporary file in {tempfile.gettempdir()}"
    advice = "set TMPDIR to a folder with as much room as samples.jsonl takes"
    return BenchError(f"{where}: {error.strerror or error}; {advice}")
