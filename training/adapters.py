"""The job that trains an adapter, from one recipe, resumable: what ``bench train ptp`` calls.

Training state lives in ``OUTPUT/.training``; the adapter lands in OUTPUT.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from decoders.core.checkpoint import find_checkpoint, unavailable, weights_sha256
from decoders.core.gating import layer_shapes
from decoders.core.hf import HFModel
from decoders.core.slots import AdapterConfig, SlotAdapter
from training.adapter_job import AdapterJob, Settings, optimizers
from training.loop import Loop, Progress, Schedule, fingerprint_of, saved_progress
from training.progress import Reporter
from training.sources import Teacher, source_of
from training.student import Student
from training.windows import Laws
from training.workers import spawn, worker

SECTIONS = ("model", "adapter", "data", "run")
Recipe = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]


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
    output: Path | None,
    *,
    model: str | None = None,
    data: str | None = None,
    num_steps: int | None = None,
    resume: bool = True,
    progress: str = "auto",
    device: str = "cpu",
) -> Path:
    """What ``bench train ptp`` does; returns the adapter's folder.

    Args:
        recipe: None is the zoo's own, or the one for any model where `model` is given.
        output: None is ``zoo/ptp``, or ``results/adapters/MODEL``.
        model: see `customised`; so are `data` and `num_steps`.
        data: see `customised`.
        num_steps: see `customised`.
        resume: see `train_adapter`; so are `progress` and `device`.
        progress: see `train_adapter`.
        device: see `train_adapter`.

    Raises:
        ValueError: an impossible recipe or option, or a checkpoint of another recipe.
    """
    if recipe is None:
        recipe = ROOT / "training" / "recipes" / ("ptp.toml" if model is None else "ptp-any.toml")
    if output is None:
        named = Path("results") / "adapters" / Path(model or "zoo").name
        output = ROOT / "zoo" / "ptp" if model is None else named
    settings = customised(read_recipe(recipe), model=model, data=data, num_steps=num_steps)
    train_adapter(settings, output, resume=resume, progress=progress, device=device)
    return output


def customised(
    recipe: Recipe,
    *,
    model: str | None = None,
    data: str | None = None,
    num_steps: int | None = None,
) -> Recipe:
    """A copy of a recipe for another model, other data or another length.

    Args:
        recipe: as read.
        model: folder or hub id; None keeps the recipe's.
        data: ``on-policy``, ``text=PATH`` or ``dataset=ID``; None keeps the recipe's.
        num_steps: None keeps the recipe's.

    Raises:
        ValueError: data of no known form.
    """
    changed = {name: dict(section) for name, section in recipe.items()}
    if model is not None:
        changed["model"]["path"] = model
    if num_steps is not None:
        changed["run"]["num_steps"] = num_steps
    if data is None:
        return changed
    kind, _, path = data.partition("=")
    if kind not in ("on-policy", "text", "dataset") or (kind == "on-policy") == bool(path):
        raise ValueError(f"data {data!r}: use on-policy, text=PATH or dataset=ID")
    if kind != changed["data"].get("kind"):
        changed["data"] = {"kind": kind, "seed": changed["data"].get("seed", 0)}
    if path:
        changed["data"]["path"] = path
    return changed


def train_adapter(
    recipe: Recipe,
    output: Path,
    *,
    resume: bool = True,
    progress: str = "auto",
    device: str = "cpu",
    stop_after_s: float | None = None,
) -> Progress:
    """Trains what `recipe` says into `output`; continues from the last checkpoint.

    Args:
        recipe: as in ``training/recipes/ptp.toml``.
        output: folder of the adapter; ``output/.training`` holds resumable state.
        resume: continue from the last checkpoint; False starts over.
        progress: ``auto``, ``rich``, ``plain`` or ``none``.
        device: a torch device; anything but ``cpu`` uses one worker.
        stop_after_s: stop early (after a checkpoint) once this many seconds of training passed.

    Raises:
        ValueError: an impossible recipe, or a checkpoint of another recipe.
    """
    state = output / ".training"
    if not resume and state.exists():
        shutil.rmtree(state)
    state.mkdir(parents=True, exist_ok=True)
    workers = int(recipe["run"].get("workers", 2)) if device == "cpu" else 1
    spawn(workers, _train, recipe, output, progress, device, stop_after_s)
    return saved_progress(state / "adapter.pt")


def _train(
    recipe: Recipe, output: Path, progress: str, device: str, stop_after_s: float | None
) -> None:
    log = output / ".training" / "adapter.jsonl"
    rank = worker()[0]
    reporter = Reporter(progress if rank == 0 else "none", "adapter", log, "slots")
    deadline = None if stop_after_s is None else time.monotonic() + stop_after_s
    with reporter:
        job, base = build_job(recipe, output, torch.device(device), reporter)
        section = recipe["run"]
        loop = Loop(
            job,
            optimizers(
                job.student.adapter,
                muon_lr=section["muon_lr"],
                adamw_lr=section["adamw_lr"],
            ),
            Schedule(
                num_steps=section["num_steps"],
                warmup_steps=section["warmup_steps"],
                decay=section["decay"],
            ),
            output / ".training" / "adapter.pt",
            fingerprint(recipe, base),
            reporter,
            eval_steps=section["eval_steps"],
            checkpoint_minutes=section["checkpoint_minutes"],
        )
        done = loop.train(deadline)
    if done and rank == 0:
        job.export(output, base, torch.float16 if section.get("half", True) else torch.float32)
        shutil.copyfile(log, output / "training_log.jsonl")


def fingerprint(recipe: Recipe, base: Mapping[str, Any]) -> str:
    """What a checkpoint must share with the recipe to be continued (the length may change)."""
    free = ("num_steps", "checkpoint_minutes", "eval_steps", "workers")
    section = {key: value for key, value in recipe["run"].items() if key not in free}
    parts = [recipe["adapter"], recipe.get("laws", {}), recipe["data"], section]
    return fingerprint_of(parts, base.get("weights_sha256"))


def build_job(
    recipe: Recipe, output: Path, device: torch.device, reporter: Reporter
) -> tuple[AdapterJob, dict[str, Any]]:
    """The job of a recipe, and what is known of its base model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    section = recipe["model"]
    zoo = str(ROOT / "zoo" / "target")
    path = find_checkpoint(
        zoo if section["path"] == "zoo" else section["path"], "model", "config.json"
    )
    dtype = getattr(torch, section.get("dtype", "bfloat16"))
    try:
        module: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise unavailable(path, "model", error) from error
    module = module.to(device)
    base = {
        "architecture": type(module).__name__,
        "weights_sha256": weights_sha256(path),
    }
    options = dict(recipe["adapter"])
    seed, gated = options.pop("seed", 0), options.pop("gated", True)
    initial_scale = options.pop("initial_scale", 1.0)
    laws = laws_of(recipe.get("laws", {}))
    config = AdapterConfig(
        layers=layer_shapes(module),
        width=module.get_input_embeddings().weight.shape[1],
        temperatures=laws.temperatures,
        top_ps=laws.top_ps,
        top_k=laws.top_k,
        greedy=laws.greedy > 0,
        **options,
    )
    adapter = SlotAdapter(config, seed)
    adapter.embedding.match(module.get_input_embeddings().weight * initial_scale)
    student = Student(module, adapter.to(device), gated=gated)
    source = source_of(
        recipe["data"],
        tokenizer=tokenizer,
        max_length=module.config.get_text_config().max_position_embeddings,
        folder=output / ".training",
        teacher=Teacher(
            name=base["weights_sha256"] or str(section["path"]),
            open=lambda: HFModel.load(path, dtype=torch.float32, device=device),
        ),
    )
    known = {f.name for f in dataclasses.fields(Settings)}
    settings = Settings(**{k: v for k, v in recipe["run"].items() if k in known})
    pad = tokenizer.pad_token_id or 0
    return AdapterJob(student, source, laws, settings, reporter, pad), base


def laws_of(section: Mapping[str, Any]) -> Laws:
    """`Laws` of a recipe's [laws] table.

    Raises:
        ValueError: an unknown key.
    """
    known = {f.name for f in dataclasses.fields(Laws)}
    strange = sorted(set(section) - known)
    if strange:
        raise ValueError(f"[laws] has no {strange[0]!r}; it has {', '.join(sorted(known))}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in section.items()}
    return Laws(**values)
