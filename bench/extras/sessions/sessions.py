"""Measure a job in N new processes, one after another (`bench run --sessions N`).

FOLDER holds the job, ``config.toml``, and the runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.errors import Exit, UsageError
from bench.extras.sessions.pool import MIN_SESSIONS
from bench.extras.workers.worker import python_path
from bench.plan.checks import check_first
from bench.plan.code import code_paths
from bench.plan.template import today
from bench.progress import Progress
from bench.records.plan import read_status
from bench.records.run_folder import CONFIG, create_run_dir
from bench.settings.bounds import Minutes, Repeats, check
from bench.settings.config import RunConfig
from bench.stats.folders import run_folders


def check_sessions(num: int, every: float) -> None:
    """Refuse a job that sessions cannot measure (`UsageError`)."""
    if num < MIN_SESSIONS:
        arguments = f"--sessions {num}" + f" --every {every:g}" * (every != 0)
        advice = f"use {MIN_SESSIONS} or more sessions, or neither --sessions nor --every"
        raise UsageError(f"{arguments} is not allowed; {advice}")
    check(num, Repeats, "--sessions")
    check(every, Minutes, "--every")


def make_folder(config: RunConfig, parent: Path) -> Path:
    """Check a job and make the folder for its sessions, which all have one date."""
    config = config.with_values(date=config.date or today())
    check_first(config, lambda _: None)  # report a mistake before making the folder
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{config.run_name or 'sessions'}-{config.hash}"
    return create_run_dir(parent, stem, {CONFIG: config.to_toml().encode()})


def measure_sessions(
    config: RunConfig, num: int, every: float, folder: Path, progress: Progress, style: str
) -> Exit:
    """Measure sessions, each in a new process, and return the worst exit code.

    Ctrl-C, or a session without a result, ends the series; all measurements are kept.

    Args:
        config: the job, which names the decoders' code that sessions may run.
        num: number of sessions.
        every: minimum number of minutes from the start of a session to the next one's.
        folder: the folder of `make_folder`, which holds the job; the runs are made in it.
        progress: shows notes between the sessions.
        style: style of the progress of each session: auto, rich, plain or none.
    """
    worst = Exit.DONE
    job = ["--config", folder / CONFIG, "--output", folder, "--progress", style]
    for path in code_paths([config]):
        job += ["--allow", path]
    for number in range(1, num + 1):
        progress.note(f"session {number} of {num} in {folder}")
        start_s = time.monotonic()
        try:
            ended = _process("run", "--session", number, *job)
            worst = max(worst, ended)
            if ended == Exit.INTERRUPTED or num_ended(folder) < number:
                break
            left_s = 60 * every - (time.monotonic() - start_s)
            if number < num and left_s > 0:
                due = datetime.now(UTC) + timedelta(seconds=left_s)
                progress.note(f"the next session begins at {due:%Y-%m-%d %H:%M} UTC")
                time.sleep(left_s)
        except KeyboardInterrupt:
            worst = Exit.INTERRUPTED
            break
    return worst


def num_ended(folder: Path) -> int:
    """Count the sessions that ended, with a result."""
    return sum(read_status(path).complete for path in run_folders(folder))


def _process(*arguments: object) -> Exit:
    """Run a `bench` command in a new process, and wait for its end even if Ctrl-C reaches both."""
    command = [sys.executable, "-P", "-m", "bench", *map(str, arguments)]  # not the cwd's `bench`
    child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": python_path()})
    stopped = False
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            stopped = True
            continue
        return Exit.INTERRUPTED if stopped else Exit(code) if code in {*Exit} else Exit.FAILED
