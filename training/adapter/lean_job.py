"""Training an adapter by the lean pass: each row's base and teacher once, many windows on it.

Letters: B rows, S places of a row, Q slots of a row, M slots that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.core.types import NO_UNIFORM
from training.adapter.job import AdapterJob
from training.adapter.lean_loss import GREEDY_TEMPERATURE, ShortHead, taught_loss
from training.adapter.places import Places, places_of
from training.adapter.windows import Windows, carried_places, explain_places, shift_of
from training.loop import Piece
from training.text.data import Row
from training.text.pool import PoolSource


class LeanJob(AdapterJob):
    """As `AdapterJob`, with the lean pass and its loss; rows know the temperature of their text."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        """See `AdapterJob`.

        Raises:
            ValueError: rows that are no completions.
        """
        super().__init__(*parts, **options)
        if not isinstance(self.source, PoolSource) or self.source.facts["kind"] != "completions":
            kind = self.source.facts["kind"]
            raise ValueError(f"run.lean trains on data of kind 'completions', not {kind!r}")
        words = self.source.frequent(self.settings.head_words) if self.settings.head_words else []
        weight = self.student.head.weight
        self.head = ShortHead(weight, torch.tensor(words, dtype=torch.int64, device=weight.device))

    def _piece(self, rows: Sequence[Row], windows: Windows) -> Piece | None:
        windows = windows.to(self.student.device)
        loss, count = self._taught(rows, windows)
        return (loss, count, int((windows.number >= 0).sum())) if count else None

    def _taught(self, rows: Sequence[Row], windows: Windows) -> tuple[Tensor, int]:
        """Summed loss of the slots that count, and how many they are."""
        student, variant = self.student, self.student.adapter.config.variant
        hidden, cache = student.context(windows.ids)
        if windows.blocks is not None:
            u = torch.full_like(windows.noise, NO_UNIFORM)
            target, usable, top = windows.blocks.target, windows.blocks.learn, None
        else:
            places = self._places(rows, windows, hidden)
            carried = carried_places(windows, variant)
            explained = explain_places(
                windows,
                places.likeliest.gather(1, carried),
                places.left.gather(1, carried),
                places.mass.gather(1, carried),
                variant,
            )
            u, target, usable = explained.u, explained.target, explained.usable
            row, slot = usable.nonzero().unbind(1)
            at = row, windows.place[row, slot]
            top = places.top_ids[at], places.top_logits[at]
        settings, number = self.settings, windows.depth - shift_of(variant)
        loss = taught_loss(
            student.states(cache, u, windows)[usable],
            self.head,
            target[usable],
            None if settings.objective == "one-hot" else top,
            torch.where(windows.greedy, GREEDY_TEMPERATURE, windows.warp[..., 0])[usable],
            torch.exp(-number[usable].clamp(min=0) * settings.position_decay),
            label_share=settings.label_share,
            overlap_share=settings.overlap_share,
        )
        return loss, int(usable.sum())

    def _places(self, rows: Sequence[Row], windows: Windows, hidden: Tensor) -> Places:
        asked, temperature = _asked(rows, windows.ids)
        top = self.settings.teacher_top
        return places_of(self.student, windows.ids, hidden, asked, temperature, top)


def _asked(rows: Sequence[Row], ids: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the answers but a row's first, and each row's temperature (greedy: 1)."""
    asked = torch.zeros(ids.shape, dtype=torch.bool)
    for line, row in zip(asked, rows, strict=True):
        line[: len(row.learn)] = torch.tensor(row.learn)
    asked[:, 0] = False
    temperature = torch.tensor([row.temperature or 1.0 for row in rows])
    return asked.to(ids.device), temperature.to(ids.device)
