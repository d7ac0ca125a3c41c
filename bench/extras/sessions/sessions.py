"""Measure a job in N new processes, one after another, and pool them (`bench run --sessions N`).

``FOLDER/config.toml`` is the job, ``FOLDER/sessions.toml`` the number of sessions and the minutes
between their starts. FOLDER also holds the runs and, once all have ended, pool.csv and pool.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tomli_w

from bench.errors import Exit, UsageError
from bench.extras.sessions.pool import MIN_SESSIONS
from bench.extras.workers.worker import python_path
from bench.plan.checks import check_first
from bench.plan.template import today
from bench.progress import Progress
from bench.records.files import only_writer, parse
from bench.records.plan import STATUS, RunStatus, read_status
from bench.records.run_folder import CONFIG, create_run_dir
from bench.settings.bounds import Minutes, Repeats, check
from bench.settings.config import RunConfig, read_toml

SESSIONS = "sessions.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Hold the plan of a folder: `num` sessions that begin at least `every` minutes apart."""

    folder: Path
    num: Repeats
    every: Minutes

    @property
    def runs(self) -> dict[Path, RunStatus]:
        """Runs that were started, in order, with their status."""
        paths = [path for path in sorted(self.folder.iterdir()) if (path / STATUS).is_file()]
        return {path: read_status(path) for path in paths if not path.is_symlink()}

    @property
    def missing(self) -> int:
        """The number of sessions that have not ended."""
        return self.num - sum(status.complete for status in self.runs.values())


def check_sessions(num: int, every: float) -> None:
    """Refuse a job that sessions cannot measure (`UsageError`)."""
    if num < MIN_SESSIONS:
        arguments = f"--sessions {num}" + f" --every {every:g}" * (every != 0)
        advice = f"use {MIN_SESSIONS} or more sessions, or neither --sessions nor --every"
        raise UsageError(f"{arguments} is not allowed; {advice}")
    check(num, Repeats, "--sessions")
    check(every, Minutes, "--every")


def plan_sessions(config: RunConfig, num: int, every: float, parent: Path) -> Sessions:
    """Make the folder for new sessions (raises as `check_sessions`)."""
    check_sessions(num, every)
    config = config.with_values(date=config.date or today())  # one date for all sessions
    check_first(config, lambda _: None)  # report a mistake before making the folder
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{config.run_name or 'sessions'}-{config.hash}"
    plan = tomli_w.dumps({"sessions": num, "every_minutes": every})
    folder = create_run_dir(parent, stem, {CONFIG: config.to_toml(), SESSIONS: plan})
    return Sessions(folder=folder, num=num, every=every)


def load_sessions(folder: Path) -> Sessions | None:
    """Return the plan of a folder, if it is a folder of sessions."""
    if not (folder / SESSIONS).is_file():
        return None
    table = read_toml(folder / SESSIONS)
    values = {"folder": folder, "num": table.get("sessions"), "every": table.get("every_minutes")}
    return parse(Sessions, values, folder / SESSIONS)


def measure_sessions(
    plan: Sessions, progress: Progress, style: str, code: Sequence[str] = ()
) -> Exit:
    """Measure the missing sessions, each in a new process, and return the worst exit code.

    `code` are the paths of decoders' code that may run. A session that stopped half-way is resumed
    first. Ctrl-C, or a session without a result, ends the series; all measurements are kept.
    """
    worst = Exit.DONE
    more = ("--progress", style, *(word for path in code for word in ("--allow", path)))
    with only_writer(plan.folder):
        while missing := plan.missing:
            progress.note(f"session {plan.num - missing + 1} of {plan.num} in {plan.folder}")
            half = [path for path, status in plan.runs.items() if not status.complete]
            try:
                if half:
                    ended = _process("resume", half[0], *more)
                else:
                    _wait(plan, progress)
                    job = ("--config", plan.folder / CONFIG, "--output", plan.folder)
                    ended = _process("run", *job, "--session", len(plan.runs) + 1, *more)
            except KeyboardInterrupt:
                ended = Exit.INTERRUPTED
            worst = max(worst, ended)
            if ended == Exit.INTERRUPTED or plan.missing == missing:
                progress.note(f"all measurements are kept. Continue: bench resume {plan.folder}")
                return worst or Exit.FAILED
    return worst


def _wait(plan: Sessions, progress: Progress) -> None:
    """Sleep until `every` minutes have passed since the last session began."""
    starts = [status.started_utc for status in plan.runs.values() if status.started_utc]
    if not starts:
        return
    due = datetime.fromisoformat(max(starts)) + timedelta(minutes=plan.every)
    left_s = (due - datetime.now(UTC)).total_seconds()
    left_s = min(left_s, 60 * plan.every)  # longer if the clock was set back
    if left_s > 0:
        progress.note(f"the next session begins at {due:%Y-%m-%d %H:%M} UTC")
        time.sleep(left_s)


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
