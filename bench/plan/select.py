"""Which decoders a run measures, decided before any weights are loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import decoders as built_in
from bench.errors import UsageError
from bench.plan.adapters import embedded_adapters, embedded_draft, how_to_get, shelf_of
from bench.plan.auto import resolved
from bench.records.plan import BASELINE, SECOND_BASELINE
from bench.settings.config import RunConfig, as_text, spec_of
from decoders.core import registry
from decoders.core.decoder import Decoder
from decoders.core.types import DecoderSpec

Note = Callable[[str], None]


def choose_decoders(config: RunConfig, note: Note) -> RunConfig:
    """The configuration with draft, adapters and decoders decided, the baseline first.

    Without named decoders all built-in ones run by default (`Decoder.by_default`) whose needs are
    met, and what they showcase; one whose needs are not gives a line. Options are filled in and
    adapters that no decoder takes are left out, so that the stored configuration says what ran.

    Raises:
        BenchError: exit 2 for an unknown decoder or option, an unmet need of a named one, a given
            adapter that none of them takes, or what `resolved` refuses.
    """
    given = tuple(config.adapters)
    config = _with_embedded(resolved(config, note))
    named = config.decoders is not None
    cells = dict(config.decoders) if config.decoders else built_in_cells()
    if SECOND_BASELINE in cells:
        raise UsageError(f"{SECOND_BASELINE!r} is the baseline's second arm; choose another label")
    chosen: dict[str, dict[str, str]] = {}
    for cell, options in {BASELINE: cells.pop(BASELINE, {}), **cells}.items():
        decoder = build_decoder(cell, options)
        if cell == BASELINE and ("numerics" in options or decoder != build_decoder(cell, {})):
            given_options = ":".join(f"{key}={value}" for key, value in options.items())
            raise UsageError(
                f"the baseline {cell!r} takes no option: all speed-ups are over it as it is; "
                f"measure that beside it, under a label: {cell}@LABEL:{given_options}",
            )
        lacks = _unmet_need(decoder, config)
        if lacks and named:
            raise UsageError(f"decoder {cell!r} {lacks}")
        if lacks:
            note(f"{cell} is skipped: it {lacks}")
            continue
        for key, value in options.items():
            if value and (today := decoder.renamed.get(key, {}).get(value)):
                note(f"{cell}: {key}={value} is called {key}={today} today")
        filled = options_of(decoder).items()
        chosen[cell] = {key: as_text(value) for key, value in filled if value is not None}
        if "numerics" in options:
            chosen[cell]["numerics"] = options["numerics"]
    taken = adapters_taken(chosen)
    for name in given:
        if name not in taken:
            line = f"none of {', '.join(chosen)} takes an adapter named {name!r}"
            raise UsageError(f"--adapter {name}=…: {line}")
    used = {name: source for name, source in config.adapters.items() if name in taken}
    return config.with_values(decoders=chosen, adapters=used)


def _with_embedded(config: RunConfig) -> RunConfig:
    """The configuration with what is embedded for its model, unless others are given."""
    shelf = shelf_of(config.model)
    if shelf is None:
        return config
    adapters = dict.fromkeys(embedded_adapters(shelf), shelf) | config.adapters
    return config.with_values(draft=config.draft or embedded_draft(shelf), adapters=adapters)


def adapters_taken(cells: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Every adapter that decoders take, with the models (``target``, ``draft``) it is taken of."""
    taken: dict[str, list[str]] = {}
    for cell, options in cells.items():
        for part in build_decoder(cell, options).parts:
            if part.adapter_name is not None:
                models = taken.setdefault(part.adapter_name, [])
                models += [part.adapter_of] if part.adapter_of not in models else []
    return taken


def build_decoder(cell: str, options: Mapping[str, str]) -> Decoder:
    """The decoder of a cell; `numerics` is the cell's and no option of it.

    Raises:
        BenchError: exit 2.
    """
    own = {key: value for key, value in options.items() if key != "numerics"}
    try:
        return registry.build(spec_of(cell, own))
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error


def _unmet_need(decoder: Decoder, config: RunConfig) -> str | None:
    """What a decoder needs that the configuration does not offer, in words."""
    for part in decoder.parts:
        if "draft" in part.needs and config.draft is None:
            return "needs a draft model; pass --draft"
        name = part.adapter_name
        if name is not None and name not in config.adapters:
            return f"needs an adapter named {name!r}; {how_to_get(name, part)}"
    return None


def built_in_cells() -> dict[str, Mapping[str, str]]:
    """Cells with their options: built-in decoders that run by default, and what they showcase."""
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
    """Every option of a decoder with its value."""
    return {field.name: getattr(decoder, field.name) for field in dataclasses.fields(decoder)}
