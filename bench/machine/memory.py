"""Peak memory of one answer: the weights that its decoder uses, with adapters, and KV caches.

A decoder's own weights (`decoders.core.own_weights`) are included. On a CPU it is their sum, and
unknown for a decoder that runs its models itself. On CUDA it is the allocator's peak since the
counter was reset, minus models, adapters and weights of other decoders that are loaded but not
used; activations are included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import psutil

from bench.machine.env import cgroup_memory_bytes
from decoders.core.decoder import Decoder, SelfDriven
from decoders.core.engine.models import Models
from decoders.core.model import Model

if TYPE_CHECKING:
    from torch import Tensor


class PeakMemory:
    """Measures one timed region: create the object right before it, and read it right after."""

    def __init__(
        self, loaded: Models, used: Models, decoder: Decoder, decoders: Iterable[Decoder] = ()
    ) -> None:
        """Take all models in memory, the used ones, their decoder, and the run's `decoders`."""
        self._idle = [each for each in decoders if each is not decoder]
        self._loaded = [each for each in (loaded.target, loaded.draft) if each is not None]
        self._used, self._decoder, self._device = used, decoder, loaded.target.device
        self._self_driven = isinstance(decoder, SelfDriven)
        self._on_gpu = self._device.type == "cuda"
        if self._on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        """Return the peak in bytes, as defined at the top of this file, or None if unknown."""
        adapters = {part.adapter_name: part.adapter_of for part in self._decoder.parts}
        models = {"target": self._used.target, "draft": self._used.draft}
        used = sum(
            _bytes(
                model,
                [name for name, of in adapters.items() if name is not None and role == of],
                cache=not self._self_driven,
            )
            for role, model in models.items()
            if model is not None
        )
        weights = self._weights(self._decoder)
        if not self._on_gpu:
            return None if self._self_driven else used + _size(weights)
        import torch

        everything = sum(_bytes(each, each.adapters, cache=True) for each in self._loaded)
        idle: dict[int, Tensor] = {}
        for each in self._idle:
            idle |= self._weights(each)
        unused = everything - used + _size({at: idle[at] for at in idle.keys() - weights.keys()})
        return torch.cuda.max_memory_allocated(self._device) - unused

    def _weights(self, decoder: Decoder) -> dict[int, Tensor]:
        """Return a decoder's own tensors on the target's device, no weights of loaded models."""
        from decoders.core.own_weights import own_storages, weight_storages

        shared = set[int]().union(*map(weight_storages, self._loaded))
        return {
            place: tensor
            for place, tensor in own_storages(decoder).items()
            if place not in shared and tensor.device.type == self._device.type
        }


def _size(tensors: Mapping[int, Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())


def available_bytes(device: str) -> int:
    """Return the free memory of a device, ``cpu`` or ``cuda:N``, in bytes."""
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    free, limit = int(psutil.virtual_memory().available), cgroup_memory_bytes()
    return free if limit is None else min(free, limit)


def _bytes(model: Model, adapters: Iterable[str], *, cache: bool) -> int:
    num_bytes = model.cache_bytes() if cache else 0
    return model.weight_bytes + num_bytes + sum(map(model.adapter_bytes, adapters))
