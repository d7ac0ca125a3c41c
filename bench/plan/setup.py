"""Open everything that a run uses, once: models, tokenizer, decoders, sampling, clock.

`open_setup` loads what a configuration names; `assemble` combines given models, so that tests run
without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench.errors import UnavailableError, UsageError, as_error, room_for
from bench.machine.clock import Clock
from bench.machine.deadline import TimeLimit, default_limit_s
from bench.machine.env import capture
from bench.plan.checks import SMALLER, check_memory, check_options, read_models
from bench.plan.code import code_hash, load_law, repository_state
from bench.plan.numerics import (
    default_dtype,
    in_tiles,
    open_device,
    pad_rows,
    prepare_process,
    uses_tiles,
)
from bench.plan.past import Memories
from bench.plan.select import ResolvedRun, all_options
from bench.plan.sources import adapter_folder, checkpoint, load_adapter
from bench.plan.template import ChatTemplate, chat_template, template_notes, today
from bench.records.environment import AdapterFacts, Environment, ModelFacts
from bench.records.plan import SECOND, Cell
from bench.settings.config import FAST, RunConfig, cell_spec
from decoders.core import products
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models, check_models, model_names
from decoders.core.hf.checkpoint import refusing_panics, weights_sha256
from decoders.core.registry import package
from decoders.core.types import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from decoders.core.hf.model import HFModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Hold a cell ready to run: its decoder, only the models that it uses, and its time limit."""

    cell: Cell
    decoder: Decoder
    models: Models
    deadline: TimeLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Hold everything that is open during a run.

    `arms` maps cells to arms, the baseline first. `facts` describes the models and adapters,
    including hashes of the weights.
    `stop_ids` end an answer, though a run of a fixed length goes on.
    `compiled` lists the cells that made graphs, with the number of graphs and the seconds spent.
    `past` has the past answers that decoders remember. `padding_price` is the extra cost of padded
    calls on a GPU (`numerics.pad_rows`).
    """

    config: RunConfig
    arms: Mapping[str, Arm]
    models: Models
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    clock: Clock
    facts: ModelFacts
    stop_ids: frozenset[int]
    template: ChatTemplate | None = None
    compiled: tuple[tuple[str, int, float], ...] = ()
    past: Memories = field(default_factory=Memories)
    padding_price: float | None = None

    @property
    def baseline(self) -> str:
        """The cell to which speed-ups refer."""
        return next(iter(self.arms))

    def arm(self, cell: str) -> Arm:
        """Return the arm of a cell (of the baseline's second arm, the baseline's)."""
        return self.arms[cell.removesuffix(SECOND)]

    def precision(self, cell: str) -> str:
        """Return a cell's precision: ``invariant``, or the dtype."""
        numerics = self.arm(cell).cell.options.get("numerics") or self.config.numerics
        return numerics if numerics == "invariant" else self.config.dtype or "float32"

    def text(self, tokens: Sequence[int]) -> str:
        """Return an answer up to its end, as text without special tokens."""
        kept = tokens[: len(tokens) - self.num_behind(tokens)]
        kept = [token for token in kept if token not in self.stop_ids]
        with as_error(UnavailableError), refusing_panics():
            return str(self.tokenizer.decode(kept, skip_special_tokens=True))

    def num_behind(self, tokens: Sequence[int]) -> int:
        """Return the number of tokens that follow the first stop id."""
        ends = (i for i, token in enumerate(tokens, start=1) if token in self.stop_ids)
        return len(tokens) - next(ends, len(tokens))

    def repeated(self, repeat: int) -> Sampling:
        """Return the sampling of a repeat, with the repeat's seed, equal for all cells."""
        return replace(self.sampling, seed=self.sampling.seed + repeat)

    @property
    def device(self) -> str:
        """Name of the target's device."""
        return str(self.models.target.device)

    @property
    def on_gpu(self) -> bool:
        """Return whether the target is on a CUDA device."""
        return self.device.startswith("cuda")

    def environment(self) -> Environment:
        """Return the machine's present state, with these models."""
        dtype = self.config.dtype or "float32"
        env = capture(device=self.device, dtype=dtype, models=self.facts)
        shared = products.rows_and_price(getattr(torch, dtype)) if self.config.compile else None
        rows, price = shared or (None, None)
        if self.on_gpu:
            rows, price = self.config.pad_rows, self.padding_price
        env = replace(env, torch=replace(env.torch, product_rows=rows, product_price=price))
        return replace(env, repository=repository_state(arm.decoder for arm in self.arms.values()))


Opener = Callable[[ResolvedRun], Setup]


def open_setup(run: ResolvedRun) -> Setup:
    """Load the models of a run whose decoders are chosen.

    Raises:
        UnavailableError: a model, adapter or device is missing.
        UsageError: another model has another vocabulary, an adapter is for another model, or
            options contradict each other.
        BenchError: the models do not fit into memory.
    """
    from decoders.core.hf import model as hf

    config = run.config
    check_options(run)
    tiled = uses_tiles(run)
    device = open_device(config.device)
    sources = {role: checkpoint(each, role) for role, each in run.models.items()}
    dtype = config.dtype or default_dtype(config, device.type, sources["target"])
    prepare_process(torch.device("cpu") if config.device_map else device, config.threads)
    tokenizers = read_models(sources)
    check_memory(run, sources, str(device))
    tokenizer = tokenizers["target"]
    assert tokenizer is not None, "only a draft model may lack a tokenizer"
    folders = {name: adapter_folder(name, source) for name, source in config.adapters.items()}
    with as_error(UnavailableError):
        target = _load(config, sources["target"], "target", dtype, device)
        if config.device_map is not None:
            device = target.device  # put other models where tokens and logits are
            prepare_process(device)
        further = {
            role: _load(config, source, role, dtype, device)
            for role, source in sources.items()
            if role != "target"
        }
    models, tile = {"fast": Models.of({"target": target, **further})}, None
    if tiled:
        models["invariant"], tile = in_tiles(models["fast"], config.tile)
    used: dict[str, Any] = {role: models[config.numerics or FAST].roles[role] for role in sources}
    checks = {role: _self_check(config, model, role) for role, model in used.items()}
    padded, price = config.pad_rows, None
    if config.compile and device.type == "cuda":
        padded, price = pad_rows(target, padded, config.batch_size)
    elif padded is not None:
        raise UsageError(f"--pad-rows {padded} is for calls that a GPU captures; leave it out")
    stop_ids = hf.stop_ids(target, tokenizer)
    template = chat_template(tokenizer, config.template_args, config.date or today())
    with as_error(UnavailableError, before="target refused: "), refusing_panics():
        checks["target"] += template_notes(template, tokenizer, stop_ids)
    read = "" if template is None or config.protocol is not None else template.text
    if unread := ", ".join(name for name in config.template_args if name not in read):
        checks["target"].append(f"no prompt depends on {unread} of --template-args")
    facts: dict[str, dict[str, Any]] = {}
    for role, source in sources.items():
        facts[role] = {**used[role].facts, "weights_sha256": weights_sha256(source)}
        if notes := [*used[role].notes, *checks[role]]:
            facts[role]["notes"] = notes
    if template is not None:
        facts["target"]["template"] = template.facts
    for role in further:
        # without a tokenizer, nothing shows that the model's ids are the target's
        if tokenizers[role] is not None:
            for each in models.values():
                other: Any = each.roles[role]
                other.share_vocabulary(each.target.vocab_size)
    named = {name: facts.pop(f"model:{name}") for name in model_names(further)}
    adapters = _attach(run, folders, models)
    return assemble(
        run.with_values(
            date=template.date if template is not None and template.dated else config.date,
            device=str(device),
            dtype=dtype,
            threads=config.threads or torch.get_num_threads(),
            tile=tile,
            pad_rows=padded,
        ),
        models["fast"],
        tokenizer,
        stop_ids=stop_ids,
        template=template,
        clock=Clock.for_device(str(device)),
        facts=ModelFacts(**facts, models=named or None, adapters=adapters),
        invariant=models.get("invariant"),
        padding_price=price,
    )


def _load(config: RunConfig, source: str, role: str, dtype: str, device: torch.device) -> HFModel:
    """Load a model, or the target that is placed on devices (`ValueError`)."""
    from decoders.core.hf.model import HFModel

    how: Any = {"device": device, "compile": bool(config.compile), "quantized": config.quantize}
    if config.device_map is not None and role == "target":
        how = {"device_map": config.device_map}
    with room_for(f"the weights of {source} in {dtype} on {device}", SMALLER):
        return HFModel.load(source, dtype=getattr(torch, dtype), **how)


def _self_check(config: RunConfig, model: HFModel, role: str) -> list[str]:
    """Compare a model with transformers' own forward pass, and note what was not compared."""
    from decoders.core.hf.self_check import self_check

    if not config.self_check:
        return ["not compared with transformers' own forward (--no-self-check)"]
    try:
        return self_check(model)
    except ValueError as error:
        line = f"{role} refused: {error} (--no-self-check measures it anyway)"
        raise UnavailableError(line) from error


def _attach(
    run: ResolvedRun, folders: Mapping[str, Path], models: Mapping[str, Models]
) -> dict[str, AdapterFacts]:
    """Load each adapter, attach the adapter to its cells' models, and return its facts."""
    facts: dict[str, AdapterFacts] = {}
    for name, folder in folders.items():
        adapter = load_adapter(name, folder)
        takers = [
            (run.numerics(cell), part.adapter_of)
            for cell, decoder in run.decoders.items()
            for part in decoder.parts
            if part.adapter_name == name
        ]
        with as_error(UsageError, before=f"adapter {name!r}: "):
            for numerics, role in dict.fromkeys(takers):
                with room_for(f"adapter {name!r}", SMALLER):
                    getattr(models[numerics], role).attach(name, adapter)
        config = adapter.config
        facts[name] = AdapterFacts(
            variant=config.variant,
            rank=config.rank,
            slots=config.num_slots,
            parameters=adapter.num_parameters,
            code=config.code,
            weights_sha256=weights_sha256(folder),
            models=tuple(dict.fromkeys(role for _, role in takers)),
            temperatures=tuple(config.temperatures),
            top_ps=tuple(config.top_ps),
            top_k=config.top_k,
            greedy=config.greedy,
            masked=config.masked,
            base_weights_sha256=config.base.get("weights_sha256"),
        )
    return facts


def assemble(
    run: ResolvedRun,
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    *,
    stop_ids: frozenset[int],
    clock: Clock,
    facts: ModelFacts,
    template: ChatTemplate | None = None,
    invariant: Models | None = None,
    padding_price: float | None = None,
) -> Setup:
    """Return a setup of a run with given models (raises as `open_setup`).

    Args:
        run: the job with its decoders; its configuration becomes the setup's as it is.
        models: the models in fast numerics, of which each decoder gets those that it uses.
        tokenizer: the target's, for all models.
        stop_ids: the target's stop ids, also for a run of a fixed length.
        clock: the clock of all passes.
        facts: facts of the models and adapters, for env.json.
        template: the tokenizer's chat template; None: the tokenizer formats by itself.
        invariant: the models in row-invariant numerics; None: `models` serve these cells, too.
        padding_price: see `Setup`.
    """
    config = run.config
    sampling = Sampling(
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens,
        stop_ids=frozenset() if config.fixed_length else stop_ids,
        seed=config.seed,
        law=None if config.law is None else load_law(config.law, tokenizer),
    )
    check_options(run)
    models = replace(models, tokenizer=tokenizer)
    invariant = models if invariant is None else replace(invariant, tokenizer=tokenizer)
    by_numerics = {"fast": models, "invariant": invariant}
    return Setup(
        config=config,
        arms={cell: _arm(run, cell, by_numerics, sampling) for cell in run.decoders},
        models=by_numerics[config.numerics or FAST],
        tokenizer=tokenizer,
        sampling=sampling,
        clock=clock,
        facts=facts,
        stop_ids=stop_ids,
        template=template,
        padding_price=padding_price,
    )


def _arm(run: ResolvedRun, cell: str, by_numerics: Mapping[str, Models], sampling: Sampling) -> Arm:
    config, decoder, options = run.config, run.decoders[cell], run.options(cell)
    models = by_numerics[run.numerics(cell)]
    used = models.for_decoder(decoder)
    with as_error(UsageError):
        check_models(decoder, used, cell)
    spec = cell_spec(cell, options)
    return Arm(
        cell=Cell(
            cell=cell,
            name=spec.name,
            label=spec.label,
            options=all_options(decoder, options),
            lossless=decoder.lossless,
            comparable_to_ar=decoder.comparable_to_ar(sampling),
            code=code_hash(decoder, config.law),
            package=package(spec.name),
            drafts=bool(decoder.drafts),
            remembers=decoder.remembers,
        ),
        decoder=decoder,
        models=used,
        deadline=TimeLimit(config.timeout or default_limit_s(config.max_new_tokens)),
    )
