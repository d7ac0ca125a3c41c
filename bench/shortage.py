"""Memory that does not suffice, as one line: what did not fit, and what to lower.

torch says it in several ways: an `OutOfMemoryError` on a GPU, a plain `RuntimeError` of the
allocator on a CPU. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bench.errors import BenchError

LOWER = "lower --batch-size or --max-new-tokens, or take a smaller --dtype (bfloat16) or model"
_SAID = re.compile(r"out of memory|(can't|cannot) allocate memory|not enough memory", re.IGNORECASE)
_TRIED = re.compile(r"tried to allocate (\d[\d.]* \w+)", re.IGNORECASE)


@contextmanager
def room_for(what: str, advice: str = LOWER) -> Iterator[None]:
    """Within it a lack of memory is a `BenchError` (exit 1): `what` did not fit, and `advice`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or _SAID.search(str(error))):
            raise
        tried = _TRIED.search(str(error))
        size = f" (tried to allocate {tried[1]})" if tried else ""
        raise BenchError(f"out of memory: {what} did not fit{size}; {advice}") from error
