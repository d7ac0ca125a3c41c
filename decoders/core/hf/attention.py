"""Masks of calls, which are additive and have sliding windows.

A mask is 0 where a row sees an entry and the lowest finite number elsewhere, because -inf could
turn a row into NaN. Every row, padding included, sees at least one entry.

Letters: B sequences, N rows of the widest call, T cache entries seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoders.core import masks
from decoders.core.device import upload
from decoders.core.hf.architecture import Architecture
from decoders.core.model import Call

Masks = Tensor | dict[str, Tensor | None] | None
"""One mask for all layers, or one per kind of layer. None: causal, or a single row."""


def leave_out_cudnn(device: torch.device) -> None:
    """Switch cuDNN's attention off in this process, if `device` is a GPU, before its models open.

    As in vLLM: cuDNN plans again for every shape.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


class MaskBuilder:
    """Makes the masks of one cache."""

    def __init__(self, architecture: Architecture, num_entries: int) -> None:
        """Take a model's windows, device and dtype, and the most entries that are seen."""
        self._windows, self._device = architecture.windows, architecture.device
        added = torch.tensor([0.0, torch.finfo(architecture.dtype).min], dtype=architecture.dtype)
        self._seen, self._unseen = added.to(self._device).unbind()
        self._entries = torch.arange(num_entries, device=self._device)

    def additive(self, visible: Tensor) -> Tensor:
        """Turn a bool tensor (True: seen) into an additive mask of the same shape."""
        return torch.where(visible, self._seen, self._unseen)

    def per_kind(self, mask: Tensor | None) -> Masks:
        """Use one mask for every kind of layer (correct only if no window can matter)."""
        return mask if len(self._windows) == 1 else dict.fromkeys(self._windows, mask)

    def after(self, start: int, num_rows: int, mask: Tensor | None) -> Tensor:
        """Return the mask ``[1, 1, N, T]`` of one call after `start` entries, without windows."""
        if num_rows == 1:  # a lone row sees all
            return self._seen.expand(1, 1, 1, start + 1)
        entries = self._entries[: start + num_rows]
        visible = entries <= entries[start:, None]
        if mask is not None:
            visible[:, start:] = upload(mask, self._device)
        return self.additive(visible)[None, None]

    def blocks(self, calls: Sequence[Call], width: int) -> Tensor | None:
        """Return which rows of a call see each other, bool ``[B, N, N]`` on the host.

        `width` is N; padding rows are causal. None: all are.
        """
        if not [call for call in calls if call.mask is not None]:
            return None
        blocks = masks.causal(width).repeat(len(calls), 1, 1)
        for block, call in zip(blocks, calls, strict=True):
            if call.mask is not None:
                block[: call.num_rows, : call.num_rows] = call.mask
        return blocks

    def visible(self, blocks: Tensor | None, starts: Tensor, width: int, seen: int) -> Tensor:
        """Return which entries each row sees, without windows: bool ``[B, N, T]``.

        `starts` ``[B]`` are committed lengths, `width` is N, `seen` is T.
        """
        columns = self._entries[:seen]
        if blocks is None:
            rows = torch.arange(width, device=self._device)
            return columns <= (starts[:, None] + rows)[:, :, None]
        columns = columns - starts[:, None]  # 0: the first row
        inside = (columns >= 0) & (columns < width)
        index = columns.clamp(0, width - 1)[:, None, :].expand(-1, width, -1)
        return (columns < 0)[:, None, :] | (inside[:, None, :] & blocks.gather(2, index))

    def places(self, starts: Tensor, positions: Tensor, seen: int) -> Tensor:
        """Return the position of each entry ``[B, T]``: committed ones lie in order of the text.

        `starts` ``[B]`` are committed lengths, `positions` ``[B, N]`` those of the rows after them.
        """
        entries = self._entries[:seen]
        columns = entries - starts[:, None]  # 0: the first row
        rows = positions.gather(1, columns.clamp(0, positions.shape[1] - 1))
        return torch.where(columns < 0, entries, rows)

    def windowed(self, visible: Tensor, positions: Tensor, entries: Tensor) -> Masks:
        """Add windows to `visible` ``[B, N, T]`` and return ``[B, 1, N, T]`` per kind of layer.

        `positions` ``[B, N]`` are positions of rows, `entries` ``[B, T]`` positions of entries.
        """
        masks: dict[str, Tensor | None] = {}
        for kind, window in self._windows.items():
            near = visible
            if window is not None:
                near = visible & (positions[:, :, None] - entries[:, None, :] < window)
            masks[kind] = self.additive(near)[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))
