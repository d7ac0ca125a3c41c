"""Training a draft layer on a frozen causal LM, going on from its own states as in decoding.

Depth d (from 0) at place t of a text is what the layer drafts d tokens behind the one after t: it
was fed the target's states up to t and then its own, d of them, joined with the true tokens. Its
rows see the text's rows up to t and its own earlier ones (training-time test of EAGLE-3, arXiv
2503.01840). It learns the target's own distribution there.

Letters: B rows, T places, M places that count, H depths, D hidden width, E width of an attention
head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.core.adapter.draft_layer import DraftLayer
from training.heads.job import NONE, HiddenJob, targets_of
from training.text.data import Row, groups


class LayerJob(HiddenJob):
    """A draft layer: all depths of a group of rows in one piece."""

    heads: DraftLayer

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Groups whose logits of all depths are no more than a piece may have."""
        logits = self.heads.config.num_slots * self.module.get_output_embeddings().weight.shape[0]
        most = max(1, min(self.run.max_tokens, self.run.max_logits // logits))
        return groups(sorted(rows, key=lambda row: len(row.ids)), most)

    def _losses(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, int]]:
        logits, targets, truth = self._drafted(rows)
        losses = -(truth.softmax(-1) * logits.log_softmax(-1)).sum(-1)
        depths = torch.arange(targets.shape[1], device=losses.device)
        counts = targets != NONE
        yield (losses * counts * self.run.head_decay**depths).sum(), int(counts.sum())

    def _predicted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor]]:
        logits, targets, _ = self._drafted(rows)
        yield logits, targets

    def _drafted(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits ``[M, H, V]``, `targets_of` ``[M, H]`` and the target's logits ``[M, H, V]``."""
        width, depths = max(len(row.ids) for row in rows), self.heads.config.num_slots
        device = self.heads.join.device
        # padded on the right, where a causal model needs no mask
        ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows], device=device)
        targets = targets_of(rows, width, depths).to(device)
        counts = (targets != NONE).any(-1)
        with torch.no_grad():
            base = self.module.base_model(input_ids=ids, use_cache=False)
            hidden = base.last_hidden_state
            embedded = self.module.get_input_embeddings()(ids).float()
            ahead = [_ahead(hidden, 1 + depth)[counts] for depth in range(depths)]
            truth = self._read(torch.stack(ahead, 1))
        states = unrolled(self.heads, hidden.float(), embedded, depths)
        return self._read(torch.stack([each[counts] for each in states], 1)), targets[counts], truth

    def _read(self, states: Tensor) -> Tensor:
        """The frozen head's logits ``[..., V]`` of states ``[..., D]``."""
        head: Any = self.module.get_output_embeddings()
        logits: Tensor = head(states.to(head.weight.dtype))
        return logits.float()


def unrolled(layer: DraftLayer, hidden: Tensor, embedded: Tensor, depths: int) -> list[Tensor]:
    """The layer's states ``[B, T, D]`` of each depth, of the target's states and embedded tokens.

    Both are ``[B, T, D]``. Places too near to the end draft behind tokens that are not there.
    """
    places = torch.arange(hidden.shape[1], device=hidden.device)
    causal = torch.ones(len(places), len(places), dtype=torch.bool, device=hidden.device).tril_()
    states, out = hidden, []
    own: list[tuple[Tensor, Tensor]] = []
    for depth in range(depths):
        rows = layer.enter(states, _ahead(embedded, 1 + depth))
        query, key, value = layer.project(rows, places + depth)
        if depth == 0:
            text_keys, text_values = key, value
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            own.append((key, value))
            attended = _attended(query, text_keys, text_values, own, causal)
        states = layer.leave(rows, attended)
        out.append(states)
    return out


def _attended(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    own: Sequence[tuple[Tensor, Tensor]],
    causal: Tensor,
) -> Tensor:
    """What ``[B, H, T, E]`` a place's row sees: the text up to the place, and its own rows."""
    scale, length = query.shape[-1] ** -0.5, keys.shape[-2]
    of_text = (query @ keys.transpose(-1, -2)).masked_fill(~causal, float("-inf"))
    of_own = [(query * key).sum(-1, keepdim=True) for key, _ in own]
    chances = (torch.cat([of_text, *of_own], -1) * scale).softmax(-1)
    attended: Tensor = chances[..., :length] @ values
    for number, (_, value) in enumerate(own):
        attended = attended + chances[..., length + number, None] * value
    return attended


def _ahead(values: Tensor, by: int) -> Tensor:
    """Values ``[B, T, D]`` of the places so far on; the last ones repeat the first ones'."""
    return values.roll(-by, 1)
