"""Trains a draft layer on a frozen causal LM, fed with its own states as in decoding.

Depth d (from 0) at token t drafts token t + 2 + d. The layer is fed the target's states up to t and
then d of its own states, joined with the true tokens. A row sees the text's rows up to t and the
layer's own earlier rows (training-time test of EAGLE-3, arXiv 2503.01840). The layer learns the
target's distribution of the drafted token.

Letters: B rows, T tokens of a row, D hidden width, E width of an attention head.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.draft_pass import ShortHead
from training.forward import head_logits
from training.heads.job import NONE, HiddenJob
from training.text.data import PoolSource, Row
from training.text.sources import Source

_Compute = Callable[[Sequence[Row], Tensor], Sequence[Tensor]]


class LayerJob(HiddenJob):
    """Trains a draft layer, with all depths of a group of rows in one piece."""

    heads: DraftLayer

    def __init__(self, module: Any, heads: DraftLayer, source: Source, *parts: Any) -> None:
        """Prepare a `HiddenJob`, with the answers' most frequent words if words are limited."""
        super().__init__(module, heads, source, *parts)
        self._kept: dict[tuple[Any, ...], list[Tensor]] = {}
        if num := heads.config.num_words:
            words = stored_words(source, num, len(self._whole_head.weight))
            heads.words.copy_(torch.tensor(words))
            self._head = ShortHead(self._whole_head, heads.words)

    def _indices(self, targets: Tensor) -> Tensor:
        if not self.heads.config.num_words:
            return targets
        index = targets.new_full((len(self._whole_head.weight),), NONE)
        index[self.heads.words] = torch.arange(len(self.heads.words), device=index.device)
        return index[targets.clamp(min=0)].where(targets != NONE, NONE)

    def _states(self, ids: Tensor) -> Tensor:
        """Return the target's last hidden states ``[B, T, D]``."""
        states: Tensor = self.module.base_model(input_ids=ids, use_cache=False)[0]
        return states.float()

    def _compute(self, rows: Sequence[Row], ids: Tensor, compute: _Compute) -> list[Tensor]:
        """Return the tensors ``[B, T, …]`` that `compute` computes for rows.

        Padding is arbitrary. With `keep_states`, `compute` runs once per row, in half precision.
        """
        if not self.run.keep_states:
            return list(compute(rows, ids))
        keys = [(row.temperature, *row.ids) for row in rows]
        if missing := [n for n, key in enumerate(keys) if key not in self._kept]:
            tensors = compute([rows[n] for n in missing], ids[missing])
            for place, n in enumerate(missing):
                parts = (each[place, : len(rows[n].ids)] for each in tensors)
                self._kept[keys[n]] = [_small(each) for each in parts]
        columns = zip(*(self._kept[key] for key in keys), strict=True)
        return [_whole(pad_sequence(list(each), batch_first=True)) for each in columns]

    def _drafted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        depths = self.heads.config.num_slots
        ids, targets = self._batch(rows)
        counts = (targets != NONE).any(-1)
        with torch.no_grad():
            (hidden,) = self._compute(rows, ids, lambda _, ids: [self._states(ids)])
            embedded = self.module.get_input_embeddings()(ids).float()
            read = head_logits(self._head, hidden)
            truth = torch.stack([_ahead(read, 1 + depth)[counts] for depth in range(depths)], 1)
        states = unrolled(self.heads, hidden, embedded, depths)
        drafted = head_logits(self._head, torch.stack([each[counts] for each in states], 1))
        yield drafted, targets[counts], truth


def _small(values: Tensor) -> Tensor:
    dtype = {torch.float32: torch.float16, torch.int64: torch.int32}.get(values.dtype)
    return values.clone() if dtype is None else values.to(dtype)


def _whole(values: Tensor) -> Tensor:
    return values.float() if values.dtype == torch.float16 else values


def stored_words(source: Source, num: int, num_all: int) -> list[int]:
    """Return the ids of the `num` most frequent words in a source's answers, ascending.

    If the answers have fewer words, or the source is not a pool of rows, add the lowest other ids.
    """
    frequent = source.frequent(num) if isinstance(source, PoolSource) else []
    present = set(frequent)
    rest = (word for word in range(num_all) if word not in present)
    words = [*frequent, *itertools.islice(rest, num - len(frequent))]
    return sorted(words)


def unrolled(layer: DraftLayer, hidden: Tensor, embedded: Tensor, depths: int) -> list[Tensor]:
    """Return the layer's states ``[B, T, D]`` at each depth.

    The target's states and the embedded tokens are ``[B, T, D]``. States too near the end of the
    text are invalid, because the tokens they need do not exist.
    """
    positions = torch.arange(hidden.shape[1], device=hidden.device)
    causal = torch.ones(len(positions), len(positions), dtype=torch.bool).tril_().to(hidden.device)
    states, out = hidden, []
    steps: list[tuple[Tensor, Tensor]] = []
    for depth in range(depths):
        rows = layer.enter(states, _ahead(embedded, 1 + depth))
        query, key, value = layer.project(rows, layer.turn(positions + depth))
        if depth == 0:
            text_keys, text_values = key, value
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:  # attend to the text up to each row, and to the row's earlier depths
            steps.append((key, value))
            scores = (query @ text_keys.transpose(-1, -2)).masked_fill(~causal, float("-inf"))
            step_scores = [(query * each).sum(-1, keepdim=True) for each, _ in steps]
            scale = query.shape[-1] ** -0.5
            chances = (torch.cat([scores, *step_scores], -1) * scale).softmax(-1)
            attended = chances[..., : len(positions)] @ text_values
            for number, (_, each) in enumerate(steps):
                attended = attended + chances[..., len(positions) + number, None] * each
        states = layer.leave(rows, attended)
        out.append(states)
    return out


def _ahead(values: Tensor, by: int) -> Tensor:
    """Return values ``[B, T, D]`` shifted left by `by`, the first wrapped to the end."""
    return values.roll(-by, 1)
