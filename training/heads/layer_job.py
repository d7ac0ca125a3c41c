"""Training a draft layer on a frozen causal LM, going on from its own states as in decoding.

Depth d (from 0) at token t of a text is what the layer drafts d tokens behind the one after t: it
was fed the target's states up to t and then its own, d of them, joined with the true tokens. Its
rows see the text's rows up to t and its own earlier ones (training-time test of EAGLE-3, arXiv
2503.01840). It learns the target's own distribution there.

Letters: B rows, T tokens of a row, D hidden width, E width of an attention head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.core.adapter.draft_layer import DraftLayer
from training.heads.job import NONE, HiddenJob
from training.text.data import Row


class LayerJob(HiddenJob):
    """A draft layer: all depths of a group of rows in one piece."""

    heads: DraftLayer

    def _drafted(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        depths = self.heads.config.num_slots
        ids, targets = self._batch(rows)
        counts = (targets != NONE).any(-1)
        with torch.no_grad():
            base = self.module.base_model(input_ids=ids, use_cache=False)
            hidden = base.last_hidden_state
            embedded = self.module.get_input_embeddings()(ids).float()
            ahead = [_ahead(hidden, 1 + depth)[counts] for depth in range(depths)]
            truth = self._read(torch.stack(ahead, 1))
        states = unrolled(self.heads, hidden.float(), embedded, depths)
        return self._read(torch.stack([each[counts] for each in states], 1)), targets[counts], truth


def unrolled(layer: DraftLayer, hidden: Tensor, embedded: Tensor, depths: int) -> list[Tensor]:
    """Return the layer's states ``[B, T, D]`` of each depth.

    The target's states and the embedded tokens are ``[B, T, D]``. Rows too near to the end draft
    behind tokens that are not there.
    """
    positions = torch.arange(hidden.shape[1], device=hidden.device)
    causal = torch.ones(len(positions), len(positions), dtype=torch.bool).tril_().to(hidden.device)
    states, out = hidden, []
    own: list[tuple[Tensor, Tensor]] = []
    for depth in range(depths):
        rows = layer.enter(states, _ahead(embedded, 1 + depth))
        query, key, value = layer.project(rows, positions + depth)
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
    """Attend ``[B, H, T, E]`` to the text up to each row, and to the row's own earlier ones."""
    scale, length = query.shape[-1] ** -0.5, keys.shape[-2]
    of_text = (query @ keys.transpose(-1, -2)).masked_fill(~causal, float("-inf"))
    of_own = [(query * key).sum(-1, keepdim=True) for key, _ in own]
    chances = (torch.cat([of_text, *of_own], -1) * scale).softmax(-1)
    attended: Tensor = chances[..., :length] @ values
    for number, (_, value) in enumerate(own):
        attended = attended + chances[..., length + number, None] * value
    return attended


def _ahead(values: Tensor, by: int) -> Tensor:
    """Return values ``[B, T, D]`` of rows so far on; the last ones repeat the first ones'."""
    return values.roll(-by, 1)
