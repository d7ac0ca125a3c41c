"""Progress of training on the terminal, as a rich bar or plain lines, and in a JSONL log."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from bench.progress import decided, time_left
from training.loop import TrainingProgress
from training.workers import peak_memory

_PLAIN_EVERY_S = 15.0
LOG_EVERY = 50


class Reporter:
    """Shows progress in one style and logs every `LOG_EVERY` steps and every evaluation.

    The style ``none`` shows nothing and logs all the same; without a log nothing is written at all,
    as with all workers but the first. An unknown style raises `ValueError`.
    """

    def __init__(self, style: str, name: str, log: Path | None, unit: str = "tokens") -> None:
        self.style = decided(style)
        self.name, self.log, self.unit = name, log, unit
        self._recent: list[float] = []
        self._bar: Any = None
        self._shown = 0.0
        self._num_steps = 0
        self._first: tuple[int, float] = (0, 0.0)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, num_steps: int, progress: TrainingProgress) -> None:
        """Open the bar at the step the run stands at."""
        self._num_steps = num_steps
        self._first = (progress.step, time.monotonic())
        if self.style != "rich":
            return
        from rich.console import Console
        from rich.progress import BarColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            "training {task.description}",
            BarColumn(),
            "{task.completed}/{task.total} steps · loss {task.fields[loss]}",
            TimeElapsedColumn(),
            "· left",
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._bar.start()
        self._bar.add_task(self.name, total=num_steps, completed=progress.step, loss="-")

    def step(self, loss: float, progress: TrainingProgress) -> None:
        """Report one step's mean loss (nats per answer token)."""
        if not math.isnan(loss):
            self._recent = [*self._recent[-99:], loss]
        mean = sum(self._recent) / max(1, len(self._recent))
        if progress.step % LOG_EVERY == 0:
            self._write({"loss": round(mean, 5)}, progress)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=progress.step, loss=f"{mean:.3f}")
        elif self.style != "none" and time.monotonic() - self._shown > _PLAIN_EVERY_S:
            self._shown = time.monotonic()
            first, began_s = self._first
            to_do = self._num_steps - progress.step
            left = time_left(self._shown - began_s, progress.step - first, to_do)
            self._say(
                f"{self.name} step {progress.step}/{self._num_steps} loss {mean:.3f} "
                f"{progress.tokens / progress.seconds:.0f} {self.unit}/s, {left}"
            )

    def evaluation(self, progress: TrainingProgress, line: str, record: dict[str, Any]) -> None:
        """Report an evaluation: one line to read, the record to the log."""
        self._write(record, progress, peak_bytes=peak_memory())
        self._say(f"{self.name} step {progress.step} {line}")

    def look(self, progress: TrainingProgress, answers: dict[str, list[tuple[str, str]]]) -> None:
        """Keep a few answers to read, in a file beside the log."""
        if self.log is not None:
            _append(
                self.log.with_suffix(".answers.jsonl"), {"answers": answers, "step": progress.step}
            )

    def _write(self, record: dict[str, Any], progress: TrainingProgress, **more: Any) -> None:
        if self.log is not None:
            reached = {"step": progress.step, "tokens": progress.tokens}
            _append(self.log, {**record, **reached, "seconds": round(progress.seconds, 1), **more})

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line)
        elif self.style != "none":
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
