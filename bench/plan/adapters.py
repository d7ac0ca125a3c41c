"""Adapters of a run: where they lie, what is recorded of them, and what they were not trained for.

An adapter is trained on one base model, for a range of sampling settings (temperature, top-p).
Elsewhere it still
runs: its proposals get worse, which is worth a warning and no error. No torch at import time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UnavailableError
from bench.machine.env import ROOT
from bench.plan.named_models import named
from bench.settings.config import ZOO

if TYPE_CHECKING:
    from decoders.core.adapter.config import Variant
    from decoders.core.adapter.module import HiddenAdapter, SlotAdapter
    from decoders.core.decoder import Decoder

_TRAINERS: Mapping[Variant, str] = {
    "o-ptp": "bench train ptp",
    "c-ptp": "bench train ptp",
    "refine": "bench train idlm --objective refine",
    "isd": "bench train idlm --objective isd",
    "medusa": "bench train medusa",
    "eagle": "bench train eagle",
    "exit": "bench train exit",
}
"""The command that trains an adapter of each variant."""


def shelf_of(model: str) -> str | None:
    """What names all that is embedded for a model.

    ``zoo`` for the zoo's own target, ``zoo/NAME`` for a named model; None for all others.
    """
    if model == ZOO:
        return ZOO
    return None if named(model) is None else f"{ZOO}/{model}"


def is_shelf(source: str) -> bool:
    """Whether a source is a `shelf_of` some model."""
    prefix, _, model = source.partition("/")
    return prefix == ZOO and (not model or named(model) is not None) and source != f"{ZOO}/"


def embedded_adapters(shelf: str = ZOO) -> tuple[str, ...]:
    """Names of the adapters that lie on a shelf, each in the folder of its name."""
    return tuple(sorted(file.parent.name for file in (ROOT / shelf).glob("*/adapter.json")))


def embedded_draft(shelf: str) -> str | None:
    """The shelf itself where it holds a draft model."""
    return shelf if (ROOT / shelf / "draft").is_dir() else None


def adapter_folder(name: str, source: str) -> Path:
    """Where an adapter lies; a shelf holds the embedded one.

    Raises:
        BenchError: exit 5.
    """
    folder = ROOT / source / name if is_shelf(source) else Path(source).expanduser()
    if folder.is_dir():
        return folder
    if is_shelf(source):
        line = f"the embedded adapter is missing ({source}/{name}); {how_to_get(name)}"
    else:
        line = f"adapter {name!r}: there is no folder {source!r}; give one that holds adapter.json"
    raise UnavailableError(line)


def how_to_get(name: str, decoder: Decoder | None = None) -> str:
    """The end of a line about an adapter that is not there, and that `decoder` asks for."""
    train = ""
    if decoder is not None and decoder.variants:
        train = f", or train one of the {decoder.adapter_of} with "
        train += f"`{_TRAINERS[decoder.variants[0]]}`"
    return f"pass --adapter {name}=PATH{train}"


def load_adapter(name: str, folder: Path) -> SlotAdapter | HiddenAdapter:
    """Read an adapter's folder.

    Raises:
        BenchError: exit 5, where it cannot be read.
    """
    from decoders.core.adapter.heads import read_adapter

    try:
        return read_adapter(folder)
    except (ValueError, OSError) as error:
        line = str(error).removeprefix("adapter ")
        raise UnavailableError(f"adapter {name!r}: {line}") from error


def adapter_facts(
    adapter: SlotAdapter | HiddenAdapter, folder: Path, models: Sequence[str]
) -> dict[str, Any]:
    """What a run records of an adapter that is attached to `models` (``target``, ``draft``)."""
    from decoders.core.hf.checkpoint import weights_sha256

    config = adapter.config
    return {
        "variant": config.variant,
        "rank": config.rank,
        "slots": config.num_slots,
        "parameters": adapter.num_parameters,
        "code": config.code,
        "weights_sha256": weights_sha256(folder),
        "models": list(models),
        "temperatures": list(config.temperatures),
        "top_ps": list(config.top_ps),
        "top_k": config.top_k,
        "greedy": config.greedy,
        "masked": config.masked,
        "base_weights_sha256": config.base.get("weights_sha256"),
    }
