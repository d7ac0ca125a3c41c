"""Inverse autoregressive training: C-PTP from scratch on unlabelled text, beside an AR model.

Two models of the same size see the same rows in the same steps (`training.inverse.job`), one after
the other. ``OUTPUT/inverse.json`` then compares them (`training.inverse.report`).
Source: PTP, arXiv 2512.21323, section 3 (inverse autoregressive training).
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from training.inverse.data import Trips
from training.inverse.job import MODELS, InverseJob, InverseRecipe
from training.inverse.model import SlotTransformer
from training.inverse.report import compare
from training.loop import TrainingProgress, saved_progress
from training.run import deadline_after, train_job
from training.workers import spawn, worker


def train_both(
    tables: dict[str, Any],
    output: Path,
    *,
    resume: bool = True,
    progress: str = "auto",
    stop_after_s: float | None = None,
) -> dict[str, TrainingProgress]:
    """Train both models of a recipe and compare them; return where each model's run stands.

    Options are those of `training.run.TrainingOptions`.
    """
    recipe, state = InverseRecipe.of(tables), output / ".training"
    if not resume and state.exists():
        shutil.rmtree(state)
    state.mkdir(parents=True, exist_ok=True)
    spawn(recipe.run.workers, _train, tables, output, progress, deadline_after(stop_after_s))
    return {name: saved_progress(state / f"{name}.pt") for name in MODELS}


def _train(tables: dict[str, Any], output: Path, progress: str, deadline: float | None) -> None:
    """Train both models, one after the other, then compare them (in every worker)."""
    recipe = InverseRecipe.of(tables)
    trips = Trips(recipe.source)
    models = {name: SlotTransformer(recipe.model, trips.num_symbols) for name in MODELS}
    for name, model in models.items():
        build = partial(InverseJob, name, model, trips, tables)
        if not train_job(name, output, build, progress=progress, deadline=deadline):
            return
    if worker()[0] == 0:
        compared = compare(models["ar"], models["c-ptp"], trips, recipe.run.held_out(final=True))
        text = json.dumps({**compared, "recipe": tables}, indent=2) + "\n"
        (output / "inverse.json").write_text(text, encoding="utf-8")
