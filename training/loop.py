"""The training loop of everything trained here: schedule, updates, checkpoints, worker sync.

A `_TrainingJob` says what is trained and yields summed losses; `Loop` does the rest. One step's
data depend on (seed, step) alone, and gradients of all workers are summed once, so a run is a pure
function of its recipe (up to the machine's arithmetic), and a resumed run ends in the weights of an
uninterrupted one. Muon (Jordan et al. 2024) moves matrices, AdamW the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.workers import give_memory_back, worker

_KEEP_CHECKPOINT = "the checkpoint was made by another recipe; delete it or use that recipe"

Piece = tuple[Tensor, int, int]
"""Summed loss (nats) of some targets, how many targets, and how many tokens or slots were run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Warm-up, plateau, linear decay to `final` of the peak over the last `decay` share."""

    num_steps: int
    warmup_steps: int
    decay: float
    final: float = 0.02

    def scale(self, step: int) -> float:
        """The factor on every learning rate at `step` (0-based)."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        start = self.num_steps * (1 - self.decay)
        left = (self.num_steps - step) / max(1.0, self.num_steps - start)
        return warm * max(self.final, min(1.0, left))


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """Where a run stands: what a checkpoint holds beside weights and optimiser state."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


class _TrainingJob(Protocol):
    """What a loop trains."""

    @property
    def trained(self) -> nn.Module:
        """The module whose state a checkpoint holds; gradients reach (some of) its parameters."""

    def pieces(self, progress: TrainingProgress) -> Iterable[Piece]:
        """This worker's losses of step ``progress.step``, one after another."""

    def evaluate(self, progress: TrainingProgress) -> None:
        """Tells how good the module is; may adapt ``progress.counts``."""


class _Watcher(Protocol):
    """Who is told how training goes (`training.reporter.Reporter`)."""

    def start(self, num_steps: int, progress: TrainingProgress) -> None:
        """A run starts or goes on."""

    def step(self, loss: float, progress: TrainingProgress) -> None:
        """A step is done; its mean loss in nats."""


class Loop:
    """Steps, evaluations and checkpoints of one job."""

    def __init__(
        self,
        job: _TrainingJob,
        optimizers: Sequence[torch.optim.Optimizer],
        schedule: Schedule,
        path: Path,
        fingerprint: str,
        watcher: _Watcher,
        *,
        eval_steps: int,
        checkpoint_minutes: float,
        progress: TrainingProgress | None = None,
    ) -> None:
        """Continues from the checkpoint at `path` if there is one.

        Args:
            job: what is trained.
            optimizers: of its parameters; their learning rates are the schedule's peaks.
            schedule: how long, and how the rates go.
            path: of the checkpoint.
            fingerprint: what a checkpoint must share with this run, see `fingerprint_of`.
            watcher: told of every step.
            eval_steps: steps between evaluations.
            checkpoint_minutes: minutes between checkpoints.
            progress: where a run that starts stands.

        Raises:
            ValueError: the checkpoint belongs to another recipe.
        """
        self.job, self.schedule, self.watcher = job, schedule, watcher
        self.optimizers = list(optimizers)
        self.path, self.fingerprint = path, fingerprint
        self.eval_steps, self.checkpoint_minutes = eval_steps, checkpoint_minutes
        self.peaks = [[group["lr"] for group in each.param_groups] for each in self.optimizers]
        self.progress = TrainingProgress() if progress is None else progress
        self._saved_step = -1
        if path.exists():
            self._load()

    def train(self, deadline: float | None) -> bool:
        """Steps until the schedule ends (True) or the monotonic deadline passes (False)."""
        num_steps = self.schedule.num_steps
        self.watcher.start(num_steps, self.progress)
        saved = _agreed_time()
        while self.progress.step < num_steps:
            self._step()
            # By steps, not by the clock: an evaluation may adapt later steps.
            if self.progress.step % self.eval_steps == 0:
                self.job.evaluate(self.progress)
            now = _agreed_time()
            if now - saved > 60 * self.checkpoint_minutes:
                self.save()
                saved = now
            if deadline is not None and now > deadline:
                self.save()
                return False
        # what was saved is remembered by every worker: the file may change under their eyes
        if self._saved_step < self.progress.step:
            if self.progress.step % self.eval_steps:
                self.job.evaluate(self.progress)
            self.save()
        return True

    def _step(self) -> None:
        started = time.monotonic()
        scale = self.schedule.scale(self.progress.step)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * scale
        loss, tokens = update(self.job.pieces(self.progress), self.job.trained, self.optimizers)
        self.progress.step += 1
        self.progress.tokens += tokens
        self.progress.seconds += time.monotonic() - started
        self.watcher.step(loss, self.progress)

    def save(self) -> None:
        """Writes a checkpoint (first worker only; the others hold the same state)."""
        self._saved_step = self.progress.step
        if worker()[0] == 0:
            self._save()
        give_memory_back()
        if worker()[1] > 1:
            dist.barrier()

    def _save(self) -> None:
        """Weights, optimiser state and progress in one atomic replacement."""
        state = {
            "fingerprint": self.fingerprint,
            "model": self.job.trained.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": {name: getattr(self.progress, name) for name in TrainingProgress.__slots__},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def _load(self) -> None:
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        if state["fingerprint"] != self.fingerprint:
            raise ValueError(f"{self.path}: {_KEEP_CHECKPOINT}")
        self.job.trained.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = TrainingProgress(**state["progress"])
        self._saved_step = self.progress.step


def update(
    pieces: Iterable[Piece], trained: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[float, int]:
    """One update from summed gradients of all workers; mean loss (nats) and tokens run."""
    total = torch.zeros(3, dtype=torch.float64)
    for loss, num_targets, num_tokens in pieces:
        loss.backward()  # type: ignore[no-untyped-call]
        total += torch.tensor([loss.item(), num_targets, num_tokens])
    parameters = [p for p in trained.parameters() if p.requires_grad]
    _sum_over_workers(total, parameters)
    if not total[1]:  # nothing to learn from this step's text
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


def _sum_over_workers(total: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    if worker()[1] == 1:
        return
    dist.all_reduce(total)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    pieces = torch.split(flat, [p.numel() for p in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter)


def muon_and_adamw(
    trained: nn.Module,
    matrices: Sequence[nn.Parameter],
    *,
    muon_lr: float,
    adamw_lr: float,
    weight_decay: float = 0.0,
) -> list[torch.optim.Optimizer]:
    """Muon for 2-D `matrices` of a module, AdamW for all else in it that takes gradients.

    The rates are the schedule's peaks.
    """
    known = {id(p) for p in matrices}
    others = [p for p in trained.parameters() if p.requires_grad and id(p) not in known]
    return [
        torch.optim.Muon(matrices, lr=muon_lr, momentum=0.95, weight_decay=weight_decay),
        torch.optim.AdamW(others, lr=adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def fingerprint_of(*parts: Any) -> str:
    """A hash of what decides a run's steps."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def saved_progress(path: Path) -> TrainingProgress:
    """Where the run of a checkpoint stands; a fresh `TrainingProgress` if there is none."""
    if not path.exists():
        return TrainingProgress()
    return TrainingProgress(**torch.load(path, map_location="cpu", weights_only=True)["progress"])


def _agreed_time() -> float:
    """The first worker's clock, so that all workers evaluate and stop at the same step."""
    now = torch.tensor([time.monotonic()], dtype=torch.float64)
    if worker()[1] > 1:
        dist.broadcast(now, src=0)
    return now.item()
