"""Peak memory of one answer: the weights its decoder uses and their KV caches.

On a CPU that is the sum of both. On CUDA it is the allocator's peak since the counter was reset,
less what belongs to models that are loaded and not used: activations count there.
"""

from __future__ import annotations

from decoders.core.model import Model
from decoders.core.scheduler import Models


class PeakMemory:
    """Watches one timed region; make it right before, and read it right after."""

    def __init__(self, loaded: Models, used: Models) -> None:
        """`loaded` are all models in memory, `used` those of the decoder at hand."""
        self._loaded, self._used = loaded, used
        self._on_gpu = loaded.target.device.type == "cuda"
        if self._on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats(loaded.target.device)

    def peak_bytes(self) -> int:
        """Bytes, see the top of this file."""
        used = _bytes(self._used.target) + _bytes(self._used.draft)
        if not self._on_gpu:
            return used
        import torch

        idle = _bytes(self._loaded.target) + _bytes(self._loaded.draft) - used
        return torch.cuda.max_memory_allocated(self._loaded.target.device) - idle


def _bytes(model: Model | None) -> int:
    return 0 if model is None else model.weight_bytes + model.cache_bytes()
