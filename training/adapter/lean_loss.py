"""The loss of the lean trainer: a head of few words, against the teacher's likeliest tokens.

Letters: M slots that count, T likeliest tokens of the teacher, U words of the head, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GREEDY_TEMPERATURE = 0.7
"""Distributions are compared at this temperature where the text was picked greedily."""
Top = tuple[Tensor, Tensor]
"""The teacher's likeliest tokens, int64 ``[M, T]``, the likeliest first, and their logits."""


class ShortHead:
    """The rows of an output head for some words: frequent ones, and those a batch asks for."""

    def __init__(self, weight: Tensor, words: Tensor) -> None:
        """Take `weight` ``[V, D]``, frozen or not; `words` int64, distinct ids (none: all)."""
        self.weight, self.words = weight, words.sort().values
        self._rows = None if weight.requires_grad else weight[self.words]
        self._index = torch.full((len(weight),), -1, device=weight.device)
        self._index[self.words] = torch.arange(len(self.words), device=weight.device)

    def of(self, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows ``[U, D]`` that hold all words `asked`, and their indices there."""
        if not len(self.words):
            return self.weight, asked
        others = torch.unique(asked[self._index[asked] < 0])
        index, first = self._index.clone(), len(self.words)
        index[others] = torch.arange(first, first + len(others), device=index.device)
        if self._rows is None:
            return self.weight[torch.cat([self.words, others])], index[asked]
        return torch.cat([self._rows, self.weight[others]]), index[asked]


def taught_loss(
    states: Tensor,
    head: ShortHead,
    target: Tensor,
    top: Top | None,
    temperature: Tensor,
    weight: Tensor,
    *,
    label_share: float,
    overlap_share: float = 0.0,
) -> Tensor:
    """Return the summed loss of slots with final hidden states ``[M, D]``.

    It is cross-entropy with the teacher's distribution, with labels (`target` ``[M]``, by
    `label_share`), and the chance that a proposal is rejected, 1 - sum min(p, q) (by
    `overlap_share`); without `top`, with labels alone. All distributions are at the slots' own
    temperatures ``[M]`` and over the head's words; the teacher's is of its T likeliest tokens. Each
    slot has a weight ``[M]``.
    """
    asked = target[:, None] if top is None else torch.cat([target[:, None], top[0]], 1)
    rows, index = head.of(asked)
    logs = (F.linear(states, rows).float() / temperature[:, None]).log_softmax(-1)
    known = logs.gather(1, index)
    labels = -known[:, 0]
    if top is None:
        return (labels * weight).sum()
    distribution = (top[1] / temperature[:, None]).softmax(-1)
    taught = -(distribution * known[:, 1:]).sum(-1)
    loss = (1 - label_share - overlap_share) * taught + label_share * labels
    if overlap_share:
        loss = loss + overlap_share * (1 - torch.minimum(distribution, known[:, 1:].exp()).sum(-1))
    return (loss * weight).sum()
