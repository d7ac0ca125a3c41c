"""Run the training loop of all jobs: updates, reports, checkpoints, synchronised workers.

A step's data depend only on (seed, step), and the gradients of all workers are summed once. So a
run is a pure function of its recipe (up to the machine's arithmetic), and a resumed run reaches the
same weights as an uninterrupted one. Muon (Jordan et al. 2024) updates matrices, AdamW the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.reporter import Reporter, TrainingProgress
from training.workers import release_memory, wait_for_all, worker

Piece = tuple[Tensor, int, int]
"""Summed loss (nats) of targets, their number, and the number of tokens or slots run."""


class Job(Protocol):
    """Define a job for a `Loop`. Checkpoints store its `trained` module and `fingerprint`.

    `run` is a `LoopTable`.
    """

    fingerprint: str
    reporter: Reporter
    run: Any
    trained: Any

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimisers of the parameters, set to their peak learning rates."""

    def pieces(self, progress: TrainingProgress) -> Iterable[Piece]:
        """Yield this worker's losses of step ``progress.step``, one by one."""

    def evaluate(self, progress: TrainingProgress) -> None:
        """Report the module's quality (implementations may adapt ``progress.counts``)."""

    def export(self, folder: Path) -> None:
        """Write the trained module."""


class Loop:
    """Run the steps, evaluations and checkpoints of one job."""

    def __init__(self, job: Job, path: Path) -> None:
        """Continue from the checkpoint at `path`, of the same recipe, if it exists."""
        self.job, self.run, self.path = job, job.run, path
        self.optimizers = job.optimizers()
        self.peaks = [[group["lr"] for group in each.param_groups] for each in self.optimizers]
        self.progress = TrainingProgress()
        self._saved_step = -1
        if path.exists():
            state = read_state(path)
            if state["fingerprint"] != job.fingerprint:
                raise ValueError(
                    f"{path}: the checkpoint was made by another recipe; delete it or use that "
                    "recipe"
                )
            job.trained.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.progress = TrainingProgress(**state["progress"])
            self._saved_step = self.progress.step

    def train(self) -> None:
        """Train until the end of the run."""
        num_steps = self.run.num_steps
        self.job.reporter.start(num_steps, self.progress)
        saved = now = _shared_time()
        start_s = saved - self.progress.seconds
        while self.progress.step < num_steps and self.run.share_of_time(now - start_s) < 1:
            self._step(now - start_s)
            # evaluate by steps, not by the clock, because an evaluation may adapt later steps
            if self.progress.step % self.run.eval_steps == 0:
                self.job.evaluate(self.progress)
            now = _shared_time()
            if now - saved > 60 * self.run.checkpoint_minutes:
                self.save()
                saved = now
        # each worker remembers the saved step: checking the file would race with the first worker
        if self._saved_step < self.progress.step:
            if self.progress.step % self.run.eval_steps:
                self.job.evaluate(self.progress)
            self.save()

    def _step(self, seconds: float) -> None:
        started = time.monotonic()
        scale = self.run.rate_scale(self.progress.step, seconds)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * scale
        loss, tokens = update(self.job.pieces(self.progress), self.job.trained, self.optimizers)
        self.progress.step += 1
        self.progress.tokens += tokens
        self.progress.seconds += time.monotonic() - started
        self.job.reporter.step(loss, self.progress)

    def save(self) -> None:
        """Write a checkpoint (first worker only, because all workers hold the same state)."""
        self._saved_step = self.progress.step
        if worker()[0] == 0:
            state = {
                "fingerprint": self.job.fingerprint,
                "model": self.job.trained.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "progress": asdict(self.progress),
            }
            write_state(self.path, state)
        release_memory()
        wait_for_all()


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a state to a file, replacing the old file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_state(path: Path) -> Any:
    """Load a state that `write_state` wrote, onto the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)


def update(
    pieces: Iterable[Piece], trained: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[float, int]:
    """Update once with all workers' gradients and return the mean loss (nats) and tokens run."""
    total = torch.zeros(3, dtype=torch.float64)
    for loss, num_targets, num_tokens in pieces:
        loss.backward()  # type: ignore[no-untyped-call]
        total += torch.tensor([loss.item(), num_targets, num_tokens])
    parameters = [p for p in trained.parameters() if p.requires_grad]
    if worker()[1] > 1:
        dist.all_reduce(total)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        sums = torch.split(flat, [p.numel() for p in parameters])
        for parameter, grad in zip(parameters, sums, strict=True):
            parameter.grad = grad.view_as(parameter)
    if not total[1]:  # this step's text has no targets
        return math.nan, int(total[2].item())
    parameters = [p for p in parameters if p.grad is not None]
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad /= total[1].item()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return total[0].item() / total[1].item(), int(total[2].item())


def muon_and_adamw(
    trained: nn.Module, matrices: Iterable[nn.Parameter], run: Any, *, weight_decay: float = 0.0
) -> list[torch.optim.Optimizer]:
    """Return Muon and AdamW for a module, at their peak learning rates.

    Args:
        trained: module whose parameters with gradients are updated.
        matrices: parameters for Muon. Those that are not 2-D go to AdamW with the rest.
        run: settings with the peak learning rates `muon_lr` and `adamw_lr`.
        weight_decay: Muon's; AdamW has none.
    """
    moved = [p for p in matrices if p.ndim == 2]
    matrix_ids = {id(p) for p in moved}
    rest = [p for p in trained.parameters() if p.requires_grad and id(p) not in matrix_ids]
    return [
        torch.optim.Muon(moved, lr=run.muon_lr, momentum=0.95, weight_decay=weight_decay),
        torch.optim.AdamW(rest, lr=run.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def fingerprint(*parts: Any) -> str:
    """Return a hash of the settings that decide a run's steps."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _shared_time() -> float:
    """Return the first worker's clock, so that all workers save and stop at the same step."""
    now = torch.tensor([time.monotonic()], dtype=torch.float64)
    if worker()[1] > 1:
        dist.broadcast(now, src=0)
    return now.item()


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the weights of the best evaluation in a file, `path`, which may already exist.

    The score is not the loss but the expected number of leading correct slots or drafts.
    """

    path: Path

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
    """Define held-out figures, with a `score` to select weights and a `summary` to print."""

    def measured(self) -> dict[str, Any]:
        """Return the figures by name, as they are stored, without None except ``greedy_*``."""
        fields = asdict(self).items()
        return {k: value for k, value in fields if value is not None or k.startswith("greedy_")}


class JudgedJob:
    """Define a job that reports on held-out rows and offers weights to `best` if set.

    `base` holds facts about the base model.
    """

    fingerprint = ""
    run: Any
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

    def take_best(self) -> Any:
        """Take the best weights if they beat the last ones, and return their report."""
        report = self.report or self.held_out()
        if self.best is not None and (better := self.best.better_than(report.score)) is not None:
            self.trained.load_state_dict(better)
            report = self.held_out()
        return report

    def export(self, folder: Path) -> None:
        """Write the chosen weights as an adapter with their report."""
        config = replace(self.trained.config, base=self.base, measured=self.take_best().measured())
        fresh = type(self.trained)(config)
        fresh.load_state_dict(self.trained.state_dict())
        fresh.save(folder, getattr(torch, self.run.stored))
