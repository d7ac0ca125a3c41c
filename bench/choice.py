"""Which decoders a run measures, decided before any weights are loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import decoders as built_in
from bench.config import ZOO, RunConfig, as_text, spec_of
from bench.env import ROOT
from bench.errors import BenchError, Exit
from bench.plan import BASELINE, SECOND_BASELINE
from decoders.core import registry
from decoders.core.decoder import Decoder

Note = Callable[[str], None]


def choose_decoders(config: RunConfig, note: Note) -> RunConfig:
    """The configuration with its draft and every decoder decided, the baseline first.

    Without named decoders all built-in ones run whose needs are met; one that is left out gives a
    line. Options are filled in, so that the stored configuration says what ran.

    Errors: `BenchError` (exit 2) for an unknown decoder or option, or an unmet need of a named one.
    """
    if config.draft is None and config.is_zoo and (ROOT / "zoo" / "draft").is_dir():
        config = config.with_values(draft=ZOO)
    named = config.decoders is not None
    cells = dict(config.decoders) if config.decoders else {name: {} for name in _built_in_names()}
    if SECOND_BASELINE in cells:
        raise BenchError(
            f"{SECOND_BASELINE!r} is the baseline's second arm; choose another label", 2
        )
    chosen: dict[str, dict[str, str]] = {}
    for cell, options in {BASELINE: cells.pop(BASELINE, {}), **cells}.items():
        decoder = build_decoder(cell, options)
        lacks = unmet_need(decoder, config)
        if lacks and named:
            raise BenchError(f"decoder {cell!r} {lacks}", Exit.USAGE)
        if lacks:
            note(f"{cell} is skipped: it {lacks}")
            continue
        filled = options_of(decoder).items()
        chosen[cell] = {key: as_text(value) for key, value in filled if value is not None}
    if config.adapters and not _takes_adapter(chosen):
        given, names = next(iter(config.adapters)), ", ".join(chosen)
        raise BenchError(f"--adapter {given}=…: none of {names} takes an adapter", Exit.USAGE)
    return config.with_values(decoders=chosen)


def _takes_adapter(cells: Mapping[str, Mapping[str, str]]) -> bool:
    return any("adapter" in build_decoder(cell, cells[cell]).needs for cell in cells)


def build_decoder(cell: str, options: Mapping[str, str]) -> Decoder:
    """The decoder of a cell (errors: `BenchError`, exit 2)."""
    try:
        return registry.build(spec_of(cell, options))
    except (ValueError, ImportError) as error:
        raise BenchError(str(error), Exit.USAGE) from error


def unmet_need(decoder: Decoder, config: RunConfig) -> str | None:
    """What a decoder needs that the configuration does not offer, in words."""
    for need in decoder.needs:
        if need != "draft":
            return f"needs {need!r}, which this version cannot open"
        if config.draft is None:
            return "needs a draft model; pass --draft"
    return None


def _built_in_names() -> tuple[str, ...]:
    folder = Path(str(built_in.__file__)).parent
    return tuple(name for name in registry.names() if (folder / f"{name}.py").is_file())


def options_of(decoder: Decoder) -> dict[str, Any]:
    """Every option of a decoder with its value."""
    return {field.name: getattr(decoder, field.name) for field in dataclasses.fields(decoder)}
