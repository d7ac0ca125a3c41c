"""Inverse autoregressive training: C-PTP from scratch on unlabelled text, and an AR model.

Two models of the same size are trained one after the other, on the same rows in the same steps. The
AR model learns the next token of every row. C-PTP learns it too, because the context predicts a
window's first token. C-PTP also learns the other tokens of windows, given uniforms of its own
distributions (`training.inverse.windows`). ``OUTPUT/inverse.json`` compares the two.
Source: PTP, arXiv 2512.21323, section 3 (inverse autoregressive training).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.inverse.data import Trips, TripSettings
from training.inverse.model import ModelSettings, SlotTransformer
from training.inverse.report import SLOTS, ar_nats, c_ptp_nats, compare, held_out_text
from training.inverse.windows import Read, TextWindows, draw_text
from training.loop import Piece, fingerprint, muon_and_adamw
from training.recipe import Count, LoopTable, NotNegative, Rate, Recipe, Seed, Share
from training.reporter import Reporter, TrainingProgress
from training.run import Build, Locate, TrainingOptions, train_jobs
from training.workers import worker

_ModelName = Literal["ar", "c-ptp"]
MODELS: tuple[_ModelName, ...] = get_args(_ModelName)


class RunSettings(LoopTable):
    """[run]: `rows` rows per step (over all workers) of `length` symbols, with windows of slots.

    The context predicts the first of a window's `slots`. The final comparison has `final_rows`
    held-out rows, and `final_draws` sets of uniforms per window.
    """

    rows: Count = 16
    length: Count = 128
    windows: Count = 8
    slots: Count = 16
    warmup_steps: NotNegative = 50
    decay: Share = 0.5
    muon_lr: Rate = 0.01
    adamw_lr: Rate = 0.003
    seed: Seed = 1
    workers: Count = 2
    eval_steps: Count = 250
    eval_rows: Count = 32
    final_rows: Count = 512
    final_draws: Count = 4

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes that `draw_text` takes."""
        return {"length": self.length, "windows": self.windows, "slots": self.slots}


class InverseRecipe(Recipe):
    """The source that both models learn, their sizes, and their training."""

    source: TripSettings
    model: ModelSettings
    run: RunSettings


class InverseJob:
    """Trains one of the two models on the source's rows."""

    def __init__(
        self,
        name: _ModelName,
        recipe: InverseRecipe,
        _output: Path,
        _device: torch.device,
        reporter: Reporter,
        _locate: Locate,
    ) -> None:
        """Take a recipe, of which the AR model ignores the embedding of uniforms."""
        self.name, self.run, self.reporter = name, recipe.run, reporter
        self.trips = Trips(recipe.source)
        self.trained = SlotTransformer(recipe.model, self.trips.num_symbols)
        self.trained.uniforms.requires_grad_(name == "c-ptp")
        self.fingerprint = fingerprint(name, recipe.decisive())
        self._held_out = held_out_text(self.trips, self.run.eval_rows, **self.run.sizes)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Muon for the layers' matrices, AdamW for all other weights."""
        matrices = self.trained.llama.model.layers.parameters()
        return muon_and_adamw(self.trained, matrices, self.run)

    def text(self, step: int) -> TextWindows:
        """Return this worker's part of a step's rows, which are the same for both models."""
        run, (rank, world) = self.run, worker()
        rng = np.random.default_rng([run.seed, step])
        whole = draw_text(self.trips, rng, rows=run.rows, **run.sizes)
        return whole.part(slice(rank, None, world))

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield the loss of this worker's rows: of every token and, for C-PTP, of every slot."""
        windows = self.text(progress.step)
        read = Read(self.trained, windows)
        targets = windows.ids[:, 1:]
        loss = _summed(read.text_logits(), targets)
        count = targets.numel()
        if self.name == "c-ptp":
            uniforms = read.explained()[0][..., :-1]
            loss = loss + _summed(read.slot_logits(uniforms), windows.tokens[..., 1:])
            count += uniforms.numel()
        yield loss, count, count

    def evaluate(self, progress: TrainingProgress) -> None:
        """Report held-out perplexity by slot (first worker only)."""
        if worker()[0]:
            return
        if self.name == "ar":
            nats = ar_nats(self.trained, self._held_out)
        else:
            nats = c_ptp_nats(self.trained, self._held_out, 1)
        values = [round(value, 4) for value in nats.mean(0).exp().tolist()]
        shown = [f"{values[n - 1]:.3f} at {n}" for n in SLOTS if n <= len(values)]
        line = f"perplexity {nats.mean().exp():.3f}; by slot {', '.join(shown)}"
        self.reporter.evaluation(progress, line, {"perplexity_by_slot": values})

    def export(self, folder: Path) -> None:
        """Write nothing, as the run's only output is the comparison of both models."""


def _summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def train_both(
    tables: dict[str, Any], output: Path, **options: Unpack[TrainingOptions]
) -> dict[str, TrainingProgress]:
    """Train both models of a recipe, compare them and return the progress of each."""
    recipe = InverseRecipe.of(tables)
    builds: dict[str, Build] = {name: partial(InverseJob, name) for name in MODELS}
    return train_jobs(builds, recipe, output, options, after=partial(_compare, recipe, tables))


def _compare(
    recipe: InverseRecipe, tables: dict[str, Any], output: Path, models: Mapping[str, Any]
) -> None:
    trips, run = Trips(recipe.source), recipe.run
    held_out = held_out_text(trips, run.final_rows, **run.sizes)
    compared = compare(models["ar"], models["c-ptp"], trips, held_out, run.final_draws)
    text = json.dumps({**compared, "recipe": tables}, indent=2) + "\n"
    (output / "inverse.json").write_text(text, encoding="utf-8")
