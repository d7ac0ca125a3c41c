"""Train adapters of slots and of hidden states, each from one recipe, resumably.

The verbs are ``bench train ptp``, ``idlm``, and those of networks (`NetworkTable`).
Networks on hidden states are trained on a frozen target.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Unpack

import torch
from torch import nn

from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import HiddenAdapter, SlotAdapter
from decoders.core.adapter_config import MASKED_VARIANTS, AdapterConfig
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.checkpoint import is_of_memory, weights_sha256
from decoders.core.hf.model import HFModel, stop_ids
from decoders.core.hf.self_check import self_check
from decoders.core.plugins import network
from decoders.core.products import leave_out_cudnn
from decoders.core.registry import build
from decoders.core.types import DecoderSpec, Sampling
from training.adapter.job import AdapterJob
from training.adapter.lean_job import LeanJob
from training.adapter.recipe import AdapterRecipe
from training.adapter.student import Student, max_row_length
from training.adapter.windows import BlockRules, BlocksTable
from training.heads.job import HiddenJob
from training.heads.recipe import HeadsRecipe
from training.loop import Best, Job, fingerprint
from training.reporter import Reporter, TrainingProgress
from training.run import BEST, JobContext, TrainingOptions, open_checkpoint, train_jobs
from training.text.completions import Teacher
from training.text.data import PoolSource, Row
from training.text.sources import Source, build_source

_Job = tuple[SlotAdapter | HiddenAdapter, Callable[[Source], AdapterJob | HiddenJob]]
"""A fresh adapter, and a function that makes its job from a source."""


def train_adapter(
    tables: Mapping[str, Any],
    output: Path,
    *,
    kind: str | None = None,
    **options: Unpack[TrainingOptions],
) -> None:
    """Train the adapter of a recipe such as ``training/recipes/ptp.toml`` (see `train_jobs`).

    Args:
        tables: tables of an `AdapterRecipe`.
        output: folder of the adapter.
        kind: ptp, refine or isd; a recipe of another kind raises `ValueError`. None: any.
        options: those of `train_jobs`.
    """
    recipe = AdapterRecipe.of(tables)
    variant = recipe.adapter.variant
    expected = variant if variant in MASKED_VARIANTS else "ptp"
    if kind not in (None, expected):
        verb = "ptp" if expected == "ptp" else f"idlm --objective {expected}"
        raise ValueError(f"the recipe trains {expected}; use `bench train {verb}`")
    train_jobs({"adapter": build_job}, recipe, output, options)


def train_heads(
    tables: Mapping[str, Any], output: Path, **options: Unpack[TrainingOptions]
) -> None:
    """Train the network of a recipe on hidden states (see `train_jobs`)."""
    train_jobs({"heads": build_job}, HeadsRecipe.of(tables), output, options)


def build_job(recipe: AdapterRecipe | HeadsRecipe, context: JobContext) -> Any:
    """Return the job of a recipe, an `AdapterJob` or a `HiddenJob`.

    Raises:
        ValueError: the model cannot be loaded or trained on, or the data are impossible.
    """
    output, device, reporter, locate = context

    def open_model(path: str) -> Any:
        dtype = getattr(torch, recipe.model.dtype)
        return open_checkpoint(path, "AutoModelForCausalLM", dtype=dtype).to(device)

    leave_out_cudnn(device)
    path = taught_by = locate(recipe.model.path)
    model, state = HFModel(open_model(path), in_place=False), output / ".training"
    base = {"architecture": type(model.module).__name__, "weights_sha256": weights_sha256(path)}
    if isinstance(recipe, HeadsRecipe):
        room, tokenizer = model.max_length, open_checkpoint(path, "AutoTokenizer")
        adapter, make = _begin_heads(recipe, model, reporter)
    else:
        room, teacher = max_row_length(model.architecture), None
        if recipe.model.teacher is not None:
            taught_by = locate(recipe.model.teacher)
            teacher, base["teacher_sha256"] = open_model(taught_by), weights_sha256(taught_by)
        tokenizer = open_checkpoint(taught_by, "AutoTokenizer")
        adapter, make = _begin_slots(recipe, model, tokenizer, teacher, reporter)
    rehearse(model, adapter, make)
    source = build_source(
        recipe.data,
        tokenizer=tokenizer,
        max_length=room,
        folder=state,
        teacher=Teacher.at(taught_by, device, reporter.shown),
        tempered=isinstance(adapter, HiddenAdapter) and not adapter.masked,
    )
    job = make(source)
    job.base = base
    job.fingerprint = fingerprint(recipe.decisive(), base["weights_sha256"], source.digest)
    if recipe.run.choose == "best":
        job.best = Best(state / BEST)
    return job


def _begin_slots(
    recipe: AdapterRecipe, model: HFModel, tokenizer: Any, teacher: Any, reporter: Reporter
) -> _Job:
    module, run, blocks = model.module, recipe.run, None
    table, sampling, tokens = recipe.adapter, recipe.sampling, module.get_input_embeddings().weight
    config = AdapterConfig(
        layers=layer_shapes(module, table.enter),
        width=tokens.shape[1],
        temperatures=sampling.temperatures,
        top_ps=sampling.top_ps,
        top_k=sampling.top_k,
        greedy=sampling.greedy > 0,
        **table.model_dump(exclude={"seed", "initial", "initial_scale"}),
    )
    adapter = SlotAdapter(config, table.seed)
    adapter.embedding.match(tokens * table.initial_scale)
    if table.initial is not None:
        copy_common_weights(adapter, SlotAdapter.load(table.initial))
    adapter.to(module.device)
    if table.variant == "refine":
        room, rules = max_row_length(model.architecture), recipe.blocks or BlocksTable()
        blocks = BlockRules(stops=stop_ids(model, tokenizer), room=room, **rules.model_dump())

    # made late, because the job joins the module's weights or replaces its attention
    student = functools.cache(lambda: Student(module, adapter, teacher=teacher))

    def make(source: Source) -> AdapterJob:
        kind, pad = LeanJob if run.lean else AdapterJob, tokenizer.pad_token_id or 0
        return kind(student(), source, sampling, run, reporter, pad, blocks)

    return adapter, make


def _begin_heads(recipe: HeadsRecipe, model: HFModel, reporter: Reporter) -> _Job:
    module = model.module
    if not model.architecture.reads_hidden:
        raise ValueError(
            f"{type(module).__name__} computes its logits by more than its head; heads "
            "cannot be trained for it"
        )
    num_words, width = module.get_output_embeddings().weight.shape
    table: Any = recipe.network
    try:
        kind, job = network(table.network), resolve_name(table.job)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{table.job} of [{table.name}] cannot be imported: {error}") from error
    sizes = {"code": "constant", **table.fields(num_words)}
    if (words := sizes.get("num_words", 0)) > num_words:
        raise ValueError(
            f"{table.name}.words is {words}; the model has {num_words} words: give fewer, or 0"
        )
    recipe.run.refuse_unread(job.unread, f"`bench train {table.verb}`")
    config = AdapterConfig(variant=table.network, layers={}, width=width, **sizes)
    heads = kind(config, getattr(table, "seed", 0))
    if initial := getattr(table, "initial", None):
        weights = kind.load(initial)
        if replace(weights.config, base={}, measured={}) != config:
            raise ValueError(f"{table.name}.initial {initial} has other sizes than [{table.name}]")
        heads.load_state_dict(weights.state_dict())
    return heads.to(module.device), lambda source: job(module, heads, source, recipe.run, reporter)


@torch.no_grad()
def copy_common_weights(adapter: SlotAdapter, initial: SlotAdapter) -> None:
    """Copy the weights that both adapters have: deltas, mask or blank vector, slot numbers, scales.

    If only the new adapter embeds u, its embedding begins as the initial adapter's mask vector plus
    a small part that depends on u. Other sizes raise `ValueError`.
    """
    for name in ("layers", "rank", "alpha", "width", "num_slots", "enter"):
        old, new = getattr(initial.config, name), getattr(adapter.config, name)
        if new != old:
            values = "" if name == "layers" else f": {old}, not {new}"
            raise ValueError(f"adapter.initial has another {name}{values}; it must be the same")
    state = adapter.state_dict()
    for name, value in initial.state_dict().items():
        if name in state and state[name].shape == value.shape:
            state[name].copy_(value)
    net = adapter.embedding.net
    last = net[-1] if isinstance(net, nn.Sequential) else net
    if initial.config.code == "constant" and isinstance(last, nn.Linear):
        last.weight.mul_(0.1)
        last.bias.copy_(initial.embedding.blank)


def rehearse(
    model: HFModel, adapter: SlotAdapter | HiddenAdapter, make: Callable[[Source], Job]
) -> None:
    """Check the model, decode with a fresh adapter, and run a step of its job without an update.

    Models that run incorrectly, or cannot decode with or train the adapter, raise `ValueError`.
    """
    self_check(model)
    name, variant, attached = type(model.module).__name__, adapter.config.variant, "rehearsal"
    with _refusing(f"{name} cannot take a {variant} adapter", passing=ValueError):
        model.attach(attached, adapter)
    texts = ([token % model.vocab_size for token in range(n, n + 8)] for n in range(3, 19))
    rows = (Row(ids, [False, *[True] * 7], temperature=1.0) for ids in texts)
    # of kind completions, which every job accepts
    source = PoolSource(rows, kind="completions", name=attached, rows_per_step=1, seed=0)
    prompts = [row.ids[:length] for row in source.rows(0) for length in (3, 5)]
    models, sampling = Models(target=model), Sampling(max_new_tokens=4)
    decoder_name = {"o-ptp": "ptp", "c-ptp": "ptp", "refine": "idlm"}.get(variant, variant)
    decoder = build(DecoderSpec(name=decoder_name, options={"adapter": attached}))
    with _refusing(f"{name} decodes with no {variant} adapter"):
        for batch_size in (1, 2):
            for outcome in Scheduler(decoder, models, sampling, batch_size).run(prompts):
                if isinstance(outcome, Exception):
                    raise outcome
    job = make(source)
    with _refusing(f"{name} trains no {variant} adapter"):
        for loss, _, _ in job.pieces(TrainingProgress()):
            loss.backward()  # type: ignore[no-untyped-call]
        job.trained.zero_grad(set_to_none=True)


@contextmanager
def _refusing(subject: str, passing: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Turn errors into a one-line `ValueError`, except memory errors and those in `passing`."""
    try:
        yield
    except passing:
        raise
    except Exception as error:
        if is_of_memory(error):
            raise
        reason = textwrap.shorten(str(error), 100, placeholder=" …") or type(error).__name__
        raise ValueError(f"{subject} ({reason}); use another kind, see docs/running.md") from error
