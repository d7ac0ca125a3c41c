"""Show a training run's progress in one style and log it."""

from __future__ import annotations

import json
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.progress import choose

LOG_EVERY = 50


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """Hold the progress of a run, stored in checkpoints with weights and optimiser state.

    `counts` are the numbers of rows that an evaluation adapted; empty: the recipe's numbers hold.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


class Reporter(AbstractContextManager["Reporter"]):
    """Show progress in one style, and log every `LOG_EVERY` steps and every evaluation.

    The style ``none`` shows nothing but still logs. Only the first worker has a log; without one
    (`log` is None), nothing is written. An unknown style raises `ValueError`.
    """

    def __init__(self, style: str, name: str, log: Path | None, unit: str = "tokens") -> None:
        self.shown, self._notes = choose(style), style != "none"
        self.name, self.log, self.unit = name, log, unit
        self._recent: list[float] = []

    def __exit__(self, *exc_info: object) -> None:
        self.shown.close()

    def start(self, num_steps: int, progress: TrainingProgress) -> None:
        """Show the step that the run starts from."""
        self.shown.start(f"training {self.name}", num_steps, progress.step)

    def step(self, loss: float, progress: TrainingProgress) -> None:
        """Report one step's mean loss (nats per answer token)."""
        if not math.isnan(loss):
            self._recent = [*self._recent[-99:], loss]
        mean = sum(self._recent) / max(1, len(self._recent))
        if progress.step % LOG_EVERY == 0:
            self._write({"loss": round(mean, 5)}, progress)
        pace = progress.tokens / progress.seconds
        self.shown.step(f"loss {mean:.3f}, {pace:.0f} {self.unit}/s")

    def evaluation(self, progress: TrainingProgress, line: str, record: dict[str, Any]) -> None:
        """Report an evaluation: show one line, and write the record to the log."""
        self._write(record, progress)
        if self._notes:
            self.shown.note(f"{self.name} step {progress.step} {line}")

    def _write(self, record: dict[str, Any], progress: TrainingProgress) -> None:
        if self.log is not None:
            reached = {"step": progress.step, "tokens": progress.tokens}
            line = {**record, **reached, "seconds": round(progress.seconds, 1)}
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
