"""Held-out reports of a module in training, and the module's best weights so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from training.loop import read_state, write_state
from training.reporter import TrainingProgress
from training.workers import worker

if TYPE_CHECKING:
    from training.reporter import Reporter


class Best:
    """The weights of the best evaluation so far, kept in a file next to the checkpoint.

    The score is not the loss but the expected number of leading correct slots or drafts.
    """

    def __init__(self, path: Path) -> None:
        """Continue from the file at `path` if it exists."""
        self.path = path

    def offer(self, step: int, score: float, trained: nn.Module) -> None:
        """Keep these weights if their score beats that of the stored weights."""
        if self._kept_score() < score:
            write_state(self.path, {"score": score, "step": step, "model": trained.state_dict()})

    def better_than(self, score: float) -> dict[str, Tensor] | None:
        """Return the stored weights if their score beats `score`, else None."""
        return read_state(self.path)["model"] if self._kept_score() > score else None

    def _kept_score(self) -> float:
        return float(read_state(self.path)["score"]) if self.path.exists() else -1.0


@dataclass(frozen=True, slots=True)
class Report:
    """Held-out figures, with a `score` to select the best weights and a `summary` to print."""

    def measured(self) -> dict[str, Any]:
        """Return the figures by name, as they are stored, without None except ``greedy_*``."""
        fields = asdict(self).items()
        return {k: value for k, value in fields if value is not None or k.startswith("greedy_")}


class JudgedJob:
    """A job that reports on held-out rows, and offers its weights to `best` if set.

    `base` holds facts about the base model.
    """

    fingerprint = ""
    base: Mapping[str, Any] = {}
    best: Best | None = None
    report: Any = None
    trained: Any
    reporter: Reporter

    def held_out(self) -> Any:
        """Return the `Report` on held-out rows."""
        raise NotImplementedError

    def evaluate(self, progress: TrainingProgress) -> None:
        """Report the module's quality on held-out rows (first worker only)."""
        if worker()[0]:
            return
        report = self.report = self.held_out()
        parameters = sum(parameter.numel() for parameter in self.trained.parameters())
        record = {"held_out": report.measured(), "parameters": parameters}
        self.reporter.evaluation(progress, report.summary(), record)
        if self.best is not None:
            self.best.offer(progress.step, report.score, self.trained)

    def scores(self) -> dict[str, Any]:
        """Load the best weights if they beat the current ones, and return the chosen figures."""
        report = self.report or self.held_out()
        if self.best is not None and (better := self.best.better_than(report.score)) is not None:
            self.trained.load_state_dict(better)
            report = self.held_out()
        return dict(report.measured())
