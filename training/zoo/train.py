"""The tokenizer, target and draft of the zoo, from one recipe, resumable: ``bench train zoo``.

Finished models land in ``OUTPUT/target`` and ``OUTPUT/draft`` as Hugging Face checkpoints.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from training.loop import TrainingProgress, saved_progress
from training.plots import plot_exactness
from training.run import deadline_after, device_of, train_job
from training.text.tokenizer import build_tokenizer, saved_tokenizer
from training.workers import spawn
from training.zoo.job import ZooJob, ZooRecipe

MODELS = ("target", "draft")


def train_zoo(
    tables: dict[str, Any],
    output: Path,
    resume: bool = True,
    progress: str = "auto",
    device: str = "cpu",
    stop_after_s: float | None = None,
) -> dict[str, TrainingProgress]:
    """Train the models of a recipe into `output`; return where each model's run stands.

    Options are those of `training.run.TrainingOptions`; finished models are left alone on resume.
    """
    recipe, state = ZooRecipe.of(tables), output / ".training"
    if not resume and state.exists():
        shutil.rmtree(state)
    state.mkdir(parents=True, exist_ok=True)
    if not (state / "tokenizer").exists():
        build_tokenizer(**recipe.tokenizer.model_dump()).save_pretrained(state / "tokenizer")
    workers = recipe.run.workers if device == "cpu" else 1
    deadline = deadline_after(stop_after_s)
    spawn(workers, _train_models, tables, output, progress, device, deadline)
    log = state / "target.jsonl"
    if log.exists() and '"scores"' in log.read_text(encoding="utf-8"):
        shutil.copyfile(log, output / "training_log.jsonl")
        plot_exactness(log, output / "training.png")
    return {name: saved_progress(state / f"{name}.pt") for name in MODELS}


def _train_models(
    tables: dict[str, Any], output: Path, progress: str, device: str, deadline: float | None
) -> None:
    tokenizer = saved_tokenizer(output / ".training" / "tokenizer")
    counts = dict(tables["data"]["counts"])
    for name in MODELS:
        build = partial(ZooJob, tables, name, tokenizer, device_of(device))
        if not train_job(name, output, build, progress=progress, deadline=deadline, counts=counts):
            return
