"""The job that trains heads, a draft layer or an exit: ``bench train medusa``, ``eagle``, ``exit``.

Resumable: training state lives in ``OUTPUT/.training``; the adapter lands in OUTPUT. The target is
frozen.

Sources: Medusa-1 (Cai et al. 2024, arXiv 2401.10774), EAGLE (Li et al., arXiv 2401.15077),
LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from decoders.core.adapter.config import AdapterConfig, HeadsVariant
from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.heads import DraftHeads, ExitBlock
from decoders.core.adapter.module import HiddenAdapter
from decoders.core.hf.checkpoint import weights_sha256
from decoders.core.hf.model import HFModel
from training.adapter.rehearsal import rehearse
from training.adapter.train import Locate, device_of, located, open_checkpoint
from training.heads.exit_job import ExitJob
from training.heads.job import HeadsJob, HiddenJob
from training.heads.layer_job import LayerJob
from training.heads.recipe import HeadsRecipe, HeadsTable
from training.loop import Loop, Schedule, TrainingProgress, fingerprint_of
from training.recipe import RECIPES, customised, read_recipe, with_settings, zoo_output
from training.reporter import Reporter
from training.text.sources import Source, Teacher, source_of
from training.workers import keep_memory

CHECKPOINT, LOG = "heads.pt", "heads.jsonl"


def main(
    recipe: Path | None,
    output: Path | None,
    *,
    kind: Literal["medusa", "eagle", "exit"] = "medusa",
    model: str | None = None,
    data: str | None = None,
    num_steps: int | None = None,
    settings: Sequence[str] = (),
    resume: bool = True,
    progress: str = "auto",
    device: str = "cpu",
    locate: Locate = str,
) -> Path:
    """What ``bench train medusa``, ``eagle`` and ``exit`` do; returns the folder of the adapter.

    Args:
        recipe: None is KIND.toml of ``training/recipes``, or KIND-any.toml where `model` is given.
        output: None is KIND in `zoo_output()`, or ``results/adapters/MODEL-KIND``.
        kind: heads, a draft layer, or an exit.
        model: see `customised`; so are `data` and `num_steps`.
        data: see `customised`.
        num_steps: see `customised`.
        settings: see `with_settings`.
        resume: see `train_heads`; so are `progress`, `device` and `locate`.
        progress: see `train_heads`.
        device: see `train_heads`.
        locate: see `train_heads`.

    Raises:
        ValueError: an impossible recipe or option, or a checkpoint of another recipe.
    """
    if recipe is None:
        recipe = RECIPES / (f"{kind}.toml" if model is None else f"{kind}-any.toml")
    if output is None:
        named = Path("results") / "adapters" / f"{Path(model or 'zoo').name}-{kind}"
        output = zoo_output() / kind if model is None else named
    tables = customised(read_recipe(recipe), model=model, data=data, num_steps=num_steps)
    tables = with_settings(tables, settings)
    train_heads(tables, output, resume=resume, progress=progress, device=device, locate=locate)
    return output


def train_heads(
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
        tables: a recipe, as in ``training/recipes/medusa.toml``.
        output: folder of the heads; ``output/.training`` holds resumable state.
        resume: continue from the last checkpoint; False starts over (sampled text is kept).
        progress: ``auto``, ``rich``, ``plain`` or ``none``.
        device: a torch device.
        stop_after_s: stop early (after a checkpoint) once this many seconds of training passed.
        locate: where a model of the recipe lies, by what the recipe calls it.

    Raises:
        ValueError: an impossible recipe, or a checkpoint of another recipe.
    """
    keep_memory()
    recipe, state = HeadsRecipe.of(tables), output / ".training"
    deadline = None if stop_after_s is None else time.monotonic() + stop_after_s
    state.mkdir(parents=True, exist_ok=True)
    with Reporter(progress, "heads", state / LOG, "tokens") as reporter:
        job, base = build_job(recipe, output, device_of(device), reporter, locate)
        if not resume:  # only now: an impossible recipe leaves the old run alone
            for name in (CHECKPOINT, LOG):
                (state / name).unlink(missing_ok=True)
        run = recipe.run
        loop = Loop(
            job,
            [torch.optim.AdamW(job.heads.parameters(), lr=run.adamw_lr, betas=(0.9, 0.95))],
            Schedule(num_steps=run.num_steps, warmup_steps=run.warmup_steps, decay=run.decay),
            state / CHECKPOINT,
            fingerprint_of(recipe.decisive(), base["weights_sha256"], job.source.facts),
            reporter,
            eval_steps=run.eval_steps,
            checkpoint_minutes=run.checkpoint_minutes,
        )
        if loop.train(deadline):
            job.export(output, base)
            shutil.copyfile(state / LOG, output / "training_log.jsonl")
    return loop.progress


def build_job(
    recipe: HeadsRecipe, output: Path, device: torch.device, reporter: Reporter, locate: Locate
) -> tuple[HiddenJob, dict[str, Any]]:
    """The job of a recipe, and what is known of its target (raises as `train_heads`)."""
    path, dtype = located(recipe.model.path, locate), getattr(torch, recipe.model.dtype)
    module = open_checkpoint(path, "AutoModelForCausalLM", dtype=dtype).to(device)
    target = HFModel(module, grouped=False)
    if not target.architecture.reads_hidden:
        raise ValueError(
            f"{type(module).__name__} does more with its last hidden state than its head; heads "
            "cannot be trained for it"
        )
    heads = _fresh(recipe, module.get_output_embeddings().weight.shape[1]).to(device)

    def make(source: Source) -> HiddenJob:
        return _JOBS[heads.variant](module, heads, source, recipe.run, reporter)

    rehearse(target, heads, make)
    source = source_of(
        recipe.data,
        tokenizer=open_checkpoint(path, "AutoTokenizer"),
        max_length=target.max_length,
        folder=output / ".training",
        teacher=Teacher(
            name=weights_sha256(path) or path,
            open=lambda: HFModel.load(path, dtype=torch.float32, device=device),
        ),
    )
    base = {"architecture": type(module).__name__, "weights_sha256": weights_sha256(path)}
    return make(source), base


_JOBS: Mapping[HeadsVariant, type[HiddenJob]] = {
    "medusa": HeadsJob,
    "eagle": LayerJob,
    "exit": ExitJob,
}


def _fresh(recipe: HeadsRecipe, width: int) -> HiddenAdapter:
    """What a recipe trains, for a model of so wide a state."""
    of_width: dict[str, Any] = {"layers": {}, "width": width, "code": "constant"}
    if (layer := recipe.layer) is not None:
        config = AdapterConfig(
            variant="eagle",
            num_slots=layer.unroll,
            rank=layer.rank,
            num_heads=layer.num_heads,
            **of_width,
        )
        return DraftLayer(config, layer.seed)
    if (leaving := recipe.exit) is not None:
        config = AdapterConfig(
            variant="exit",
            num_slots=1,
            rank=leaving.rank,
            exit_layer=leaving.after,
            **of_width,
        )
        return ExitBlock(config, leaving.seed)
    heads = recipe.heads or HeadsTable()
    config = AdapterConfig(variant="medusa", num_slots=heads.num_heads, rank=heads.rank, **of_width)
    return DraftHeads(config, heads.seed)
