"""Run one training of any kind: state, resuming, log and output.

State is kept in ``OUTPUT/.training``; the trained model or adapter is written to OUTPUT.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch

from decoders.core.hf.checkpoint import find_checkpoint, is_masked, unavailable
from training.loop import Job, Loop
from training.recipe import ZOO, Recipe
from training.reporter import Reporter
from training.workers import keep_memory, spawn, wait_for_all, worker

BEST = "best.pt"
Locate = Callable[[str], str]
"""Maps a model's name in a recipe to its folder or hub id."""


def located(name: str, locate: Locate = str) -> str:
    """Return a model's folder or hub id (``zoo`` and ``zoo/NAME`` are the zoo's models)."""
    folder, _, inside = name.partition("/")
    return str(ZOO / (inside or "target")) if folder == "zoo" else locate(name)


class JobContext(NamedTuple):
    """Hold everything that a job needs besides its recipe."""

    output: Path
    device: torch.device
    reporter: Reporter
    locate: Locate = located


Build = Callable[[Any, JobContext], Job]
"""Builds the job of a recipe."""


class TrainingOptions(TypedDict, total=False):
    """Hold the options of every training run.

    `resume` False (default: True) starts over but keeps sampled text. `progress` is ``auto``
    (default), ``rich``, ``plain`` or ``none``. A `device` of None is CUDA if available; a device
    other than ``cpu`` uses one worker. `locate` is a `Locate`.
    """

    resume: bool
    progress: str
    device: str | None
    locate: Locate


def train_jobs(
    builds: Mapping[str, Build],
    recipe: Recipe,
    output: Path,
    options: TrainingOptions,
    after: Callable[[Path, Mapping[str, Any]], None] | None = None,
) -> None:
    """Train jobs of a recipe one after another.

    When all are done, the first worker copies the first job's log to ``training_log.jsonl``. An
    impossible recipe, or a checkpoint of another recipe, raises `ValueError`.

    Args:
        builds: builders by the names of jobs, checkpoints and logs; every worker calls each.
        recipe: a recipe with a table `run`.
        output: folder of the result, and of the state in ``.training``.
        options: how to run, missing ones by default.
        after: called last, by the first worker, with `output` and the trained modules by name.
    """
    (output / ".training").mkdir(parents=True, exist_ok=True)
    single = _choose_device(options.get("device")).type != "cpu"
    workers = 1 if single else getattr(recipe.run, "workers", 1)  # type: ignore[attr-defined]
    spawn(workers, _train, builds, recipe, output, options, after)


def _train(
    builds: Mapping[str, Build],
    recipe: Recipe,
    output: Path,
    options: TrainingOptions,
    after: Callable[[Path, Mapping[str, Any]], None] | None,
) -> None:
    """Train the jobs in this worker."""
    keep_memory()
    state, first = output / ".training", worker()[0] == 0
    progress = options.get("progress", "auto") if first else "none"
    trained: dict[str, Any] = {}
    for name, build in builds.items():
        log, unit = state / f"{name}.jsonl", "slots" if name == "adapter" else "tokens"
        with Reporter(progress, name, log if first else None, unit) as reporter:
            device = _choose_device(options.get("device"))
            locate = partial(located, locate=options.get("locate", str))
            job = build(recipe, JobContext(output, device, reporter, locate))
            checkpoint = state / f"{name}.pt"
            # after `build`: a bad recipe deletes nothing
            if first and not (options.get("resume", True) and checkpoint.exists()):
                later = [state / f"{each}.pt" for each in builds if each not in trained]
                for file in (*later, log, state / BEST):
                    file.unlink(missing_ok=True)
            wait_for_all()
            Loop(job, checkpoint).train()
        if first:
            job.export(output)
        trained[name] = job.trained
    if first and (log := state / f"{next(iter(builds))}.jsonl").exists():
        shutil.copyfile(log, output / "training_log.jsonl")
    if first and after is not None:
        after(output, trained)


def _choose_device(name: str | None) -> torch.device:
    """Return the named device, by default CUDA if there is a GPU, as in `bench run`."""
    try:
        return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"{name!r} is not a device; use cpu or cuda") from error


def open_checkpoint(path: str, kind: str, **options: Any) -> Any:
    """Load a checkpoint's model or tokenizer with the transformers class `kind`."""
    import transformers

    source = find_checkpoint(path, "model", "config.json")
    if is_masked(source):
        raise ValueError(f"model {path!r} predicts masked tokens; training needs a causal model")
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    opener: Any = getattr(transformers, kind)
    try:
        return opener.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        raise unavailable(path, "model", error) from error
