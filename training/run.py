"""One training run of any kind: its state, its resumption, its log and what it leaves.

State lives in ``OUTPUT/.training``; what was trained lands in OUTPUT.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
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
    """Train the job of a recipe into `output`.

    The checkpoint and the log in ``output/.training`` have the `name`; `build` makes the job in
    every worker. An impossible recipe, or a checkpoint of another one, raises `ValueError`.
    """
    (output / ".training").mkdir(parents=True, exist_ok=True)
    single = options.get("device", "cpu") != "cpu"
    workers = 1 if single else getattr(recipe.run, "workers", 1)  # type: ignore[attr-defined]
    deadline = deadline_after(options.get("stop_after_s"))
    spawn(workers, _train, name, recipe, build, output, options, deadline)
    return saved_progress(output / ".training" / f"{name}.pt")


def _train(
    name: str,
    recipe: Recipe,
    build: Build,
    output: Path,
    options: TrainingOptions,
    deadline: float | None,
) -> None:
    keep_memory()
    device, locate = device_of(options.get("device", "cpu")), options.get("locate", str)
    made = train_job(
        name,
        output,
        lambda reporter: build(recipe, output, device, reporter, locate),
        resume=options.get("resume", True),
        progress=options.get("progress", "auto"),
        deadline=deadline,
        unit="slots" if name == "adapter" else "tokens",
    )
    if made and worker()[0] == 0 and (log := output / ".training" / f"{name}.jsonl").exists():
        shutil.copyfile(log, output / "training_log.jsonl")


def train_job(
    name: str,
    output: Path,
    build: Callable[[Reporter], Job],
    *,
    resume: bool = True,
    progress: str,
    deadline: float | None,
    unit: str = "tokens",
    counts: dict[str, int] | None = None,
) -> bool:
    """Train one job in this worker until its end; export it and return True, unless stopped."""
    state, first = output / ".training", worker()[0] == 0
    log = state / f"{name}.jsonl" if first else None
    with Reporter(progress if first else "none", name, log, unit) as reporter:
        job = build(reporter)
        if not resume:  # only now: an impossible recipe leaves the old run alone
            if first:
                for file in (f"{name}.pt", f"{name}.jsonl", BEST):
                    (state / file).unlink(missing_ok=True)
            wait_for_all()
        if not Loop(job, state / f"{name}.pt", counts).train(deadline):
            return False
    if first:
        job.export(output)
    return True


def deadline_after(seconds: float | None) -> float | None:
    """Return the monotonic time after so many seconds from now; None: never."""
    return None if seconds is None else time.monotonic() + seconds


def device_of(name: str) -> torch.device:
    """Return the device of a name; unknown ones raise `ValueError`."""
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
