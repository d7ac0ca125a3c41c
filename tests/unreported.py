"""`bench.runs` without the report at its end, which has tests of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import bench.runs


def _none(_run_dir: Path) -> None:
    """Writes nothing."""


def run(*given: Any, reporter: Callable[[Path], None] = _none, **values: Any) -> Any:
    """Measure, and have `reporter` called with the folder in place of the report."""
    with mock.patch("bench.runs.report_of", reporter):
        return bench.runs.run(*given, **values)


def resume(*given: Any, reporter: Callable[[Path], None] = _none, **values: Any) -> Any:
    """Complete a run likewise."""
    with mock.patch("bench.runs.report_of", reporter):
        return bench.runs.resume(*given, **values)
