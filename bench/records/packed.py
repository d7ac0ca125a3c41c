"""Columns of an answer as bytes.

So a reader of millions of steps holds a byte or two for each of their numbers.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Sequence
from typing import Any

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
