"""The job that trains an adapter, from one recipe, resumable: ``bench train ptp`` and ``idlm``.

Training state lives in ``OUTPUT/.training``; the adapter lands in OUTPUT.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from decoders.core.adapter.config import MASKED_VARIANTS, AdapterConfig
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.hf.checkpoint import find_checkpoint, unavailable, weights_sha256
from decoders.core.hf.model import HFModel, stop_ids
from training.adapter.best import Best
from training.adapter.blocks import BlockRules
from training.adapter.job import AdapterJob, optimizers
from training.adapter.lean_job import LeanJob
from training.adapter.lean_student import LeanStudent
from training.adapter.recipe import AdapterRecipe, AdapterTable, BlocksTable
from training.adapter.rehearsal import rehearse
from training.adapter.student import Student, longest_row
from training.adapter.warm_start import begin_from
from training.adapter.windows import WindowSampling
from training.loop import Loop, Schedule, TrainingProgress, fingerprint_of, saved_progress
from training.recipe import RECIPES, ZOO, customised, read_recipe, with_settings, zoo_output
from training.reporter import Reporter
from training.text.sources import Source, Teacher, source_of
from training.workers import keep_memory, spawn, worker

CHECKPOINT, BEST, LOG = "adapter.pt", "best.pt", "adapter.jsonl"

Locate = Callable[[str], str]
Kind = Literal["ptp", "refine", "isd"]
"""What an adapter is for: a decoder or, of I-DLM, its mode."""
_DEFAULTS: Mapping[Kind, tuple[str, str]] = {
    "ptp": ("ptp.toml", "ptp-any.toml"),
    "refine": ("idlm-refine.toml", "idlm-any-refine.toml"),
    "isd": ("idlm-isd.toml", "idlm-any.toml"),
}
"""Recipes of the zoo's own adapter, and of one for any model."""


def main(
    recipe: Path | None,
    output: Path | None,
    *,
    kind: Kind = "ptp",
    model: str | None = None,
    data: str | None = None,
    num_steps: int | None = None,
    settings: Sequence[str] = (),
    resume: bool = True,
    progress: str = "auto",
    device: str = "cpu",
    locate: Locate = str,
) -> Path:
    """What ``bench train ptp`` and ``bench train idlm`` do; returns the adapter's folder.

    Args:
        recipe: None is the zoo's own, or the one for any model where `model` is given.
        output: None is KIND in `zoo_output()`, or ``results/adapters/MODEL`` (``MODEL-KIND`` but
            for PTP).
        kind: what the recipe trains.
        model: see `customised`; so are `data` and `num_steps`.
        data: see `customised`.
        num_steps: see `customised`.
        settings: see `with_settings`.
        resume: see `train_adapter`; so are `progress` and `device`.
        progress: see `train_adapter`.
        device: see `train_adapter`.
        locate: see `train_adapter`.

    Raises:
        ValueError: an impossible recipe or option, one of another kind, or a checkpoint of another
            recipe.
    """
    if recipe is None:
        recipe = RECIPES / _DEFAULTS[kind][model is not None]
    if output is None:
        suffix = "" if kind == "ptp" else f"-{kind}"
        named = Path("results") / "adapters" / f"{Path(model or 'zoo').name}{suffix}"
        output = zoo_output() / kind if model is None else named
    tables = customised(read_recipe(recipe), model=model, data=data, num_steps=num_steps)
    tables = with_settings(tables, settings)
    variant = AdapterRecipe.of(tables).adapter.variant
    recipe_kind = variant if variant in MASKED_VARIANTS else "ptp"
    if recipe_kind != kind:
        asked = (
            "bench train ptp"
            if recipe_kind == "ptp"
            else f"bench train idlm --objective {recipe_kind}"
        )
        raise ValueError(f"recipe {recipe} trains {recipe_kind}; use `{asked}`")
    train_adapter(tables, output, resume=resume, progress=progress, device=device, locate=locate)
    return output


def train_adapter(
    tables: Mapping[str, Any],
    output: Path,
    *,
    resume: bool = True,
    progress: str = "auto",
    device: str = "cpu",
    stop_after_s: float | None = None,
    locate: Locate = str,
) -> TrainingProgress:
    """Trains what a recipe says into `output`; continues from the last checkpoint.

    Args:
        tables: a recipe, as in ``training/recipes/ptp.toml``.
        output: folder of the adapter; ``output/.training`` holds resumable state.
        resume: continue from the last checkpoint; False starts over (sampled text is kept).
        progress: ``auto``, ``rich``, ``plain`` or ``none``.
        device: a torch device; anything but ``cpu`` uses one worker.
        stop_after_s: stop early (after a checkpoint) once this many seconds of training passed.
        locate: where a model of the recipe lies, by what the recipe calls it.

    Raises:
        ValueError: an impossible recipe, or a checkpoint of another recipe.
    """
    recipe = AdapterRecipe.of(tables)
    state = output / ".training"
    state.mkdir(parents=True, exist_ok=True)
    workers = recipe.run.workers if device == "cpu" else 1
    spawn(workers, _train, recipe, output, resume, progress, device, stop_after_s, locate)
    return saved_progress(state / CHECKPOINT)


def _train(
    recipe: AdapterRecipe,
    output: Path,
    resume: bool,
    progress: str,
    device: str,
    stop_after_s: float | None,
    locate: Locate,
) -> None:
    keep_memory()
    state, rank = output / ".training", worker()[0]
    style, log = (progress, state / LOG) if rank == 0 else ("none", None)
    reporter = Reporter(style, "adapter", log, "slots")
    deadline = None if stop_after_s is None else time.monotonic() + stop_after_s
    with reporter:
        job, base = build_job(recipe, output, device_of(device), reporter, locate=locate)
        if not resume:  # only now: an impossible recipe leaves the old run alone
            _start_over(state)
        run = recipe.run
        loop = Loop(
            job,
            optimizers(job.student.adapter, muon_lr=run.muon_lr, adamw_lr=run.adamw_lr),
            Schedule(num_steps=run.num_steps, warmup_steps=run.warmup_steps, decay=run.decay),
            state / CHECKPOINT,
            fingerprint_of(recipe.decisive(), base.get("weights_sha256"), job.source.facts),
            reporter,
            eval_steps=run.eval_steps,
            checkpoint_minutes=run.checkpoint_minutes,
        )
        if run.choose == "best":
            job.best = Best(state / BEST)
        done = loop.train(deadline)
    if done and rank == 0:
        job.export(output, base, torch.float16 if run.half else torch.float32)
        if (state / LOG).exists():
            shutil.copyfile(state / LOG, output / "training_log.jsonl")


def _start_over(state: Path) -> None:
    if worker()[0] == 0:
        for name in (CHECKPOINT, BEST, LOG):
            (state / name).unlink(missing_ok=True)
    if worker()[1] > 1:
        torch.distributed.barrier()


def device_of(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ValueError: there is no such kind of device.
    """
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{name!r} is no device; use cpu or cuda") from error


def build_job(
    recipe: AdapterRecipe,
    output: Path,
    device: torch.device,
    reporter: Reporter,
    adapter: SlotAdapter | None = None,
    locate: Locate = str,
) -> tuple[AdapterJob, dict[str, Any]]:
    """The job of a recipe, and what is known of its base model; `adapter` None is a fresh one.

    `locate` is that of `train_adapter`.

    Raises:
        ValueError: a model that cannot be loaded or trained on, or impossible data.
    """
    path, dtype = located(recipe.model.path, locate), getattr(torch, recipe.model.dtype)
    bare = HFModel(
        open_checkpoint(path, "AutoModelForCausalLM", dtype=dtype).to(device), grouped=False
    )
    module = bare.module
    base = {"architecture": type(module).__name__, "weights_sha256": weights_sha256(path)}
    teacher, taught_by = None, path
    if recipe.model.teacher is not None:
        taught_by = located(recipe.model.teacher, locate)
        teacher = open_checkpoint(taught_by, "AutoModelForCausalLM", dtype=dtype).to(device)
        base["teacher_sha256"] = weights_sha256(taught_by)
    sampling = WindowSampling(**recipe.sampling.model_dump())
    given = adapter is not None
    gated = recipe.adapter.gated or given
    if adapter is None:
        adapter = _fresh(recipe.adapter, sampling, module)
    adapter = adapter.to(device)
    tokenizer = open_checkpoint(taught_by, "AutoTokenizer")
    room = longest_row(bare.architecture)
    blocks = None
    if recipe.adapter.variant == "refine":
        table = recipe.blocks or BlocksTable()
        blocks = BlockRules(stops=stop_ids(bare, tokenizer), room=room, **table.model_dump())

    @functools.cache
    def student() -> Student:  # it gives the module another attention
        if recipe.run.lean:
            return LeanStudent(module, adapter)
        return Student(module, adapter, gated=gated, teacher=teacher)

    def make(source: Source) -> AdapterJob:
        kind, pad = LeanJob if recipe.run.lean else AdapterJob, tokenizer.pad_token_id or 0
        return kind(student(), source, sampling, recipe.run, reporter, pad, blocks)

    if not given:  # else it is judged, not trained
        rehearse(bare, adapter, make)
    source = source_of(
        recipe.data,
        tokenizer=tokenizer,
        max_length=room,
        folder=output / ".training",
        teacher=Teacher(
            name=weights_sha256(taught_by) or taught_by,
            open=lambda: HFModel.load(taught_by, dtype=torch.float32, device=device),
        ),
    )
    return make(source), base


def _fresh(table: AdapterTable, sampling: WindowSampling, module: Any) -> SlotAdapter:
    tokens = module.get_input_embeddings().weight
    config = AdapterConfig(
        layers=layer_shapes(module, table.enter),
        width=tokens.shape[1],
        temperatures=sampling.temperatures,
        top_ps=sampling.top_ps,
        top_k=sampling.top_k,
        greedy=sampling.greedy > 0,
        **table.model_dump(exclude={"seed", "gated", "initial", "initial_scale"}),
    )
    adapter = SlotAdapter(config, table.seed)
    adapter.embedding.match(tokens * table.initial_scale)
    if table.initial is not None:
        begin_from(adapter, SlotAdapter.load(table.initial))
    return adapter


def located(name: str, locate: Locate) -> str:
    """A folder or hub id; ``zoo`` is its target, ``zoo/NAME`` another of its models."""
    if name == "zoo" or name.startswith("zoo/"):
        return str(ZOO / (name.removeprefix("zoo").removeprefix("/") or "target"))
    return locate(name)


def open_checkpoint(path: str, kind: str, **options: Any) -> Any:
    """A checkpoint's model or tokenizer, by `kind`: the name of a transformers class.

    Raises:
        ValueError: it cannot be opened, in one line.
    """
    import transformers

    source = find_checkpoint(path, "model", "config.json")
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    opener: Any = getattr(transformers, kind)
    try:
        return opener.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        raise unavailable(path, "model", error) from error
