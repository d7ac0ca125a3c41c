"""Lines of samples.jsonl, as tests look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.records.samples import intact_lines


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The parsed lines of a JSONL file, and the byte length of its whole lines."""
    lines = list(intact_lines(path))
    return [line for line, _ in lines], sum(length for _, length in lines)
