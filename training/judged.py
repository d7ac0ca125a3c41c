"""What held-out rows say of a module in training, and its best weights so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from training.loop import TrainingProgress, read_state, write_state
from training.workers import worker

if TYPE_CHECKING:
    from training.run import Reporter


class Best:
    """The weights of the best evaluation so far, kept in one file beside the checkpoint.

    Judged by accepted tokens, not by loss: the expected number of leading correct slots or drafts.
    """

    def __init__(self, path: Path) -> None:
        """Go on from the file at `path` if there is one."""
        self.path = path

    def offer(self, step: int, score: float, trained: nn.Module) -> None:
        """Keep these weights if their score is better than that of those kept."""
        if self._kept_score() < score:
            write_state(self.path, {"score": score, "step": step, "model": trained.state_dict()})

    def better_than(self, score: float) -> dict[str, Tensor] | None:
        """Return the weights kept, where their score was better than this one."""
        return read_state(self.path)["model"] if self._kept_score() > score else None

    def _kept_score(self) -> float:
        return float(read_state(self.path)["score"]) if self.path.exists() else -1.0


@dataclass(frozen=True, slots=True)
class Report:
    """Held-out figures; by its `score` the best are chosen, its `summary` is for the terminal."""

    def measured(self) -> dict[str, Any]:
        """Return the figures of this kind by name, as they are stored."""
        fields = asdict(self).items()
        return {
            name: value for name, value in fields if value is not None or name.startswith("greedy_")
        }


class JudgedJob:
    """A job that is judged by a report on held-out rows, and offers its weights to `best`, if set.

    `base` is what is known of the model that is trained on.
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
        """Report how good the module is on held-out rows (first worker only)."""
        if worker()[0]:
            return
        report = self.report = self.held_out()
        parameters = sum(parameter.numel() for parameter in self.trained.parameters())
        record = {"held_out": report.measured(), "parameters": parameters}
        self.reporter.evaluation(progress, report.summary(), record)
        if self.best is not None:
            self.best.offer(progress.step, report.score, self.trained)

    def chosen(self) -> dict[str, Any]:
        """Return the figures of the weights to write, which are now what is trained."""
        report = self.report or self.held_out()
        if self.best is not None and (better := self.best.better_than(report.score)) is not None:
            self.trained.load_state_dict(better)
            report = self.held_out()
        measured: dict[str, Any] = report.measured()
        return measured
