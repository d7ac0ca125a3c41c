"""A `Student` whose slots stand in windows of one length, trained by the lean pass of a Llama.

Letters: B rows, S tokens of a row, Q = W L slots of a row, W windows, L slots of a window.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.core.adapter.module import SlotAdapter
from training.adapter.lean_llama import Context, LeanLlama
from training.adapter.student import Student, gather_rows
from training.adapter.windows import Windows


class LeanStudent(Student):
    """Computes what `Student` does, several times as fast; slots may enter above the first layer.

    Windows must be drawn with a stride (`draw_windows`).
    """

    def __init__(self, module: Any, adapter: SlotAdapter) -> None:
        """Freeze `module`, a Llama in float32 or bfloat16; others raise `ValueError`."""
        if not adapter.config.rank or adapter.config.standalone:
            raise ValueError(
                "run.lean trains low-rank adapters that are not standalone; set adapter.rank to "
                "1 or above and adapter.standalone = false, or run.lean = false"
            )
        self.lean = LeanLlama(module, adapter.config.enter)
        super().__init__(module, adapter)

    def context(self, ids: Tensor) -> tuple[Tensor, Any]:
        """See `Student.context`; the second part is a `Context`."""
        return self.lean.context(ids.to(self.device))

    def states(self, cache: Any, u: Tensor, windows: Windows) -> Tensor:
        """See `Student.states`."""
        assert windows.stride, "the lean pass needs windows that are drawn with a stride"
        assert isinstance(cache, Context)
        batch, num_slots = windows.index.shape
        shape = (batch, num_slots // windows.stride, windows.stride)
        x = self.embed(u, windows)
        if self.adapter.config.enter:
            before = gather_rows(cache.entering, (windows.start - 1).clamp(min=0)).to(x.dtype)
            number = windows.slot(self.adapter.config.variant).flatten()
            entering = self.adapter.entering(x.flatten(0, 1), number, before.flatten(0, 1))
            x = entering.view(before.shape)
        hidden = self.lean.slots(
            cache,
            x.to(self.dtype).view(*shape, -1),
            windows.position.view(shape),
            self._hidden(windows, shape),
            self.adapter.factors(self.dtype),
        )
        return hidden.view(batch, num_slots, -1)

    def _hidden(self, windows: Windows, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return additive masks of the context ``[B, W, S]`` and of windows ``[B, W, L, L]``."""
        start = windows.start.view(shape)[..., 0].clamp(min=1)
        tokens = torch.arange(windows.ids.shape[1], device=start.device)
        number = windows.number.view(shape)
        same = number[..., None] == number[..., None, :]
        if windows.blocks is None:
            same &= torch.ones(shape[2], shape[2], dtype=torch.bool, device=start.device).tril()
        return self._additive(tokens >= start[..., None]), self._additive(~same)

    def _additive(self, hidden: Tensor) -> Tensor:
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)
