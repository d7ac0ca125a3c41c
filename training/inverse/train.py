"""Inverse autoregressive training: C-PTP from scratch on unlabelled text, beside an AR model.

Two models of the same size see the same rows in the same steps (`training.inverse.job`), one after
the other. ``OUTPUT/inverse.json`` then compares them (`training.inverse.report`); resumable state
lives in ``OUTPUT/.training``.
Source: PTP, arXiv 2512.21323, section 3 (inverse autoregressive training).
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from training.inverse.data import Trips, TripSettings
from training.inverse.job import MODELS, InverseJob, RunSettings, loop_of
from training.inverse.model import ModelSettings, SlotTransformer
from training.inverse.report import compare
from training.loop import TrainingProgress, saved_progress
from training.recipe import RECIPES, Recipe, customised, read_recipe
from training.reporter import Reporter
from training.workers import spawn, worker

RECIPE = RECIPES / "ptp-inverse.toml"


class InverseRecipe(Recipe):
    """What both models learn from, their sizes, and how they are trained."""

    source: TripSettings
    model: ModelSettings
    run: RunSettings


def main(
    recipe: Path | None,
    output: Path,
    *,
    num_steps: int | None = None,
    resume: bool = True,
    progress: str = "auto",
) -> Path:
    """Trains both models of a recipe and compares them; returns the path of ``inverse.json``.

    Args:
        recipe: None is ``training/recipes/ptp-inverse.toml``.
        output: folder of the report; ``output/.training`` holds resumable state.
        num_steps: of each model; None keeps the recipe's.
        resume: see `train_both`; so is `progress`.
        progress: see `train_both`.

    Raises:
        ValueError: an impossible recipe, or a checkpoint of another recipe.
    """
    tables = customised(read_recipe(recipe or RECIPE), num_steps=num_steps)
    train_both(tables, output, resume=resume, progress=progress)
    return output / "inverse.json"


def train_both(
    tables: dict[str, Any],
    output: Path,
    *,
    resume: bool = True,
    progress: str = "auto",
    stop_after_s: float | None = None,
) -> dict[str, TrainingProgress]:
    """`main` on a recipe already read; returns where each model's run stands.

    Args:
        tables: a recipe, as in ``training/recipes/ptp-inverse.toml``.
        output: folder of the report.
        resume: continue from the last checkpoint; False starts over.
        progress: ``auto``, ``rich``, ``plain`` or ``none``.
        stop_after_s: stop early (after a checkpoint) once this many seconds of training passed.

    Raises:
        ValueError: an impossible recipe, or a checkpoint of another recipe.
    """
    recipe = InverseRecipe.of(tables)
    state = output / ".training"
    if not resume and state.exists():
        shutil.rmtree(state)
    state.mkdir(parents=True, exist_ok=True)
    spawn(recipe.run.workers, _train, tables, output, progress, stop_after_s)
    return {name: saved_progress(state / f"{name}.pt") for name in MODELS}


def _train(tables: dict[str, Any], output: Path, progress: str, stop_after_s: float | None) -> None:
    """Both models, one after the other, then the comparison (in every worker)."""
    recipe = InverseRecipe.of(tables)
    run, trips = recipe.run, Trips(recipe.source)
    deadline = None if stop_after_s is None else time.monotonic() + stop_after_s
    models = {name: SlotTransformer(recipe.model, trips.num_symbols) for name in MODELS}
    first = worker()[0] == 0
    for name, model in models.items():
        log = output / ".training" / f"{name}.jsonl"
        with Reporter(progress if first else "none", name, log if first else None) as reporter:
            job = InverseJob(name, model, trips, run, reporter)
            path = output / ".training" / f"{name}.pt"
            if not loop_of(job, tables, path).train(deadline):
                return
    if first:
        compared = compare(models["ar"], models["c-ptp"], trips, run.held_out(final=True))
        report = {**compared, "recipe": tables}
        text = json.dumps(report, indent=2) + "\n"
        (output / "inverse.json").write_text(text, encoding="utf-8")
