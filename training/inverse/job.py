"""The job of inverse autoregressive training, for C-PTP and for the AR model beside it.

The AR model learns the next token of every row. C-PTP learns that too, since a window's first token
has its distribution from there, and the tokens of windows from uniforms of its own distributions;
see `training.inverse.windows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from training.inverse.data import Trips
from training.inverse.model import SlotTransformer
from training.inverse.report import SLOTS, HeldOut, ar_nats, c_ptp_nats
from training.inverse.windows import Read, TextWindows, draw_text
from training.loop import Loop, Piece, Schedule, TrainingProgress, fingerprint_of, muon_and_adamw
from training.recipe import Count, Rate, RecipeTable, Share
from training.reporter import Reporter
from training.workers import worker

_ModelName = Literal["ar", "c-ptp"]
MODELS: tuple[_ModelName, ...] = get_args(_ModelName)
FREE = (
    "num_steps",
    "checkpoint_minutes",
    "workers",
    "eval_steps",
    "eval_rows",
    "final_rows",
    "final_draws",
)
"""Keys of [run] that a run may change when it goes on."""


class RunSettings(RecipeTable):
    """How both models are trained and looked at.

    Attributes:
        rows: a step's, over all workers.
        length: predicted symbols of a row.
        windows: of a row.
        slots: tokens of a window; the first is the context's, so one less are slots.
        num_steps: of each model.
        warmup_steps: see `Schedule`; so is `decay`.
        decay: see `Schedule`.
        muon_lr: peak rate of the layers' matrices.
        adamw_lr: peak rate of everything else.
        seed: of rows, windows and uniforms.
        workers: processes of one thread each.
        eval_steps: steps between looks at held-out windows.
        eval_rows: held-out rows of such a look.
        final_rows: held-out rows of the comparison.
        final_draws: sets of uniforms for each of its windows.
        checkpoint_minutes: minutes between checkpoints.
    """

    rows: Count = 16
    length: Count = 128
    windows: Count = 8
    slots: Count = 16
    num_steps: Count
    warmup_steps: int = Field(default=50, ge=0)
    decay: Share = 0.5
    muon_lr: Rate = 0.01
    adamw_lr: Rate = 0.003
    seed: int = Field(default=1, ge=0)
    workers: Count = 2
    eval_steps: Count = 250
    eval_rows: Count = 32
    final_rows: Count = 512
    final_draws: Count = 4
    checkpoint_minutes: float = Field(default=4.0, ge=0)

    def held_out(self, *, final: bool) -> HeldOut:
        """The held-out windows of the comparison, or of a look on the way."""
        return HeldOut(
            rows=self.final_rows if final else self.eval_rows,
            length=self.length,
            windows=self.windows,
            slots=self.slots,
            draws=self.final_draws if final else 1,
        )


class InverseJob:
    """One of the two models on the source's rows."""

    def __init__(
        self,
        name: _ModelName,
        model: SlotTransformer,
        trips: Trips,
        settings: RunSettings,
        reporter: Reporter,
    ) -> None:
        """The AR model's embedding of uniforms is frozen: it is never used."""
        self.name, self.model, self.trips = name, model, trips
        self.settings, self.reporter = settings, reporter
        self.looks = settings.held_out(final=False).text(trips)
        model.uniforms.requires_grad_(name == "c-ptp")

    @property
    def trained(self) -> nn.Module:
        """The model."""
        return self.model

    def text(self, step: int) -> TextWindows:
        """This worker's part of a step's rows, the same for both models."""
        run, (rank, world) = self.settings, worker()
        rng = np.random.default_rng([run.seed, step])
        sizes = {"rows": run.rows, "length": run.length}
        whole = draw_text(self.trips, rng, **sizes, windows=run.windows, slots=run.slots)
        return whole.part(slice(rank, None, world))

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """The loss of this worker's rows: every token of a row, and every slot's of C-PTP."""
        windows = self.text(progress.step)
        read = Read(self.model, windows)
        targets = windows.ids[:, 1:]
        loss = _summed(read.text_logits(), targets)
        count = targets.numel()
        if self.name == "c-ptp":
            carried = read.explained().u[..., :-1]
            loss = loss + _summed(read.slot_logits(carried), windows.tokens[..., 1:])
            count += carried.numel()
        yield loss, count, count

    def evaluate(self, progress: TrainingProgress) -> None:
        """Held-out perplexity by slot (first worker only)."""
        if worker()[0]:
            return
        nats = (
            ar_nats(self.model, self.looks)
            if self.name == "ar"
            else c_ptp_nats(self.model, self.looks, 1)
        )
        values = [round(value, 4) for value in nats.mean(0).exp().tolist()]
        shown = [f"{values[n - 1]:.3f} at {n}" for n in SLOTS if n <= len(values)]
        line = f"perplexity {nats.mean().exp():.3f}; by slot {', '.join(shown)}"
        self.reporter.evaluation(progress, line, {"perplexity_by_slot": values})


def _summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def loop_of(job: InverseJob, recipe: dict[str, Any], path: Path) -> Loop:
    """The loop of a job, from its checkpoint if there is one (the length may change)."""
    run = job.settings
    section = {key: value for key, value in recipe["run"].items() if key not in FREE}
    matrices = [p for p in job.model.layers.parameters() if p.ndim == 2]
    return Loop(
        job,
        muon_and_adamw(job.model, matrices, muon_lr=run.muon_lr, adamw_lr=run.adamw_lr),
        Schedule(num_steps=run.num_steps, warmup_steps=run.warmup_steps, decay=run.decay),
        path,
        fingerprint_of(job.name, recipe["source"], recipe["model"], section),
        job.reporter,
        eval_steps=run.eval_steps,
        checkpoint_minutes=run.checkpoint_minutes,
    )
