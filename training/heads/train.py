"""The job that trains heads, a draft layer or an exit: ``bench train medusa`` and others.

The target is frozen. Sources: Medusa-1 (Cai et al. 2024, arXiv 2401.10774), EAGLE (Li et al., arXiv
2401.15077), LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch

from decoders.core.adapter.config import AdapterConfig, HeadsVariant
from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.heads import DraftHeads, ExitBlock
from decoders.core.adapter.module import HiddenAdapter
from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.hf.checkpoint import weights_sha256
from decoders.core.hf.model import HFModel
from training.adapter.rehearsal import rehearse
from training.heads.job import ExitJob, HeadsJob, HiddenJob
from training.heads.layer_job import LayerJob
from training.heads.parallel_job import ParallelJob
from training.heads.recipe import HeadsRecipe, HeadsTable
from training.loop import Best, TrainingProgress, fingerprint_of
from training.run import (
    BEST,
    Locate,
    Reporter,
    TrainingOptions,
    located,
    open_checkpoint,
    train_recipe,
)
from training.text.completions import Teacher
from training.text.sources import Source, source_of


def train_heads(
    tables: Mapping[str, Any], output: Path, **options: Unpack[TrainingOptions]
) -> TrainingProgress:
    """Train a recipe's heads, as in ``training/recipes/medusa.toml``; see `train_recipe`."""
    return train_recipe("heads", HeadsRecipe.of(tables), build_job, output, options)


def build_job(
    recipe: HeadsRecipe, output: Path, device: torch.device, reporter: Reporter, locate: Locate
) -> HiddenJob:
    """Return the job of a recipe (raises as `train_recipe`)."""
    path, dtype = located(recipe.model.path, locate), getattr(torch, recipe.model.dtype)
    module = open_checkpoint(path, "AutoModelForCausalLM", dtype=dtype).to(device)
    target = HFModel(module, grouped=False)
    if not target.architecture.reads_hidden:
        raise ValueError(
            f"{type(module).__name__} does more with its last hidden state than its head; heads "
            "cannot be trained for it"
        )
    heads = _fresh(recipe, *module.get_output_embeddings().weight.shape).to(device)

    def make(source: Source) -> HiddenJob:
        return _JOBS[heads.variant](module, heads, source, recipe.run, reporter)

    rehearse(target, heads, make)
    source = source_of(
        recipe.data,
        tokenizer=open_checkpoint(path, "AutoTokenizer"),
        max_length=target.max_length,
        folder=output / ".training",
        teacher=Teacher.at(path, device),
        tempered=heads.variant == "shallow",
    )
    job = make(source)
    job.base = {"architecture": type(module).__name__, "weights_sha256": weights_sha256(path)}
    parts = recipe.decisive(), job.base["weights_sha256"], source.facts
    job.fingerprint = fingerprint_of(*parts)
    if recipe.run.choose == "best":
        job.best = Best(output / ".training" / BEST)
    return job


_JOBS: Mapping[HeadsVariant, type[HiddenJob]] = {
    "medusa": HeadsJob,
    "eagle": LayerJob,
    "exit": ExitJob,
    "shallow": ParallelJob,
}


def _fresh(recipe: HeadsRecipe, num_words: int, width: int) -> HiddenAdapter:
    """Return the fresh adapter of a recipe, for a model of so many words and so wide a state."""
    of_width: dict[str, Any] = {"layers": {}, "width": width, "code": "constant"}
    if (layer := recipe.layer) is not None:
        if layer.words > num_words:
            raise ValueError(
                f"layer.words is {layer.words}; the model has {num_words} words: give fewer, or 0"
            )
        sizes: dict[str, Any] = {
            "num_slots": layer.unroll,
            "rank": layer.rank,
            "num_heads": layer.num_heads,
            "num_words": layer.words,
        }
        return DraftLayer(AdapterConfig(variant="eagle", **sizes, **of_width), layer.seed)
    if (drafter := recipe.drafter) is not None:
        of_width |= drafter.model_dump(exclude={"seed"})
        of_width["num_words"] = min(drafter.num_words, num_words) or num_words
        return ParallelLayers(AdapterConfig(variant="shallow", **of_width), drafter.seed)
    if (leaving := recipe.exit) is not None:
        sizes = {"num_slots": 1, "rank": leaving.rank, "exit_layer": leaving.after}
        return ExitBlock(AdapterConfig(variant="exit", **sizes, **of_width), leaving.seed)
    heads = recipe.heads or HeadsTable()
    config = AdapterConfig(variant="medusa", num_slots=heads.num_heads, rank=heads.rank, **of_width)
    return DraftHeads(config, heads.seed)
