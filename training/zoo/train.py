"""The job that makes the zoo: tokenizer, target and draft, from one recipe, resumable.

`main` is what ``bench train zoo`` calls. Training state lives in ``OUTPUT/.training``; finished
models land in ``OUTPUT/target`` and ``OUTPUT/draft`` as ordinary Hugging Face checkpoints.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch

from training.loop import TrainingProgress, saved_progress
from training.plots import plot_exactness
from training.recipe import Recipe, read_recipe
from training.reporter import Reporter
from training.text.tokenizer import build_tokenizer, saved_tokenizer
from training.workers import spawn, worker
from training.zoo.job import ZooJob

MODELS = ("target", "draft")


class ZooRecipe(Recipe):
    """Each table's values are checked by what they are for."""

    tokenizer: dict[str, Any]
    data: dict[str, Any]
    run: dict[str, Any]
    target: dict[str, Any]
    draft: dict[str, Any]


def main(
    recipe: Path,
    output: Path,
    resume: bool = True,
    progress: str = "auto",
    device: str = "cpu",
) -> dict[str, TrainingProgress]:
    """Trains what `recipe` says into `output`; finished models are left alone on resume.

    Args:
        recipe: TOML file, see ``training/recipes/zoo.toml``.
        output: folder of the zoo; ``output/.training`` holds resumable state.
        resume: continue from the last checkpoint; False starts over.
        progress: ``auto``, ``rich``, ``plain`` or ``none``.
        device: a torch device; anything but ``cpu`` uses one worker.

    Raises:
        ValueError: an incomplete recipe, or a checkpoint of another recipe.
    """
    return train_zoo(read_recipe(recipe), output, resume, progress, device)


def train_zoo(
    tables: dict[str, Any],
    output: Path,
    resume: bool = True,
    progress: str = "auto",
    device: str = "cpu",
    stop_after_s: float | None = None,
) -> dict[str, TrainingProgress]:
    """`main` on a recipe already read; returns where each model's run stands.

    `stop_after_s`: stop early (after a checkpoint) once this many seconds of training passed.
    """
    recipe = ZooRecipe.of(tables)
    state = output / ".training"
    if not resume and state.exists():
        shutil.rmtree(state)
    state.mkdir(parents=True, exist_ok=True)
    if not (state / "tokenizer").exists():
        build_tokenizer(**recipe.tokenizer).save_pretrained(state / "tokenizer")
    workers = int(recipe.run["workers"]) if device == "cpu" else 1
    spawn(workers, _run_models, tables, output, progress, device, stop_after_s)
    _publish_log(state / "target.jsonl", output)
    return {name: saved_progress(state / f"{name}.pt") for name in MODELS}


def _publish_log(log: Path, output: Path) -> None:
    """Copies the target's log beside the models and plots it, once it holds an evaluation."""
    if log.exists() and '"scores"' in log.read_text(encoding="utf-8"):
        shutil.copyfile(log, output / "training_log.jsonl")
        plot_exactness(log, output / "training.png")


def _run_models(
    recipe: dict[str, Any], output: Path, progress: str, device: str, stop_after_s: float | None
) -> None:
    tokenizer = saved_tokenizer(output / ".training" / "tokenizer")
    deadline = None if stop_after_s is None else time.monotonic() + stop_after_s
    for name in MODELS:
        log = output / ".training" / f"{name}.jsonl"
        first = worker()[0] == 0
        reporter = Reporter(progress if first else "none", name, log if first else None)
        run = ZooJob(recipe, name, tokenizer, output, torch.device(device), reporter)
        with reporter:
            if not run.loop.train(deadline):
                return
        if worker()[0] == 0:
            run.export()
