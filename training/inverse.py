"""Inverse autoregressive training: C-PTP from scratch on unlabelled text, beside an AR model.

Two models of the same size see the same rows in the same steps (`training.inverse_job`), one after
the other. ``OUTPUT/inverse.json`` then compares them (`training.inverse_report`); resumable state
lives in ``OUTPUT/.training``.
Source: PTP, arXiv 2512.21323, section 3 (inverse autoregressive training).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from training.inverse_data import Trips, TripSettings
from training.inverse_job import MODELS, InverseJob, RunSettings, loop_of
from training.inverse_model import ModelSettings, SlotTransformer
from training.inverse_report import compare
from training.loop import Progress, saved_progress
from training.progress import Reporter
from training.workers import spawn, worker

SECTIONS = ("source", "model", "run")
RECIPE = Path(__file__).resolve().parent / "recipes" / "ptp-inverse.toml"
Recipe = dict[str, Any]
Section = TypeVar("Section")


def read_recipe(path: Path) -> Recipe:
    """The recipe with every section present.

    Raises:
        ValueError: a section is missing.
    """
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    missing = [name for name in SECTIONS if name not in settings]
    if missing:
        raise ValueError(f"{path} lacks [{missing[0]}]; a recipe needs {', '.join(SECTIONS)}")
    return settings


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
    settings = read_recipe(RECIPE if recipe is None else recipe)
    if num_steps is not None:
        settings = {**settings, "run": {**settings["run"], "num_steps": num_steps}}
    train_both(settings, output, resume=resume, progress=progress)
    return output / "inverse.json"


def train_both(
    recipe: Recipe,
    output: Path,
    *,
    resume: bool = True,
    progress: str = "auto",
    stop_after_s: float | None = None,
) -> dict[str, Progress]:
    """`main` on a recipe already read; returns where each model's run stands.

    Args:
        recipe: as in ``training/recipes/ptp-inverse.toml``.
        output: folder of the report.
        resume: continue from the last checkpoint; False starts over.
        progress: ``auto``, ``rich``, ``plain`` or ``none``.
        stop_after_s: stop early (after a checkpoint) once this many seconds of training passed.

    Raises:
        ValueError: an impossible recipe, or a checkpoint of another recipe.
    """
    run = section_of(RunSettings, recipe["run"], "run")
    section_of(TripSettings, recipe["source"], "source")
    section_of(ModelSettings, recipe["model"], "model")
    state = output / ".training"
    if not resume and state.exists():
        shutil.rmtree(state)
    state.mkdir(parents=True, exist_ok=True)
    spawn(run.workers, _train, recipe, output, progress, stop_after_s)
    return {name: saved_progress(state / f"{name}.pt") for name in MODELS}


def section_of(kind: type[Section], section: Mapping[str, Any], name: str) -> Section:
    """Settings from a recipe's table.

    Raises:
        ValueError: an unknown key, a missing one, or an impossible value.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    known = [field.name for field in fields]
    strange = sorted(set(section) - set(known))
    if strange:
        raise ValueError(f"[{name}] has no {strange[0]!r}; it has {', '.join(known)}")
    needed = [f.name for f in fields if f.default is dataclasses.MISSING]
    missing = sorted(set(needed) - set(section))
    if missing:
        raise ValueError(f"[{name}] lacks {missing[0]!r}; add it")
    return kind(**section)


def _train(recipe: Recipe, output: Path, progress: str, stop_after_s: float | None) -> None:
    """Both models, one after the other, then the comparison (in every worker)."""
    run = section_of(RunSettings, recipe["run"], "run")
    trips = Trips(section_of(TripSettings, recipe["source"], "source"))
    sizes = section_of(ModelSettings, recipe["model"], "model")
    deadline = None if stop_after_s is None else time.monotonic() + stop_after_s
    models = {name: SlotTransformer(sizes, trips.num_symbols) for name in MODELS}
    first = worker()[0] == 0
    for name, model in models.items():
        log = output / ".training" / f"{name}.jsonl"
        with Reporter(progress if first else "none", name, log) as reporter:
            job = InverseJob(name, model, trips, run, reporter)
            path = output / ".training" / f"{name}.pt"
            if not loop_of(job, recipe, path).train(deadline):
                return
    if first:
        found = compare(models["ar"], models["c-ptp"], trips, run.held_out(final=True))
        report = {**found, "recipe": recipe}
        text = json.dumps(report, indent=2) + "\n"
        (output / "inverse.json").write_text(text, encoding="utf-8")
