"""Train an adapter with a lean loss: the teacher runs once per row, for many windows.

The loss uses an output head of few words, and compares with the teacher's likeliest tokens only.

Letters: B rows, S tokens of a row, M slots in the loss, T likeliest tokens of the teacher, U words
of the head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.core.types import NO_UNIFORM
from training.adapter.job import AdapterJob
from training.adapter.windows import Windows, edges, explain, sources
from training.loop import Piece
from training.text.data import PoolSource, Row, learnt

GREEDY_TEMPERATURE = 0.7
"""Temperature of the compared distributions where the text is greedy."""
Top = tuple[Tensor, Tensor]
"""The teacher's likeliest tokens, int64 ``[M, T]`` in descending order, and their logits."""


class WordHead:
    """Select an output head's rows for frequent words and for the words of a batch."""

    def __init__(self, weight: Tensor, words: Tensor) -> None:
        """Take `weight` ``[V, D]`` and distinct int64 `words` (empty: all)."""
        self.weight, self.words = weight, words.sort().values
        self._index = torch.full((len(weight),), -1, device=weight.device)
        self._index[self.words] = torch.arange(len(self.words), device=weight.device)

    def of(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows ``[U, D]`` that include all words `words`, and the indices of these words."""
        if not len(self.words):
            return self.weight, words
        missing = torch.unique(words[self._index[words] < 0])
        index, first = self._index.clone(), len(self.words)
        index[missing] = torch.arange(first, first + len(missing), device=index.device)
        return self.weight[torch.cat([self.words, missing])], index[words]

    def read(
        self, states: Tensor, target: Tensor, top: Top | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the first three arguments of `teacher_loss` for states ``[M, D]``."""
        ids, soft = (target.new_empty(len(target), 0), None) if top is None else top
        rows, index = self.of(torch.cat([target[:, None], ids], 1))
        return F.linear(states, rows).float(), index, soft


def teacher_loss(
    logits: Tensor,
    index: Tensor,
    top: Tensor | None,
    temperature: Tensor,
    weight: Tensor,
    *,
    label_share: float | Tensor,
) -> Tensor:
    """Return the summed loss of slots: cross-entropies with the teacher and with labels, mixed.

    Args:
        logits: the student's, ``[M, U]``.
        index: words of the label and of the teacher's likeliest tokens, ``[M, 1 + T]``.
        top: the teacher's logits of these tokens, ``[M, T]``; None: only labels count.
        temperature: of both distributions, ``[M]``.
        weight: factor on each slot's loss, ``[M]``.
        label_share: share of the labels in the loss, one number or ``[M]``.
    """
    logs = (logits / temperature[:, None]).log_softmax(-1)
    values = logs.gather(1, index)
    labels = -values[:, 0]
    if top is None:
        return (labels * weight).sum()
    distribution = (top / temperature[:, None]).softmax(-1)
    soft = -(distribution * values[:, 1:]).sum(-1)
    return (((1 - label_share) * soft + label_share * labels) * weight).sum()


class LeanJob(AdapterJob):
    """Train an adapter with the lean loss, on rows with their sampling temperature."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        """Take the arguments of `AdapterJob`, with completions as data."""
        super().__init__(*parts, **options)
        assert isinstance(self.source, PoolSource), "the recipe asks for completions"
        words = self.source.frequent(self.run.head_words)
        weight = self.student.head.weight
        self.head = WordHead(weight, torch.tensor(words, dtype=torch.int64, device=weight.device))

    def _piece(self, rows: Sequence[Row], windows: Windows) -> Piece | None:
        student, variant, run = self.student, self.student.adapter.config.variant, self.run
        windows = windows.to(student.device)
        hidden, cache = student.context(windows.ids)
        if windows.blocks is not None:
            u = torch.full_like(windows.noise, NO_UNIFORM)
            target, usable, top = windows.blocks.target, windows.blocks.learn, None
        else:
            mask = learnt(rows).to(windows.ids.device)
            temperature = torch.tensor([row.temperature or 1.0 for row in rows]).to(mask.device)
            facts, (ids, logits) = compute_teacher(
                *(student.teacher_logits, windows.ids, hidden, mask),
                *(temperature, run.teacher_top),
            )
            before = sources(windows, variant)
            likeliest, left, mass = (fact.gather(1, before) for fact in facts)
            u, target, usable = explain(windows, likeliest, left, mass, variant)
            row, slot = usable.nonzero().unbind(1)
            at = row, windows.index[row, slot]
            top = ids[at], logits[at]
        count = int(usable.sum())
        if not count:
            return None
        states = student.states(cache, u, windows)[usable]
        loss = teacher_loss(
            *self.head.read(states, target[usable], None if run.objective == "one-hot" else top),
            torch.where(windows.greedy, GREEDY_TEMPERATURE, windows.warp[..., 0])[usable],
            torch.exp(-windows.slot(variant)[usable] * run.position_decay),
            label_share=run.label_share,
        )
        return loss, count, int((windows.number >= 0).sum())


@torch.no_grad()
def compute_teacher(
    read: Callable[[Tensor], Tensor],
    ids: Tensor,
    hidden: Tensor,
    mask: Tensor,
    temperature: Tensor,
    num_top: int,
) -> tuple[tuple[Tensor, Tensor, Tensor], Top]:
    """Compute the teacher's distributions once per token of rows, for all windows.

    Args:
        read: computes the teacher's logits of hidden states.
        ids: tokens ``[B, S]``.
        hidden: the teacher's final hidden states ``[B, S, D]``.
        mask: tokens to compute ``[B, S]``, never the first of a row; values of others are 0.
        temperature: of each row's windows (1 if greedy), ``[B]``.
        num_top: T.

    Returns:
        The teacher's argmax for each token, and the left edge and width of the token's interval
        (float64), ``[B, S]`` each; the teacher's likeliest tokens and their logits, ``[B, S, T]``.
    """
    likeliest, left = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.float64)
    mass = torch.zeros_like(left)
    top_ids = torch.zeros(*ids.shape, num_top, dtype=torch.int64, device=ids.device)
    top_logits = torch.zeros(*ids.shape, num_top, device=ids.device)
    for chunk in torch.split(mask.nonzero(), 4096 if ids.is_cuda else 256):  # bounds the memory
        row, index = chunk.unbind(1)
        logits = read(hidden[row, index - 1])
        top = logits.topk(num_top)
        warp = torch.stack([temperature[row], torch.ones_like(temperature[row])], 1)
        left[row, index], mass[row, index] = edges(logits, ids[row, index], warp, 0)
        likeliest[row, index] = top.indices[:, 0]
        top_ids[row, index], top_logits[row, index] = top.indices, top.values
    return (likeliest, left, mass), (top_ids, top_logits)
