"""Show the progress of a command on stderr: a live bar, plain lines, or nothing.

No thread runs here: the runner has the display redrawn between measurements. In CI, or if stderr
is not a terminal, plain lines replace the bar.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager
from typing import Literal, get_args

from bench.text import printable

_LINES_PER_PHASE = 10
ProgressStyle = Literal["auto", "rich", "plain", "none"]
"""Displays of ``--progress``."""


class Progress(AbstractContextManager["Progress"]):
    """Show a runner's progress. This base class shows only notes."""

    def start(self, phase: str, total: int, done: int = 0, *, even: bool = True) -> None:
        """Begin a phase.

        Args:
            phase: its name, as shown.
            total: number of its answers, or of other things that `step` counts.
            done: how many of them exist already.
            even: whether the steps take like times; else no time left is shown.
        """

    def step(self, detail: str = "", num: int = 1) -> None:
        """Count `num` more answers and show `detail`."""

    def note(self, line: str) -> None:
        """Write one line for the user to stderr."""
        sys.stderr.write(printable(line) + "\n")

    def close(self) -> None:
        """Restore the terminal."""

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Plain(Progress):
    """Write about ten lines per phase, each with the count, the time left and `detail`."""

    def start(self, phase: str, total: int, done: int = 0, *, even: bool = True) -> None:
        """Remember the start of the phase."""
        self._phase, self._total, self._done, self._before = phase, total, done, done
        self._even = even
        self._start_s = time.monotonic()
        self._every = max(1, total // _LINES_PER_PHASE)
        self._next = done + self._every

    def step(self, detail: str = "", num: int = 1) -> None:
        """Write a line after each tenth of the phase."""
        self._done += num
        if self._done < min(self._next, self._total):
            return
        self._next += self._every
        passed_s = time.monotonic() - self._start_s
        pace_s = passed_s / (self._done - self._before)
        left = f"{duration(pace_s * (self._total - self._done))} left"
        left = left if self._even else f"after {duration(passed_s)}"
        self.note(f"{self._phase} {self._done}/{self._total}  {left}  {detail}".rstrip())


class Live(Progress):
    """Draw a bar per phase with the time left, which `start` and `step` redraw without a thread."""

    def __init__(self) -> None:
        """Take over the bottom of the terminal."""
        from rich import progress
        from rich.console import Console
        from rich.table import Column
        from rich.text import Text

        class _Left(progress.TimeRemainingColumn):
            def render(self, task: progress.Task) -> Text:
                shown = task.fields.get("even", True)
                return Text("left ").append_text(super().render(task)) if shown else Text()

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            _Left(table_column=Column(no_wrap=True)),
            progress.TextColumn("{task.fields[detail]}", markup=False),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._task: progress.TaskID | None = None
        self._bar.start()

    def start(self, phase: str, total: int, done: int = 0, *, even: bool = True) -> None:
        """Add a bar for the phase."""
        self._task = self._bar.add_task(phase, total=total, completed=done, detail="", even=even)
        self._bar.refresh()

    def step(self, detail: str = "", num: int = 1) -> None:
        """Move the bar and redraw."""
        if self._task is not None:
            self._bar.update(self._task, advance=num, detail=detail)
            self._bar.refresh()

    def note(self, line: str) -> None:
        """Print a line above the bars."""
        self._bar.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Release the terminal."""
        self._bar.stop()


def choose(style: str) -> Progress:
    """Return the display of ``--progress``, for ``auto`` a bar or plain lines (`ValueError`)."""
    if style not in (styles := get_args(ProgressStyle)):
        raise ValueError(f"unknown progress {style!r}; use one of {', '.join(styles)}")
    if style == "auto":
        style = "rich" if sys.stderr.isatty() and not os.environ.get("CI") else "plain"
    return {"rich": Live, "plain": Plain, "none": Progress}[style]()


def duration(seconds: float) -> str:
    """Format a duration: ``42 s``, ``3 min 10 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
