"""Choose the decoders of a run before any weights are loaded.

Costs set to ``auto`` take numbers from a cost folder. `row_cost` is a row's share of a call on the
folder's curve, at the run's batch size and the shortest measured context. `draft_cost` is a draft
call's share, found by ``bench cost --run RUN``
(`bench.extras.cost.explain.draft_costs`). The stored configuration has the numbers, so a run does
not depend on later changes of the folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UsageError, as_error
from bench.machine.env import ROOT
from bench.plan.labels import Note, options_by_label, written
from bench.plan.sources import embedded_adapters, embedded_draft, model_shelf
from bench.plan.sources import named as named_model
from bench.records.plan import BASELINE, SECOND
from bench.registry import extra
from bench.settings.config import FAST, NUMERICS, ZOO, RunConfig, as_text, cell_spec
from decoders.core import registry
from decoders.core.decoder import Decoder, SelfDriven
from decoders.core.engine.models import kind_error, model_names
from decoders.core.hf.checkpoint import is_masked
from decoders.core.types import DecoderSpec

AUTO = "auto"
NO_PRIMARY = "none"
"""The primary comparison of a run whose comparisons are all exploratory."""
_MEASURED = ("row_cost", "draft_cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRun:
    """Hold a configuration and its decoders by cell, baseline first, built once for all uses."""

    config: RunConfig
    decoders: Mapping[str, Decoder]

    def options(self, cell: str) -> Mapping[str, str]:
        """Return the options of a cell as written in the configuration."""
        return (self.config.decoders or {})[cell]

    def numerics(self, cell: str) -> str:
        """Return the numerics of a cell: the cell's own, or the run's."""
        return self.options(cell).get("numerics") or self.config.numerics or FAST

    @property
    def models(self) -> dict[str, str]:
        """Sources of the models that the decoders need, by role (`Models.roles`)."""
        drafts = any("draft" in decoder.needs for decoder in self.decoders.values())
        draft = {"draft": self.config.draft} if drafts and self.config.draft is not None else {}
        named = {f"model:{name}": source for name, source in self.config.models.items()}
        return {"target": self.config.model, **draft, **named}

    def with_values(self, **values: object) -> ResolvedRun:
        """Return the same decoders under a configuration with some values replaced."""
        return dataclasses.replace(self, config=self.config.with_values(**values))


def choose_decoders(config: RunConfig, note: Note) -> ResolvedRun:
    """Return the run with its draft model, adapters and decoders chosen.

    If no decoders are named, the `built_in_cells` whose needs are met run; `note` reports the
    skipped ones. All options are filled in, and adapters that no decoder uses are left out, so that
    the stored configuration says what ran.

    Raises:
        UsageError: an unknown decoder, option or label, an unmet need of a named decoder, an
            adapter or model that no decoder uses, a primary decoder that is not in the run, or
            ``auto`` without a cost folder that has the number.
        InvalidRunError: the cost folder is damaged.
    """
    shelf = model_shelf(config.model)
    embedded = {} if shelf is None else dict.fromkeys(embedded_adapters(shelf), shelf)
    adapters = embedded | config.adapters
    draft = config.draft or (shelf and embedded_draft(shelf))
    named = config.decoders is not None
    masked = is_masked(str(ROOT / shelf / "target") if shelf else config.model)
    cells: dict[str, Mapping[str, str]] = {**resolve_auto(config, note)}
    if not cells:
        cells = {"dllm": {}} if masked else {**built_in_cells(config.model)}
    if second := next((cell for cell in cells if cell.endswith(SECOND)), None):
        raise UsageError(f"{second!r} is a baseline's second arm; choose another label")
    baseline = config.baseline or (next(iter(cells)) if masked else BASELINE)
    cells = cells if masked else {BASELINE: {}, **cells}
    cells = {**({baseline: cells[baseline]} if baseline in cells else {}), **cells}
    all_values: dict[str, dict[str, str]] = {}
    decoders: dict[str, Decoder] = {}
    skipped: dict[str, str] = {}
    for cell, options in cells.items():
        options = options_by_label(cell, options, note)
        decoder = build_decoder(cell, options)
        if cell == BASELINE and ("numerics" in options or decoder != type(decoder)()):
            raise UsageError(
                f"the baseline {cell!r} takes no options, as all speed-ups refer to it; "
                f"measure them under a label as well: {written(f'{cell}@LABEL', options)}"
            )
        if lacks := _unmet_need(decoder, draft, adapters, config, masked):
            if named:
                raise UsageError(f"decoder {cell!r} {lacks}")
            skipped[cell] = f"{cell} is skipped: it {lacks}"
            note(skipped[cell])
            continue
        values = all_options(decoder, options).items()
        all_values[cell] = {key: as_text(value) for key, value in values if value is not None}
        decoders[cell] = decoder
    parts = [part for decoder in decoders.values() for part in decoder.parts]
    names = {part.adapter_name for part in parts if "adapter" in part.needs}
    models = model_names(need for part in parts for need in part.needs)
    unused = [f"--adapter {name}" for name in config.adapters if name not in names]
    unused += [f"--models {name}" for name in config.models if name not in models]
    if unused:
        raise UsageError(f"{unused[0]}=…: none of {', '.join(decoders)} needs it; leave it out")
    used = {name: source for name, source in adapters.items() if name in names}
    if not decoders:
        line = "; ".join([*skipped.values(), "no decoder is left to run"])
        raise UsageError(f"{line}; name one that suits the model by --decoders")
    if baseline not in decoders:
        why = f"{skipped[baseline]}; " if baseline in skipped else ""
        raise UsageError(f"--baseline {baseline}: {why}allowed are {', '.join(decoders)}")
    rivals = [cell for cell in decoders if cell != baseline]
    primary = config.primary or next(filter(rivals.__contains__, config.decoders or ()), NO_PRIMARY)
    if primary not in (*rivals, NO_PRIMARY):
        raise UsageError(f"--primary {primary}: allowed are {', '.join([*rivals, NO_PRIMARY])}")
    roles = {"baseline": baseline, "primary": primary, "draft": draft, "adapters": used}
    config = config.with_values(decoders=all_values, **roles)
    return ResolvedRun(config=config, decoders=decoders)


def stored_decoders(config: RunConfig) -> ResolvedRun:
    """Return the run of a stored configuration, which names its decoders (`UsageError`)."""
    cells = (config.decoders or {}).items()
    return ResolvedRun(config=config, decoders={cell: build_decoder(cell, o) for cell, o in cells})


def resolve_auto(config: RunConfig, note: Note) -> dict[str, dict[str, str]]:
    """Return the named cells, ``auto`` replaced by numbers (raises as `choose_decoders`)."""
    folder = config.cost
    measured = None if folder is None else extra("bench.jobs", "auto-options")(Path(folder))
    cells = {cell: dict(options) for cell, options in (config.decoders or {}).items()}
    for cell, options in cells.items():
        for name in [name for name in _MEASURED if options.get(name) == AUTO]:
            if measured is None:
                line = "needs a measured curve; give --cost a folder of `bench cost`"
                raise UsageError(f"{cell}: {name}={AUTO} {line}")
            options[name] = measured(cell, name, config.batch_size)
            note(f"{cell}: {name}={AUTO} is {options[name]}")
    return cells


def build_decoder(cell: str, options: Mapping[str, str]) -> Decoder:
    """Build a cell's decoder from its options without `numerics` (`UsageError`)."""
    if (numerics := options.get("numerics") or FAST) not in NUMERICS:
        line = f"decoder {cell!r}: numerics is {numerics!r}; allowed: {', '.join(NUMERICS)}"
        raise UsageError(line)
    with as_error(UsageError, (ValueError, ImportError)):
        spec = cell_spec(cell, {k: v for k, v in options.items() if k != "numerics"})
        return registry.build(spec)


def _unmet_need(
    decoder: Decoder,
    draft: str | None,
    adapters: Mapping[str, str],
    config: RunConfig,
    masked: bool,
) -> str | None:
    if config.law is not None and (isinstance(decoder, SelfDriven) or not decoder.lossless):
        return "emits tokens that no call of ours verifies, so that no law of --law holds for them"
    for part in decoder.parts:
        if kind := kind_error(part, masked):
            return kind
        if "draft" in part.needs and draft is None:
            return "needs a draft model; pass --draft"
        names = model_names(part.needs)
        if missing := next((each for each in names if each not in config.models), None):
            return f"needs a model named {missing!r}; pass --models {missing}=PATH"
        name = part.adapter_name
        if "adapter" in part.needs and name is not None and name not in adapters:
            advice = f"pass --adapter {name}=PATH, or train one (`bench train --help`)"
            return f"needs an adapter named {name!r} of the {part.adapter_of}; {advice}"
    return None


def built_in_cells(model: str = ZOO) -> dict[str, Mapping[str, str]]:
    """Return the cells, with options, of a run that names no decoders.

    These are the `decoders` of a named model, else the built-in decoders with
    `Decoder.by_default` and their showcases.
    """
    if (entry := named_model(model)) is not None:
        return {spec.cell: spec.options for spec in registry.parse_specs(entry.decoders)}
    cells: dict[str, Mapping[str, str]] = {}
    for name in registry.built_in():
        decoder = registry.resolve(DecoderSpec(name=name))
        if decoder.by_default:
            showcase = decoder.showcase.items()
            cells |= {name: {}, **{f"{name}@{label}": options for label, options in showcase}}
    return cells


def all_options(decoder: Decoder, options: Mapping[str, str]) -> dict[str, Any]:
    """Return all options of a decoder with their values, and the numerics among `options`."""
    values = {field.name: getattr(decoder, field.name) for field in dataclasses.fields(decoder)}
    return values | {key: value for key, value in options.items() if key == "numerics"}
