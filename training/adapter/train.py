"""The job that trains an adapter, from one recipe, resumable: ``bench train ptp`` and ``idlm``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from decoders.core.adapter.config import MASKED_VARIANTS, AdapterConfig
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.hf.checkpoint import weights_sha256
from decoders.core.hf.model import HFModel, stop_ids
from training.adapter.blocks import BlockRules
from training.adapter.job import AdapterJob
from training.adapter.lean_job import LeanJob, LeanStudent
from training.adapter.recipe import AdapterRecipe, AdapterTable, BlocksTable
from training.adapter.rehearsal import rehearse
from training.adapter.student import Student, longest_row
from training.adapter.windows import WindowSampling
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

_UNIFORM_SCALE = 0.1
"""First size of the embedding of u, relative to a mask's vector, in the new adapter's scale."""


def train_adapter(
    tables: Mapping[str, Any],
    output: Path,
    *,
    kind: str | None = None,
    **options: Unpack[TrainingOptions],
) -> TrainingProgress:
    """Train the adapter of a recipe, as in ``training/recipes/ptp.toml``; see `train_recipe`.

    A recipe of another `kind` (ptp, refine or isd; None: any) raises `ValueError`.
    """
    recipe = AdapterRecipe.of(tables)
    variant = recipe.adapter.variant
    own = variant if variant in MASKED_VARIANTS else "ptp"
    if kind not in (None, own):
        verb = "ptp" if own == "ptp" else f"idlm --objective {own}"
        raise ValueError(f"the recipe trains {own}; use `bench train {verb}`")
    return train_recipe("adapter", recipe, build_job, output, options)


def build_job(
    recipe: AdapterRecipe,
    output: Path,
    device: torch.device,
    reporter: Reporter,
    locate: Locate = str,
) -> AdapterJob:
    """Return the job of a recipe.

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
    sampling = recipe.sampling
    adapter = _fresh(recipe.adapter, sampling, module).to(device)
    tokenizer = open_checkpoint(taught_by, "AutoTokenizer")
    room, blocks = longest_row(bare.architecture), None
    if recipe.adapter.variant == "refine":
        table = recipe.blocks or BlocksTable()
        blocks = BlockRules(stops=stop_ids(bare, tokenizer), room=room, **table.model_dump())

    @functools.cache
    def student() -> Student:  # it gives the module another attention
        if recipe.run.lean:
            return LeanStudent(module, adapter)
        return Student(module, adapter, gated=recipe.adapter.gated, teacher=teacher)

    def make(source: Source) -> AdapterJob:
        kind, pad = LeanJob if recipe.run.lean else AdapterJob, tokenizer.pad_token_id or 0
        return kind(student(), source, sampling, recipe.run, reporter, pad, blocks)

    rehearse(bare, adapter, make)
    source = source_of(
        recipe.data,
        tokenizer=tokenizer,
        max_length=room,
        folder=output / ".training",
        teacher=Teacher.at(taught_by, device),
    )
    job = make(source)
    job.base = base
    job.fingerprint = fingerprint_of(recipe.decisive(), base["weights_sha256"], source.facts)
    if recipe.run.choose == "best":
        job.best = Best(output / ".training" / BEST)
    return job


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


@torch.no_grad()
def begin_from(adapter: SlotAdapter, initial: SlotAdapter) -> None:
    """Copy what both adapters have: deltas, mask or blank vector, slot numbers and scales.

    An adapter that embeds u begins with the vector of the initial one's masks for every u, plus a
    small part that depends on it. Other layers or another rank raise `ValueError`.
    """
    mine, given = adapter.config, initial.config
    for name in ("layers", "rank", "width", "enter"):
        theirs, own = getattr(given, name), getattr(mine, name)
        if own != theirs:
            values = "" if name == "layers" else f": {theirs}, not {own}"
            raise ValueError(f"adapter.initial has another {name}{values}; it must be the same")
    state = adapter.state_dict()
    for name, value in initial.state_dict().items():
        if name.startswith("lora_b"):
            value = value * (given.scale / mine.scale)
        if name in state and state[name].shape == value.shape:
            state[name].copy_(value)
        elif name in ("numbers", "carried") and name in state:  # more slots begin as the last one
            state[name].copy_(value[torch.arange(len(state[name])).clamp(max=len(value) - 1)])
    net = adapter.embedding.net
    last = net[-1] if isinstance(net, nn.Sequential) else net
    if given.code == "constant" and isinstance(last, nn.Linear):
        last.weight.mul_(_UNIFORM_SCALE)
        last.bias.copy_(initial.embedding.blank)
