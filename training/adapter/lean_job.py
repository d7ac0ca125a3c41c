"""Training an adapter by the lean pass: each row's base and teacher once, many windows on it.

Letters: B rows, S tokens of a row, Q slots of a row, T likeliest tokens of the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.core.types import NO_UNIFORM
from training.adapter.job import AdapterJob
from training.adapter.lean_loss import GREEDY_TEMPERATURE, ShortHead, Top, taught_loss
from training.adapter.student import Student
from training.adapter.windows import Windows, carried, edges, explain
from training.loop import Piece
from training.text.data import Row, learnt
from training.text.pool import stored_completions

_CHUNK = 256  # tokens whose logits are held at a time


class LeanJob(AdapterJob):
    """As `AdapterJob`, with the lean pass and its loss; rows know the temperature of their text."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        """Take what `AdapterJob` takes; rows that are no completions raise `ValueError`."""
        super().__init__(*parts, **options)
        words = stored_completions(self.source, "run.lean").frequent(self.run.head_words)
        weight = self.student.head.weight
        self.head = ShortHead(weight, torch.tensor(words, dtype=torch.int64, device=weight.device))

    def _piece(self, rows: Sequence[Row], windows: Windows) -> Piece | None:
        student, variant, run = self.student, self.student.adapter.config.variant, self.run
        windows = windows.to(student.device)
        hidden, cache = student.context(windows.ids)
        if windows.blocks is not None:
            u = torch.full_like(windows.noise, NO_UNIFORM)
            target, usable, top = windows.blocks.target, windows.blocks.learn, None
        else:
            asked = learnt(rows).to(windows.ids.device)
            temperature = torch.tensor([row.temperature or 1.0 for row in rows]).to(asked.device)
            facts, (ids, logits) = ask_teacher(
                student, windows.ids, hidden, asked, temperature, run.teacher_top
            )
            before = carried(windows, variant)
            likeliest, left, mass = (fact.gather(1, before) for fact in facts)
            explained = explain(windows, likeliest, left, mass, variant)
            u, target, usable = explained.u, explained.target, explained.usable
            row, slot = usable.nonzero().unbind(1)
            at = row, windows.index[row, slot]
            top = ids[at], logits[at]
        count = int(usable.sum())
        if not count:
            return None
        loss = taught_loss(
            student.states(cache, u, windows)[usable],
            self.head,
            target[usable],
            None if run.objective == "one-hot" else top,
            torch.where(windows.greedy, GREEDY_TEMPERATURE, windows.warp[..., 0])[usable],
            torch.exp(-windows.slot(variant)[usable] * run.position_decay),
            label_share=run.label_share,
            overlap_share=run.overlap_share,
        )
        return loss, count, int((windows.number >= 0).sum())


@torch.no_grad()
def ask_teacher(
    student: Student, ids: Tensor, hidden: Tensor, asked: Tensor, temperature: Tensor, num_top: int
) -> tuple[tuple[Tensor, Tensor, Tensor], Top]:
    """Ask the teacher once about the tokens of `ids` ``[B, S]``, for all windows that stand there.

    Its hidden states are ``[B, S, D]``, `asked` is a mask ``[B, S]`` without the first tokens of
    rows, `temperature` ``[B]`` is that of each row's windows (1 where they are greedy). Returned
    are its argmax before each token, the left edge and the width of the token's interval (float64;
    0 if not asked about), ``[B, S]`` each; and its likeliest tokens and their logits, ``[B, S,
    num_top]``.
    """
    likeliest, left = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.float64)
    mass = torch.zeros_like(left)
    top_ids = torch.zeros(*ids.shape, num_top, dtype=torch.int64, device=ids.device)
    top_logits = torch.zeros(*ids.shape, num_top, device=ids.device)
    for chunk in torch.split(asked.nonzero(), _CHUNK):
        row, index = chunk.unbind(1)
        logits = student.teacher_logits(hidden[row, index - 1])
        top = logits.topk(num_top)
        warp = torch.stack([temperature[row], torch.ones_like(temperature[row])], 1)
        left[row, index], mass[row, index] = edges(logits, ids[row, index], warp, 0)
        likeliest[row, index] = top.indices[:, 0]
        top_ids[row, index], top_logits[row, index] = top.indices, top.values
    return (likeliest, left, mass), (top_ids, top_logits)
