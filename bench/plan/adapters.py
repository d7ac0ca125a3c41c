"""Finds and loads the adapters of a run, and records facts about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UnavailableError, UsageError, as_error
from bench.machine.env import ROOT
from bench.plan.named_models import is_shelf, named
from bench.settings.config import ZOO
from decoders.core.plugins import network

if TYPE_CHECKING:
    from decoders.core.adapter.module import HiddenAdapter, SlotAdapter
    from decoders.core.adapter_config import Variant
    from decoders.core.decoder import Decoder

_TRAINERS: Mapping[Variant, str] = {
    "o-ptp": "bench train ptp",
    "c-ptp": "bench train ptp",
    "refine": "bench train idlm --objective refine",
    "isd": "bench train idlm --objective isd",
}
"""The command that trains an adapter of each variant of slots."""


def model_shelf(model: str) -> str | None:
    """Return a model's shelf of embedded files (``zoo``, ``zoo/NAME`` of a named model) or None."""
    if model == ZOO:
        return ZOO
    return None if named(model) is None else f"{ZOO}/{model}"


def embedded_adapters(shelf: str) -> tuple[str, ...]:
    """Return the names of the adapters on a shelf."""
    return tuple(sorted(file.parent.name for file in (ROOT / shelf).glob("*/adapter.json")))


def embedded_draft(shelf: str) -> str | None:
    """Return the shelf itself if it holds a draft model, else None."""
    return shelf if (ROOT / shelf / "draft").is_dir() else None


def adapter_folder(name: str, source: str) -> Path:
    """Return an adapter's folder, embedded if `source` is a shelf (`UnavailableError`)."""
    embedded = is_shelf(source)
    folder = ROOT / source / name if embedded else Path(source).expanduser()
    if folder.is_dir():
        return folder
    if embedded:
        line = f"the embedded adapter is missing ({source}/{name}); {how_to_get(name)}"
    else:
        line = f"adapter {name!r}: there is no folder {source!r}; give one with adapter.json"
    raise UnavailableError(line)


def how_to_get(name: str, decoder: Decoder | None = None) -> str:
    """Return advice about a missing adapter that `decoder` needs."""
    advice = f"pass --adapter {name}=PATH"
    if decoder is None or not decoder.variants:
        return advice
    variant = decoder.variants[0]
    with as_error(UsageError):
        command = _TRAINERS.get(variant) or network(variant).trainer
    if not command:
        return advice
    return f"{advice}, or train one for the {decoder.adapter_of} with `{command}`"


def load_adapter(name: str, folder: Path) -> SlotAdapter | HiddenAdapter:
    """Read an adapter from its folder (`UnavailableError`)."""
    from decoders.core.adapter.module import read_adapter

    try:
        return read_adapter(folder)
    except (ValueError, OSError) as error:
        reason = str(error).removeprefix("adapter ")
        raise UnavailableError(f"adapter {name!r}: {reason}") from error


def check_adapters(sources: Mapping[str, str], decoders: Iterable[Decoder]) -> None:
    """Refuse an adapter that is missing, or of a variant that its decoder cannot run.

    Weights are not opened.

    Raises:
        UnavailableError: there is no such folder, or it has no readable configuration.
        UsageError: the variant is another one.
    """
    from decoders.core.adapter_config import CONFIG_FILE, WEIGHTS_FILE, AdapterConfig

    parts = [part for decoder in decoders for part in decoder.parts]
    for name, source in sources.items():
        folder = adapter_folder(name, source)
        try:
            text = (folder / CONFIG_FILE).read_text(encoding="utf-8")
            variant = AdapterConfig.from_json(text).variant
            (folder / WEIGHTS_FILE).stat()
        except (OSError, ValueError, TypeError):
            load_adapter(name, folder)  # raises an error that says what is wrong
            raise
        for part in parts:
            if part.adapter_name == name and part.variants and variant not in part.variants:
                raise UsageError(
                    f"adapter {name!r} is of variant {variant}; decoder {part.name!r} needs "
                    f"{' or '.join(part.variants)}"
                )


def adapter_facts(
    adapter: SlotAdapter | HiddenAdapter, folder: Path, models: Sequence[str]
) -> dict[str, Any]:
    """Return the facts to record of an adapter attached to `models` (``target``, ``draft``)."""
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
