"""Look through a folder of runs: find run folders and their verdicts."""

from __future__ import annotations

import os
from pathlib import Path

from bench.errors import BenchError
from bench.records.frames import num_samples
from bench.records.plan import WRONG, Plan, RunStatus, checked_status
from bench.records.run_folder import load_records, planned
from bench.records.samples import SAMPLES, SAMPLES_TABLE, intact_lines
from bench.stats.validity import DAMAGED, INCOMPLETE, VALID


def run_verdict(folder: Path, status: RunStatus | None, plan: Plan | None, num_records: int) -> str:
    """Return a run's verdict from its status, plan and `count_records`.

    Args:
        folder: the run's folder.
        status: its status, or None if it cannot be read.
        plan: its plan, or None if there is none or it cannot be read.
        num_records: number of its records.
    """
    unplanned = plan is None and planned(folder)
    if status is None or unplanned or num_records < (status.num_records or 0):
        return DAMAGED
    if status.verdict not in (None, VALID):
        return str(status.verdict)
    if checked_status(status, plan or Plan()).wrong:
        return WRONG
    return VALID if status.complete else INCOMPLETE


def run_folders(parent: Path) -> list[Path]:
    """Return the run folders under `parent`, sorted by name (i.e. by time), without links."""
    return sorted(
        path
        for path in parent.glob("[!.]*")  # a hidden run was killed while its folder was made
        if not path.is_symlink()
        and os.access(path, os.R_OK | os.X_OK)
        and any((path / mark).is_file() for mark in ("manifest.json", "run.json"))
    )


def count_records(folder: Path) -> int:
    """Count the records of a run folder, without events and a damaged end (0: none can be read).

    A resumed run may hold superseded records, so its records are read.
    """
    num, file = 0, folder / SAMPLES
    if not file.is_file():
        return num_samples(folder / SAMPLES_TABLE)
    try:
        for line, _ in intact_lines(file):
            if line.get("event") == "supersede":
                return len(load_records(folder))
            num += "event" not in line
    except (BenchError, OSError):
        return 0
    return num
