"""Measure a sweep: one ordinary run per point of a grid, and a report of all runs.

``FOLDER/sweep.toml`` is a copy of the user's file, and ``FOLDER/points/`` holds the runs. The same
command continues a stopped sweep: complete points stay as they are, an interrupted point is
resumed, and missing points are measured.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from bench import runs
from bench.errors import BenchError, Exit, UsageError
from bench.extras.sweeps.settings import Point, Sweep
from bench.plan.checks import check_first
from bench.plan.setup import Opener, open_setup
from bench.progress import Progress
from bench.records.files import only_writer, refuse_links, write_files
from bench.records.plan import read_status
from bench.records.run_folder import read_config
from bench.stats.folders import run_folders

SWEEP = "sweep.toml"
POINTS = "points"


def plan_lines(sweep: Sweep, folder: Path, *, brings_models: bool = False) -> list[str]:
    """Count a sweep's points and list the missing ones (raises as `check_first` for any)."""
    for point in sweep.points:  # a mistake in any point makes no folder
        check_first(point.config, lambda _: None, brings_models=brings_models)
    there = _existing(folder)
    missing = [point for point in sweep.points if not _complete(there.get(point.name))]
    line = f"sweep of {sweep.describe()}"
    if len(missing) < len(sweep.points):
        line += f"; {len(sweep.points) - len(missing)} complete already"
    return [line, *(f"point {point.number}: {point.label}" for point in missing)]


def run_sweep(
    sweep: Sweep,
    folder: Path,
    progress: Progress,
    opener: Opener = open_setup,
    allowed: Sequence[str] = (),
    *,
    report: runs.Report | None = runs.write_report,
) -> tuple[Exit, list[str]]:
    """Measure the missing points of a sweep, then report all points.

    Return the worst exit code of the points, and the figures that were left out. A failed point is
    reported, and the next point is measured. Ctrl-C ends the sweep.

    Args:
        sweep: the points, each of which becomes a run.
        folder: the sweep's folder, which may hold a stopped sweep.
        progress: shows each run's course, one after another.
        opener: opens the models of a point.
        allowed: paths of decoders' code that a stored point may run.
        report: writes the report of each run; None: none.

    Raises:
        UsageError: the folder holds another sweep.
        BenchError: the folder cannot be written to.
    """
    from bench.extras.sweeps.report import write_sweep  # and matplotlib: not to list points

    described = plan_lines(sweep, folder, brings_models=opener is not open_setup)[0]
    file = folder / SWEEP
    refuse_links(folder, folder / POINTS)
    if file.is_file():
        if tomllib.loads(file.read_text(encoding="utf-8")) != sweep.content:
            raise UsageError(f"{folder} holds another sweep; give another --folder")
    elif folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is no folder of a sweep and not empty; give another --folder")
    else:
        write_files(folder, {SWEEP: tomli_w.dumps(sweep.content).encode()})
    with only_writer(folder):
        progress.note(described)
        worst, failed = Exit.DONE, {}
        for point in sweep.points:
            code, reason = _measure(point, sweep, folder, progress, opener, allowed, report)
            worst = max(worst, code)
            if reason is not None:
                failed[point.name] = reason
            if code == Exit.INTERRUPTED:
                break
        left_out = write_sweep(folder, sweep, _existing(folder), failed)
        if worst == Exit.INTERRUPTED:
            progress.note("the sweep goes on where it was stopped by the same command")
        return worst, left_out


def _measure(
    point: Point,
    sweep: Sweep,
    folder: Path,
    progress: Progress,
    opener: Opener,
    allowed: Sequence[str],
    report: runs.Report | None,
) -> tuple[Exit, str | None]:
    """Complete one point, and return its exit code and, if it has no result, the reason."""
    at = _existing(folder).get(point.name)
    if at is not None and _complete(at):
        return runs.exit_code(read_status(at)), None
    progress.note(f"point {point.number} of {len(sweep.points)}: {point.label}")
    try:
        if at is None:
            ended = runs.run(point.config, folder / POINTS, progress, opener, report=report)
        else:
            ended = runs.resume(at, progress, opener, allowed=allowed, report=report)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED, None
    except BenchError as error:
        progress.note(f"point {point.number} has no result: {error.message}")
        return Exit(error.exit_code), error.message
    return Exit(ended.exit_code), None


def _existing(folder: Path) -> dict[str, Path]:
    return {str(read_config(run).get("run_name")): run for run in run_folders(folder / POINTS)}


def _complete(run_dir: Path | None) -> bool:
    if run_dir is None:
        return False
    status = read_status(run_dir)
    return status.complete and status.reported is not False
