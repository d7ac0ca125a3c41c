"""Adapters of a run: where they lie, what is recorded of them, and what they were not trained for.

An adapter is trained on one base model, for a range of sampling laws. Elsewhere it still runs: its
proposals get worse, which is worth a warning and no error. No torch at import time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config import ZOO
from bench.env import ROOT
from bench.errors import BenchError, Exit

if TYPE_CHECKING:
    from decoders.core.decoder import Decoder
    from decoders.core.slots import SlotAdapter, Variant

TRAINERS: Mapping[Variant, str] = {
    "o-ptp": "bench train ptp",
    "c-ptp": "bench train ptp",
    "refine": "bench train idlm --objective refine",
    "isd": "bench train idlm --objective isd",
}
"""The command that trains an adapter of each variant."""
MAX_TOP_P_GAP = 0.05
"""A nucleus this near to one of training is as good as trained."""


def embedded_adapters() -> tuple[str, ...]:
    """Names of the adapters that lie in ``zoo/``, each in the folder of its name."""
    return tuple(sorted(file.parent.name for file in (ROOT / "zoo").glob("*/adapter.json")))


def adapter_folder(name: str, source: str) -> Path:
    """Where an adapter lies; ``zoo`` is the embedded one (errors: `BenchError`, exit 5)."""
    folder = ROOT / "zoo" / name if source == ZOO else Path(source).expanduser()
    if folder.is_dir():
        return folder
    if source == ZOO:
        line = f"the embedded adapter is missing (zoo/{name}); {how_to_get(name)}"
    else:
        line = f"adapter {name!r}: there is no folder {source!r}; give one that holds adapter.json"
    raise BenchError(line, Exit.UNAVAILABLE)


def how_to_get(name: str, decoder: Decoder | None = None) -> str:
    """The end of a line about an adapter that is not there, and that `decoder` asks for."""
    train = ""
    if decoder is not None and decoder.variants:
        train = f", or train one of the {decoder.adapter_of} with "
        train += f"`{TRAINERS[decoder.variants[0]]}`"
    return f"pass --adapter {name}=PATH{train}"


def load_adapter(name: str, folder: Path) -> SlotAdapter:
    """Read an adapter's folder (errors: `BenchError`, exit 5, where it cannot be read)."""
    from decoders.core.slots import SlotAdapter

    try:
        return SlotAdapter.load(folder)
    except (ValueError, OSError) as error:
        line = str(error).removeprefix("adapter ")
        raise BenchError(f"adapter {name!r}: {line}", Exit.UNAVAILABLE) from error


def adapter_facts(adapter: SlotAdapter, folder: Path, models: Sequence[str]) -> dict[str, Any]:
    """What a run records of an adapter that is attached to `models` (``target``, ``draft``)."""
    from decoders.core.checkpoint import weights_sha256

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


def training_warnings(
    config: Mapping[str, Any], models: Mapping[str, Mapping[str, Any] | None]
) -> tuple[str, ...]:
    """One line for every adapter that a run uses outside of what it was trained for.

    Args:
        config: of the run: ``temperature``, ``top_p`` and ``top_k``.
        models: facts as in env.json: ``target``, ``draft``, and ``adapters`` by name.
    """
    lines = []
    for name, facts in (models.get("adapters") or {}).items():
        found = [*_other_law(config, facts), *_other_base(facts, models)]
        if found:
            lines.append(
                f"adapter {name!r} is used outside its training ({'; '.join(found)}): "
                "its proposals may be worse"
            )
    return tuple(lines)


def _other_law(config: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """In what the run's sampling law is none of the adapter's (masked slots know of no law)."""
    if facts.get("masked"):
        return []
    temperature, top_p, top_k = config["temperature"], config["top_p"], config["top_k"]
    if temperature == 0:
        return [] if facts["greedy"] else ["temperature 0, and it saw no greedy text"]
    found = []
    low, high = facts["temperatures"]
    if not low <= temperature <= high:
        found.append(f"temperature {temperature:g}, trained {low:g} to {high:g}")
    if all(abs(top_p - trained) > MAX_TOP_P_GAP + 1e-9 for trained in facts["top_ps"]):
        known = ", ".join(f"{trained:g}" for trained in facts["top_ps"])
        found.append(f"top-p {top_p:g}, trained {known}")
    if top_k != facts["top_k"]:
        found.append(f"top-k {top_k}, trained {facts['top_k']}")
    return found


def _other_base(facts: Mapping[str, Any], models: Mapping[str, Any]) -> list[str]:
    """The models it is attached to that are not the one it was trained on, where that is known."""
    base = facts["base_weights_sha256"]
    hashes = {role: (models.get(role) or {}).get("weights_sha256") for role in facts["models"]}
    return [
        f"the {role} has other weights"
        for role, found in hashes.items()
        if base is not None and found is not None and found != base
    ]
