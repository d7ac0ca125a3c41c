"""`bench.runs` without the report at its end, which has tests of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import bench.runs


def _none(_run_dir: Path) -> None:
    """Writes nothing."""


run = partial(bench.runs.run, reporter=_none)
resume = partial(bench.runs.resume, reporter=_none)
