"""A causal LM whose layers are placed on several devices, one after another (``device_map``).

transformers and accelerate place the parts of the module and move what passes between them; parts
on the disk, or in memory beside a GPU, are brought to a device for every call. Each layer's keys
and values lie where the layer computes; tokens, masks and logits on the first device.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch

from decoders.core.adapter.gating import decoder_layers
from decoders.core.adapter.hidden import HiddenAdapter
from decoders.core.adapter.module import SlotAdapter
from decoders.core.hf.model import Attention, HFModel


class PlacedModel(HFModel):
    """An `HFModel` whose parts lie on several devices, or on the disk."""

    @classmethod
    def load_placed(
        cls,
        path_or_id: str | Path,
        *,
        device_map: str | Mapping[str, str | int],
        dtype: torch.dtype,
        attn_implementation: Attention | None = None,
    ) -> Self:
        """Load a checkpoint by a map that transformers knows, or by the place of every part.

        Raises:
            ValueError: as `HFModel.load`, for a map that leaves parts out or names a device that
                is not there, or without accelerate.
        """
        if importlib.util.find_spec("accelerate") is None:
            raise ValueError("--device-map needs accelerate: pip install accelerate")
        model = cls.load(
            path_or_id,
            dtype=dtype,
            device="cpu",
            attn_implementation=attn_implementation,
            device_map=device_map,
        )
        if not isinstance(device_map, str):
            for name, _ in model.module.named_parameters():
                if _place(device_map, name) is None:
                    raise ValueError(f"the map of places leaves out {name}; name every part")
        return model

    @property
    def facts(self) -> dict[str, str | int]:
        """What a run records of it: of the whole model, and how many layers are placed where."""
        return {**super().facts, "placed": self._placement}

    @property
    def _placement(self) -> str:
        """Decoder layers by place, as in ``cuda:0 20, disk 12``."""
        whole: Mapping[str, Any] = getattr(self.module, "hf_device_map", {"": self.device})
        names = {id(part): name for name, part in self.module.named_modules()}
        places = [_place(whole, names[id(layer)]) for layer in decoder_layers(self.module)]
        counted = Counter(f"cuda:{p}" if isinstance(p, int) else str(p) for p in places)
        return ", ".join(f"{place} {count}" for place, count in counted.items())

    @property
    def library_module(self) -> Any:
        """The module itself: nothing about it was changed."""
        return self.module

    def attach(
        self, name: str, adapter: SlotAdapter | HiddenAdapter, *, merged: bool | None = None
    ) -> None:
        """No adapter is placed part by part.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "adapters do not work on a model that is placed on several devices; leave out "
            "--device-map, or the decoder"
        )


def _place(places: Mapping[str, Any], name: str) -> Any:
    """The place of a part: its own, or that of the nearest part above it; None if none is named."""
    while name and name not in places:
        name = name.rpartition(".")[0]
    return places.get(name)
