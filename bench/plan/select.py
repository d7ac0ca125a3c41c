"""The decoders of a run, decided before any weights are loaded.

Options that are ``auto`` become numbers of a cost folder: `row_cost` is a row's share of a call by
the folder's curve, at the run's batch size and the shortest context measured; `k` is the best
number of drafts, by ``bench cost --run RUN`` (`bench.report.texts.explain.best_drafts`). The stored
configuration has the numbers: a run decodes with them, whatever becomes of the folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decoders as built_in
from bench.errors import UsageError
from bench.plan.adapters import embedded_adapters, embedded_draft, how_to_get, shelf_of
from bench.records.cost import read_choices
from bench.records.plan import BASELINE, SECOND_BASELINE
from bench.settings.config import RunConfig, as_text, spec_of
from decoders.core import registry
from decoders.core.decoder import Decoder
from decoders.core.types import DecoderSpec

if TYPE_CHECKING:
    from bench.stats.cost_curve import Cost

AUTO = "auto"
NO_PRIMARY = "none"
"""The primary comparison where every one is exploratory."""
_MEASURED = ("row_cost", "k")
Note = Callable[[str], None]


def choose_decoders(config: RunConfig, note: Note) -> RunConfig:
    """Return the configuration with draft, adapters and decoders decided, the baseline first.

    Without named decoders all built-in ones run by default (`Decoder.by_default`) whose needs are
    met, and what they showcase; `note` is told of the others. All options are filled in, and
    adapters that no decoder takes are left out: the stored configuration says what ran.

    Raises:
        UsageError: an unknown decoder or option, an unmet need of a named one, a given adapter
            that none of them takes, a primary one that is not among them, ``auto`` without a cost
            folder that knows.
        InvalidRunError: the cost folder is damaged.
    """
    given = tuple(config.adapters)
    config = _with_embedded(resolve_auto(config, note))
    named = config.decoders is not None
    cells = dict(config.decoders) if config.decoders else built_in_cells()
    if SECOND_BASELINE in cells:
        raise UsageError(f"{SECOND_BASELINE!r} is the baseline's second arm; choose another label")
    chosen: dict[str, dict[str, str]] = {}
    decoders: list[Decoder] = []
    for cell, options in {BASELINE: cells.pop(BASELINE, {}), **cells}.items():
        decoder = build_decoder(cell, options)
        if cell == BASELINE and ("numerics" in options or decoder != build_decoder(cell, {})):
            given_options = ":".join(f"{key}={value}" for key, value in options.items())
            raise UsageError(
                f"the baseline {cell!r} takes no option: all speed-ups are over it as it is; "
                f"measure that beside it, under a label: {cell}@LABEL:{given_options}",
            )
        if lacks := _unmet_need(decoder, config):
            if named:
                raise UsageError(f"decoder {cell!r} {lacks}")
            note(f"{cell} is skipped: it {lacks}")
            continue
        for key, value in options.items():
            if value and (today := decoder.renamed.get(key, {}).get(value)):
                note(f"{cell}: {key}={value} is called {key}={today} today")
        filled = options_of(decoder) | {k: v for k, v in options.items() if k == "numerics"}
        chosen[cell] = {key: as_text(value) for key, value in filled.items() if value is not None}
        decoders.append(decoder)
    taken = {part.adapter_name for decoder in decoders for part in decoder.parts}
    for name in given:
        if name not in taken:
            line = f"none of {', '.join(chosen)} takes an adapter named {name!r}"
            raise UsageError(f"--adapter {name}=…: {line}")
    used = {name: source for name, source in config.adapters.items() if name in taken}
    rivals = [cell for cell in chosen if cell != BASELINE]
    primary = config.primary or (rivals[0] if named and rivals else NO_PRIMARY)
    if primary not in (*rivals, NO_PRIMARY):
        raise UsageError(f"--primary {primary}: allowed are {', '.join([*rivals, NO_PRIMARY])}")
    return config.with_values(decoders=chosen, adapters=used, primary=primary)


def resolve_auto(config: RunConfig, note: Note) -> RunConfig:
    """Return the configuration with numbers in place of ``auto`` (raises as `choose_decoders`)."""
    cost = None
    if config.cost is not None:
        from bench.stats.cost_curve import load_cost

        cost = load_cost(Path(config.cost))
    cells = {cell: dict(options) for cell, options in (config.decoders or {}).items()}
    for cell, options in cells.items():
        for name in _MEASURED:
            if options.get(name) == AUTO:
                options[name] = _measured(cell, name, cost, config.batch_size)
                note(f"{cell}: {name}=auto is {options[name]}")
    return config.with_values(decoders=cells) if cells else config


def _measured(cell: str, name: str, cost: Cost | None, batch_size: int) -> str:
    if cost is None:
        line = f"{cell}: {name}=auto needs a measured curve; give --cost a folder of `bench cost`"
        raise UsageError(line)
    if name == "row_cost":
        context = min(each.context for each in cost.curve.points)
        return f"{cost.curve.row_cost(context, batch_size):.4g}"
    decoder, chosen = cell.split("@")[0], read_choices(cost.path)
    number = chosen.get(cell, chosen.get(decoder))
    if number is None:
        raise UsageError(
            f"{cell}: {name}=auto is not known in {cost.path}; `bench cost --run RUN` finds it of "
            f"a run with {decoder} in it"
        )
    return str(number)


def _with_embedded(config: RunConfig) -> RunConfig:
    shelf = shelf_of(config.model)
    if shelf is None:
        return config
    adapters = dict.fromkeys(embedded_adapters(shelf), shelf) | config.adapters
    return config.with_values(draft=config.draft or embedded_draft(shelf), adapters=adapters)


def build_decoder(cell: str, options: Mapping[str, str]) -> Decoder:
    """Return the decoder of a cell, whose `numerics` is no option of it (`UsageError`)."""
    own = {key: value for key, value in options.items() if key != "numerics"}
    try:
        return registry.build(spec_of(cell, own))
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error


def decoders_of(config: RunConfig) -> dict[str, Decoder]:
    """Return the decoders of a configuration by cell (`UsageError`)."""
    return {cell: build_decoder(cell, options) for cell, options in (config.decoders or {}).items()}


def _unmet_need(decoder: Decoder, config: RunConfig) -> str | None:
    for part in decoder.parts:
        if "draft" in part.needs and config.draft is None:
            return "needs a draft model; pass --draft"
        name = part.adapter_name
        if name is not None and name not in config.adapters:
            return f"needs an adapter named {name!r}; {how_to_get(name, part)}"
    return None


def built_in_cells() -> dict[str, Mapping[str, str]]:
    """Return cells with options: built-in decoders that run by default, and their showcases."""
    folder = Path(str(built_in.__file__)).parent
    cells: dict[str, Mapping[str, str]] = {}
    for name in registry.names():
        if (folder / f"{name}.py").is_file():
            decoder = registry.resolve(DecoderSpec(name=name))
            if decoder.by_default:
                labelled = decoder.showcase.items()
                cells |= {name: {}, **{f"{name}@{label}": chosen for label, chosen in labelled}}
    return cells


def options_of(decoder: Decoder) -> dict[str, Any]:
    """Return every option of a decoder with its value."""
    return {field.name: getattr(decoder, field.name) for field in dataclasses.fields(decoder)}
