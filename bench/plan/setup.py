"""Everything a run works with, opened once: models, tokenizer, decoders, sampling, clock.

`open_setup` loads what a configuration names; `assemble` puts given models together, which is
how tests run without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench.errors import UnavailableError, UsageError, room_for
from bench.machine.clock import Clock, WallClock
from bench.machine.deadline import TimeLimit, default_limit_s
from bench.machine.env import ROOT
from bench.plan.adapters import adapter_facts, adapter_folder, is_shelf, load_adapter
from bench.plan.checked import checked
from bench.plan.named_models import resolve
from bench.plan.numerics import check_decoder, in_tiles, numerics_of, uses_tiles
from bench.plan.placing import check_placing, load_placed
from bench.plan.precision import usual_dtype
from bench.plan.ranks import join_ranks, load_part
from bench.plan.select import adapters_taken, build_decoder, options_of
from bench.records.plan import BASELINE, SECOND_BASELINE, Cell
from bench.records.vocabulary import Codec
from bench.settings.config import FAST, RunConfig, spec_of
from decoders.core.decoder import Decoder, SelfDriven
from decoders.core.engine.models import Models, check_models
from decoders.core.hf.checkpoint import weights_sha256
from decoders.core.types import Sampling

if TYPE_CHECKING:
    from decoders.core.hf.model import HFModel


_SMALLER = "take a smaller --dtype (bfloat16) or model, or another --device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A cell ready to run: its decoder, the models it uses and no others, its limit of time."""

    cell: Cell
    decoder: Decoder
    models: Models
    deadline: TimeLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is open during a run. `arms` maps cells to arms, the baseline first.

    `facts` describes the models (``target``, ``draft``) and the ``adapters`` attached to them by
    name, hashes of their weights included.
    """

    config: RunConfig
    arms: Mapping[str, Arm]
    models: Models
    tokenizer: Codec
    sampling: Sampling
    clock: Clock
    facts: Mapping[str, Mapping[str, Any] | None]

    def arm(self, cell: str) -> Arm:
        """The arm of a cell; the baseline's second arm is the baseline."""
        return self.arms[BASELINE if cell == SECOND_BASELINE else cell]

    def precision(self, cell: str) -> str:
        """How exact a cell's numbers are: ``invariant``, or the dtype they are rounded to."""
        own = self.arm(cell).cell.options.get("numerics")
        if (own or self.config.numerics) == "invariant":
            return "invariant"
        return self.config.dtype or "float32"

    def text(self, tokens: Sequence[int]) -> str:
        """An answer as text: no stop ids, no special tokens, no white space around it."""
        kept = [token for token in tokens if token not in self.sampling.stop_ids]
        return str(self.tokenizer.decode(kept, skip_special_tokens=True)).strip()

    def repeated(self, repeat: int) -> Sampling:
        """The sampling of a repeat: every repeat has a seed of its own, the same for all cells."""
        return replace(self.sampling, seed=self.sampling.seed + repeat)

    @property
    def on_gpu(self) -> bool:
        """Whether the target lives on a CUDA device."""
        return self.models.target.device.type == "cuda"


# ---------------------------------------------------------------- opening


def open_setup(config: RunConfig) -> Setup:
    """Load the models of a configuration that `bench.plan.select.choose_decoders` returned.

    Raises:
        BenchError: for a missing model, adapter or device (exit 5), a draft of another
            vocabulary or an adapter of another model (2), or memory that does not hold them
            (1).
    """
    from decoders.core.hf import model as hf
    from decoders.core.hf.replay import missing_compiler

    check_placing(config)
    tiles_asked = uses_tiles(config)
    device = join_ranks(config, open_device(config.device))
    target_source = checkpoint(config.model, "target")
    dtype = config.dtype or usual_dtype(config, device.type, target_source)
    if config.threads is not None:
        torch.set_num_threads(config.threads)

    if config.compile and device.type == "cpu" and (missing := missing_compiler()):
        raise UnavailableError(f"{missing}; install one, or leave out --compile")

    def load(source: str, role: str) -> hf.HFModel:
        with room_for(f"the weights of {source} in {dtype} on {device}", _SMALLER):
            if config.tensor_parallel > 1:
                return load_part(config, source, role, getattr(torch, dtype), device)
            if config.device_map is not None and role == "target":
                return load_placed(config, source, getattr(torch, dtype))
            return hf.HFModel.load(
                source,
                dtype=getattr(torch, dtype),
                device=device,
                attn_implementation=config.attention,
                compile=config.compile,
                quantized=config.quantize,
            )

    draft_source = checkpoint(config.draft, "draft") if _needs_draft(config) else None
    folders = {name: adapter_folder(name, source) for name, source in config.adapters.items()}
    try:
        target = load(target_source, "target")
        if config.device_map is not None:
            device = target.device  # the draft model goes where tokens and logits are
        tokenizer = hf.load_tokenizer(target_source)
        draft = load(draft_source, "draft") if draft_source else None
    except ValueError as error:
        raise UnavailableError(str(error)) from error
    models, tile = {"fast": Models(target=target, draft=draft)}, None
    if tiles_asked:
        models["invariant"], tile = in_tiles(target, draft, config.tile)
    facts: dict[str, dict[str, Any] | None] = {"target": None, "draft": None}
    for role, source in (("target", target_source), ("draft", draft_source)):
        model: Any = getattr(models[config.numerics or FAST], role)
        if model is not None:
            notes = [*model.notes, *checked(config, model, role)]
            sha256 = weights_sha256(str(source))
            noted = {"notes": notes} if notes else {}
            facts[role] = {**model.facts, "weights_sha256": sha256, **noted}
    facts["adapters"] = _attach(config, folders, models)
    return assemble(
        config.with_values(
            device=str(device),
            dtype=dtype,
            threads=config.threads or torch.get_num_threads(),
            tile=tile,
        ),
        models["fast"],
        tokenizer,
        stop_ids=hf.stop_ids(target, tokenizer),
        clock=WallClock.for_device(str(device)),
        facts=facts,
        invariant=models.get("invariant"),
    )


def _attach(
    config: RunConfig, folders: Mapping[str, Path], models: Mapping[str, Models]
) -> dict[str, Any]:
    """Load every adapter once and attach it to the models it is taken of; facts by name.

    `models` are those of each numerics.
    """
    facts: dict[str, Any] = {}
    cells = config.decoders or {}
    taken = adapters_taken(cells)
    taken_by = {
        how: adapters_taken({c: o for c, o in cells.items() if numerics_of(config, c, o) == how})
        for how in models
    }
    for name, folder in folders.items():
        adapter = load_adapter(name, folder)
        roles = taken.get(name, [])
        using: list[HFModel | None] = [
            getattr(models[how], role) for how in models for role in taken_by[how].get(name, [])
        ]
        try:
            for model in using:
                if model is not None:
                    with room_for(f"adapter {name!r}", _SMALLER):
                        model.attach(name, adapter)
        except ValueError as error:
            raise UsageError(f"adapter {name!r}: {error}") from error
        facts[name] = adapter_facts(adapter, folder, roles)
    return facts


def open_device(name: str | None) -> torch.device:
    """The device named, by default CUDA where there is one.

    Raises:
        BenchError: for a name that is none (exit 2), or a device that is not there (5).
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        line = f"{name!r} is no device; use cpu, cuda or cuda:N"
        raise UsageError(line) from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported; use cpu or cuda")
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        line = f"device {name!r} is not there: {num_gpus} CUDA devices found; use --device cpu"
        raise UnavailableError(line)
    return device


def assemble(
    config: RunConfig,
    models: Models,
    tokenizer: Codec,
    *,
    stop_ids: frozenset[int],
    clock: Clock,
    facts: Mapping[str, Mapping[str, Any] | None],
    invariant: Models | None = None,
) -> Setup:
    """A setup of given models; `config` names its decoders (raises as `open_setup`).

    `invariant` are the models in row-invariant numerics; None: the given ones are.
    """
    sampling = Sampling(
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens,
        stop_ids=frozenset() if config.fixed_length else stop_ids,
        seed=config.seed,
    )
    limit_s = config.timeout or default_limit_s(config.max_new_tokens)
    _check_reuse(config)
    by_numerics = {"fast": models, "invariant": invariant or models}
    arms = {
        cell: _arm(
            cell,
            options,
            by_numerics,
            numerics_of(config, cell, options),
            sampling,
            TimeLimit(limit_s),
        )
        for cell, options in (config.decoders or {}).items()
    }
    return Setup(
        config=config,
        arms=arms,
        models=by_numerics[config.numerics or FAST],
        tokenizer=tokenizer,
        sampling=sampling,
        clock=clock,
        facts=facts,
    )


def _check_reuse(config: RunConfig) -> None:
    """`BenchError` (exit 2) where a cache of the turn before cannot be had by all decoders."""
    if not config.reuse_prefix:
        return
    if config.batch_size > 1:
        line = "--reuse-prefix answers one prompt at a time; leave it out, or --batch-size"
        raise UsageError(line)
    for cell, options in (config.decoders or {}).items():
        if isinstance(build_decoder(cell, options), SelfDriven):
            line = (
                f"decoder {cell!r} runs a loop with a cache of its own, which keeps nothing of the "
                "turn before; leave it out, or --reuse-prefix"
            )
            raise UsageError(line)


def _arm(
    cell: str,
    options: Mapping[str, str],
    by_numerics: Mapping[str, Models],
    numerics: str,
    sampling: Sampling,
    deadline: TimeLimit,
) -> Arm:
    decoder, models = build_decoder(cell, options), by_numerics[numerics]
    check_decoder(cell, decoder, numerics)
    used = models if "draft" in decoder.needs else Models(target=models.target)
    try:
        check_models(decoder, used, cell)
    except ValueError as error:
        raise UsageError(str(error)) from error
    spec = spec_of(cell, options)
    return Arm(
        cell=Cell(
            cell=cell,
            name=spec.name,
            label=spec.label,
            options=options_of(decoder) | {k: v for k, v in options.items() if k == "numerics"},
            lossless=decoder.lossless,
            comparable_to_ar=decoder.comparable_to_ar(sampling),
        ),
        decoder=decoder,
        models=used,
        deadline=deadline,
    )


def checkpoint(source: str | None, role: str) -> str:
    """Where a model lies; a shelf holds the embedded one.

    A named model and a ``.gguf`` file are converted if they are not yet (`named_models.resolve`).

    Raises:
        BenchError: exit 5.
    """
    assert source is not None, f"no {role} was chosen"
    if not is_shelf(source):
        return resolve(source)
    folder = ROOT / source / role
    if not folder.is_dir():
        raise UnavailableError(
            f"the embedded {role} is missing ({source}/{role}); train it with `bench train zoo`, "
            "or pass --model",
        )
    return str(folder)


def _needs_draft(config: RunConfig) -> bool:
    decoders = [build_decoder(cell, options) for cell, options in (config.decoders or {}).items()]
    return any("draft" in decoder.needs for decoder in decoders)
