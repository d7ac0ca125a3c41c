"""Look through a folder of runs: find run folders and their verdicts without reading plans."""

from __future__ import annotations

from pathlib import Path

from bench.errors import BenchError
from bench.records.frames import num_samples
from bench.records.plan import WRONG, RunStatus
from bench.records.run_folder import load_records, lost_plan
from bench.records.samples import SAMPLES, SAMPLES_TABLE
from bench.stats.validity import DAMAGED, INCOMPLETE, VALID


def run_verdict(folder: Path, status: RunStatus | None) -> str:
    """Return a run's verdict from its status and number of records, without its plan.

    `status` is None if it cannot be read.
    """
    if status is None or lost_plan(folder) or count_records(folder) < (status.num_records or 0):
        return DAMAGED
    if status.verdict not in (None, VALID):
        return str(status.verdict)
    if status.wrong:
        return WRONG
    return VALID if status.complete else INCOMPLETE


def run_folders(parent: Path) -> list[Path]:
    """Return the run folders under `parent`, sorted by name (i.e. by time), without links."""
    if not parent.is_dir():
        return []
    marks = ("manifest.json", "run.json")
    return sorted(
        path
        for path in parent.iterdir()
        if path.is_dir()
        and not path.is_symlink()
        and any((path / mark).is_file() for mark in marks)
    )


def count_records(folder: Path) -> int:
    """Count the records of a run folder, without events and a truncated last line.

    A resumed run may hold superseded records, so its lines are read (0 if it cannot be read).
    """
    num = 0
    try:
        with (folder / SAMPLES).open("rb") as file:
            for line in file:
                if line.startswith(b'{"event":"supersede"'):
                    return len(load_records(folder))
                num += line.endswith(b"\n") and not line.startswith(b'{"event"')
    except OSError:
        return num_samples(folder / SAMPLES_TABLE)
    except BenchError:
        return 0
    return num
