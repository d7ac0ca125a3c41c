"""Targets whose layers are placed on several devices: which map, and what does not go with it.

No torch at import time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UsageError
from bench.settings.config import RunConfig

if TYPE_CHECKING:
    import torch

    from decoders.core.hf.model import HFModel

_EXAMPLE = '{"model.embed_tokens": 0, "model.layers.0": "cpu", …}'


def check_placing(config: RunConfig) -> None:
    """`BenchError` (exit 2) where an option does not go with ``--device-map``."""
    if config.device_map is None:
        return
    others = (
        ("--compile", config.compile),
        ("--quantize", config.quantize),
        ("--tensor-parallel", config.tensor_parallel > 1),
    )
    for option, given in others:
        if given:
            line = f"{option} does not go with --device-map; leave one of them out"
            raise UsageError(line)


def load_placed(config: RunConfig, source: str, dtype: torch.dtype) -> HFModel:
    """The target, placed as a configuration says (raises as `HFModel.load`).

    Raises:
        BenchError: the file of places cannot be read (exit 2).
    """
    from decoders.core.hf.model import HFModel

    assert config.device_map is not None
    return HFModel.load(
        source,
        device_map=_places(config.device_map),
        dtype=dtype,
        attn_implementation=config.attention,
    )


def _places(given: str) -> str | dict[str, str | int]:
    """A map by its name, or what its file says."""
    if not given.endswith(".json"):
        return given
    path = Path(given).expanduser()
    try:
        places = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        line = f"--device-map {given}: {error.strerror}; give a name or a file that is there"
        raise UsageError(line) from error
    except (ValueError, RecursionError) as error:
        line = f"--device-map {given} is no JSON ({error}); write {_EXAMPLE}"
        raise UsageError(line) from error
    kinds = {type(place) for place in places.values()} if isinstance(places, dict) else {None}
    if not places or not kinds <= {str, int}:
        line = f"--device-map {given} names no places of parts; write {_EXAMPLE}"
        raise UsageError(line)
    return dict(places)
