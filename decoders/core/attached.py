"""An adapter at work in a model: the inputs of slots, and the gated forward of their calls.

Letters: B calls, N rows of the widest, S slots, D hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from decoders.core.gating import Deltas, Forward, GatedModule, MergedWeights, UnmergedWeights
from decoders.core.slots import SlotAdapter
from decoders.core.types import Call, Slots


class AttachedAdapter:
    """An adapter at work in a module, in the module's dtype and on its device."""

    def __init__(
        self,
        adapter: SlotAdapter,
        gated: GatedModule,
        tokens: nn.Module,
        *,
        dtype: torch.dtype,
        device: torch.device,
        merged: bool,
    ) -> None:
        """Lay the weights out, merged or not (see `gating`); `tokens` is the token embedding."""
        self.config, self._tokens = adapter.config, tokens
        self._adapter = adapter.to(device)
        self._dtype, self._device = dtype, device
        weights: MergedWeights | UnmergedWeights
        with torch.no_grad():
            if merged:
                exact = _moved(adapter.factors(torch.float32), device)
                weights = MergedWeights(Deltas(gated, exact), dtype)
                self.num_bytes = weights.num_bytes
            else:
                deltas = Deltas(gated, _moved(adapter.factors(dtype), device))
                weights, self.num_bytes = UnmergedWeights(deltas), deltas.num_bytes
        self.num_bytes += sum(parameter.nbytes for parameter in adapter.embedding.parameters())
        self._weights = weights

    def one(self, slots: Slots, embedded: Tensor) -> tuple[Tensor, Forward]:
        """Inputs ``[1, N, D]`` of a call whose tokens are embedded, and its gated forward."""
        rows = torch.cat([embedded, self._embed([slots])[None]], 1)
        return rows, self._weights.tail(embedded.shape[1])

    def merged(self, calls: Sequence[Call], embedded: Tensor) -> tuple[Tensor, Forward]:
        """Inputs of calls padded to one width ``[B, N, D]``, whose tokens are embedded already."""
        width = embedded.shape[1]
        is_slot = torch.zeros(embedded.shape[:2], dtype=torch.bool)
        for line, call in zip(is_slot, calls, strict=True):
            line[len(call.tokens) : call.num_rows] = True
        flat = embedded.reshape(len(calls) * width, -1)
        slots = is_slot.view(-1).nonzero().squeeze(1).to(self._device)
        base = (~is_slot).view(-1).nonzero().squeeze(1).to(self._device)
        flat[slots] = self._embed([call.slots for call in calls if call.slots is not None])
        return flat.view(embedded.shape), self._weights.scattered(base, slots)

    def _embed(self, parts: Sequence[Slots]) -> Tensor:
        """Inputs ``[S, D]`` of the slots of several calls, in order."""
        uniforms = torch.tensor([u for part in parts for u in part.uniforms], dtype=torch.float64)
        warp = torch.tensor([part.warp for part in parts for _ in part.uniforms])
        numbers = [n for part in parts for size in part.sizes for n in range(size)]
        anchors = None
        if self.config.anchored:
            before = [
                token
                for part in parts
                for token, size in zip(part.anchors, part.sizes, strict=True)
                for _ in range(size)
            ]
            anchors = self._tokens(torch.tensor(before).to(self._device))
        embedded = self._adapter.embed(
            uniforms.to(self._device),
            warp.to(self._device),
            torch.tensor(numbers).to(self._device),
            anchors,
        )
        return embedded.to(self._dtype)


def _moved(
    factors: Mapping[str, tuple[Tensor | None, Tensor]], device: torch.device
) -> dict[str, tuple[Tensor | None, Tensor]]:
    return {
        name: (None if low is None else low.to(device), high.to(device))
        for name, (low, high) in factors.items()
    }
