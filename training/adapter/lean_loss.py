"""The loss of the lean trainer: a head of few words, against the teacher's likeliest tokens.

Letters: M slots that count, T likeliest tokens of the teacher, U words of the head, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GREEDY_TEMPERATURE = 0.7
"""Distributions are compared at this temperature where the text was picked greedily."""


class ShortHead:
    """The rows of an output head for some words: frequent ones, and those a batch asks for."""

    def __init__(self, weight: Tensor, words: Tensor) -> None:
        """`weight` ``[V, D]``, frozen or not; `words` int64, distinct ids (none: all of them)."""
        self.weight, self.words = weight, words.sort().values
        self._rows = None if weight.requires_grad else weight[self.words]
        self._place = torch.full((len(weight),), -1, device=weight.device)
        self._place[self.words] = torch.arange(len(self.words), device=weight.device)

    def of(self, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``[U, D]`` that hold all words `asked`, and the places there of these."""
        if not len(self.words):
            return self.weight, asked
        others = torch.unique(asked[self._place[asked] < 0])
        place = self._place.clone()
        first = len(self.words)
        place[others] = torch.arange(first, first + len(others), device=place.device)
        if self._rows is None:
            return self.weight[torch.cat([self.words, others])], place[asked]
        return torch.cat([self._rows, self.weight[others]]), place[asked]


def taught_loss(
    states: Tensor,
    head: ShortHead,
    target: Tensor,
    top: tuple[Tensor, Tensor] | None,
    temperature: Tensor,
    weight: Tensor,
    *,
    label_share: float,
    overlap_share: float,
) -> Tensor:
    """Summed loss of slots.

    Cross-entropy with the teacher's distribution, with labels, and 1 - overlap.

    All distributions are at the slots' own temperatures and over the head's words; the teacher's is
    of its T likeliest tokens.

    Args:
        states: ``[M, D]``, final hidden states.
        head: see `ShortHead`.
        target: int64 ``[M]``, the text's tokens.
        top: the teacher's likeliest tokens, int64 ``[M, T]``, and their logits; None: labels alone.
        temperature: float32 ``[M]``, above 0.
        weight: float32 ``[M]``, of each slot.
        label_share: weight of the cross-entropy of `target`.
        overlap_share: weight of the chance that what the slot proposes is rejected,
            1 - sum min(p, q).
    """
    asked = target[:, None] if top is None else torch.cat([target[:, None], top[0]], 1)
    rows, place = head.of(asked)
    said = (F.linear(states, rows).float() / temperature[:, None]).log_softmax(-1)
    known = said.gather(1, place)
    labels = -known[:, 0]
    if top is None:
        return (labels * weight).sum()
    distribution = (top[1] / temperature[:, None]).softmax(-1)
    taught = -(distribution * known[:, 1:]).sum(-1)
    loss = (1 - label_share - overlap_share) * taught + label_share * labels
    if overlap_share:
        loss = loss + overlap_share * (1 - torch.minimum(distribution, known[:, 1:].exp()).sum(-1))
    return (loss * weight).sum()
