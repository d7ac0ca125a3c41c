"""One training run of any kind: its state, its resumption, its log and what it leaves.

State lives in ``OUTPUT/.training``; what was trained lands in OUTPUT.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch

from decoders.core.hf.checkpoint import find_checkpoint, unavailable
from training.loop import Job, Loop, TrainingProgress, saved_progress
from training.recipe import ZOO, Recipe
from training.reporter import Reporter
from training.workers import keep_memory, spawn, wait_for_all, worker

BEST = "best.pt"
Locate = Callable[[str], str]
"""Map a recipe's name of a model to its folder or hub id."""
Build = Callable[[Any, Path, torch.device, Reporter, Locate], Job]
"""The job of a recipe that is trained into a folder on a device."""


class TrainingOptions(TypedDict, total=False):
    """Options of every training.

    Not to `resume` (default: True) starts over, but keeps text that was sampled; `progress` is
    ``auto`` (default), ``rich``, ``plain`` or ``none``; a `device` other than ``cpu`` uses one
    worker; a run stops after a checkpoint once `stop_after_s` passed; `locate` is `Locate`.
    """

    resume: bool
    progress: str
    device: str
    stop_after_s: float | None
    locate: Locate


def train_recipe(
    name: str, recipe: Recipe, build: Build, output: Path, options: TrainingOptions
) -> TrainingProgress:
    """Train the job of a recipe into `output`; its log is ``training_log.jsonl`` there.

    Raises as `train_jobs`.
    """
    return train_jobs({name: build}, recipe, output, options, after=_keep_log)[name]


def train_jobs(
    builds: Mapping[str, Build],
    recipe: Recipe,
    output: Path,
    options: TrainingOptions,
    *,
    counts: Mapping[str, int] | None = None,
    after: Callable[[Path, Mapping[str, Any]], None] | None = None,
) -> dict[str, TrainingProgress]:
    """Train jobs of a recipe one after another; return the step each has reached.

    The checkpoint and the log in ``output/.training`` have a job's name; every worker makes every
    job. `after` is given what was trained by name, once all is. An impossible recipe, or a
    checkpoint of another one, raises `ValueError`.
    """
    state = output / ".training"
    state.mkdir(parents=True, exist_ok=True)
    single = options.get("device", "cpu") != "cpu"
    workers = 1 if single else getattr(recipe.run, "workers", 1)  # type: ignore[attr-defined]
    stop_after_s = options.get("stop_after_s")
    deadline = None if stop_after_s is None else time.monotonic() + stop_after_s
    spawn(workers, _train, builds, recipe, output, options, deadline, counts or {}, after)
    return {name: saved_progress(state / f"{name}.pt") for name in builds}


def _train(
    builds: Mapping[str, Build],
    recipe: Recipe,
    output: Path,
    options: TrainingOptions,
    deadline: float | None,
    counts: Mapping[str, int],
    after: Callable[[Path, Mapping[str, Any]], None] | None,
) -> None:
    """Train the jobs in this worker, until all are done or the deadline passes."""
    keep_memory()
    state, first = output / ".training", worker()[0] == 0
    progress = options.get("progress", "auto") if first else "none"
    trained: dict[str, Any] = {}
    for name, build in builds.items():
        log, unit = state / f"{name}.jsonl", "slots" if name == "adapter" else "tokens"
        with Reporter(progress, name, log if first else None, unit) as reporter:
            device = _device_of(options.get("device", "cpu"))
            job = build(recipe, output, device, reporter, options.get("locate", str))
            if not options.get("resume", True):  # only now: an impossible recipe leaves it alone
                for file in (f"{name}.pt", log.name, BEST) if first else ():
                    (state / file).unlink(missing_ok=True)
                wait_for_all()
            if not Loop(job, state / f"{name}.pt", dict(counts)).train(deadline):
                return
        if first:
            job.export(output)
        trained[name] = job.trained
    if first and after is not None:
        after(output, trained)


def _keep_log(output: Path, trained: Iterable[str]) -> None:
    for name in trained:
        if (log := output / ".training" / f"{name}.jsonl").exists():
            shutil.copyfile(log, output / "training_log.jsonl")


def _device_of(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{name!r} is no device; use cpu or cuda") from error


def located(name: str, locate: Locate) -> str:
    """Return a folder or hub id; ``zoo`` is its target, ``zoo/NAME`` another of its models."""
    if name == "zoo" or name.startswith("zoo/"):
        return str(ZOO / (name.removeprefix("zoo").removeprefix("/") or "target"))
    return locate(name)


def open_checkpoint(path: str, kind: str, **options: Any) -> Any:
    """Return a checkpoint's model or tokenizer, of the transformers class `kind`."""
    import transformers

    source = find_checkpoint(path, "model", "config.json")
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    opener: Any = getattr(transformers, kind)
    try:
        return opener.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        raise unavailable(path, "model", error) from error
