"""`DraftLayer`: a decoder layer on the last hidden state of a causal LM that drafts its tokens.

A row joins the state behind a position with the embedding of the token picked there, and gives the
model's last state one position on: the model's frozen head reads the next token off it, and the
layer goes on from it. Source: EAGLE (arXiv 2401.15077), on its own states as EAGLE-3 (2503.01840).
Norms before products have no weights: those of the products hold them.
Letters: N rows, D hidden width, H heads, E width of a head, T entries, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core import masks
from decoders.core.adapter.config import AdapterConfig
from decoders.core.adapter.module import HiddenAdapter, spread
from decoders.core.upload import upload

_THETA = 10_000.0
Turn = tuple[Tensor, Tensor]
"""Cosines and sines ``[..., 1, N, E]`` that queries and keys are turned by."""


class Block:
    """A decoder layer on rows: attention and a gated MLP, each behind a norm without weights."""

    num_heads: int
    attention: nn.Parameter
    attention_out: nn.Parameter
    feed: nn.Parameter
    feed_out: nn.Parameter

    def draw(self, generator: torch.Generator, *, width: int, inner: int, num_heads: int) -> None:
        """Make fresh weights, of an MLP of width `inner`."""
        self.num_heads = num_heads
        self.attention = spread(generator, 3 * width, width)
        self.attention_out = spread(generator, width, width)
        self.feed = spread(generator, 2 * inner, width)
        self.feed_out = spread(generator, width, inner)

    def turn(self, positions: Tensor) -> Turn:
        """Return cosines and sines of positions ``[N]``, or each row's own ``[..., N]``."""
        width = self.attention.shape[1] // self.num_heads
        steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
        angles = (positions[..., None].float() / _THETA**steps).unsqueeze(-3)
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(self.attention.dtype), angles.sin().to(self.attention.dtype)

    def project(self, rows: Tensor, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values ``[..., H, N, E]`` of rows ``[..., N, D]``.

        `turn` is of the rows' positions.
        """
        projected = F.linear(normed(rows), self.attention)
        split = (*rows.shape[:-1], 3, self.num_heads, rows.shape[-1] // self.num_heads)
        query, key, value = projected.view(split).movedim(-3, 0).transpose(-3, -2)
        cos, sin = (part.to(query.dtype) for part in turn)
        return _rotated(query, cos, sin), _rotated(key, cos, sin), value

    def passed(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return rows ``[..., N, D]`` behind the layer that attended to ``[..., H, N, E]``."""
        rows = rows + F.linear(attended.transpose(-3, -2).flatten(-2), self.attention_out)
        gate, up = F.linear(normed(rows), self.feed).chunk(2, -1)
        return rows + F.linear(F.silu(gate) * up, self.feed_out)


class Joined(HiddenAdapter):
    """An adapter that is fed hidden states joined with the tokens picked behind them."""

    join: nn.Parameter

    def enter(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Join states and embedded tokens, both ``[..., D]``, as rows ``[..., D]``."""
        return F.linear(torch.cat([normed(states), normed(embedded)], -1), self.join)


class DraftLayer(Joined, Block):
    """The weights: the join, attention, a gated MLP and the last norm."""

    variant, sized = "eagle", "feed"
    words: Tensor

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Make fresh weights; `ValueError` for a configuration of another kind."""
        super().__init__(config)
        width, inner = config.width, config.rank
        generator = torch.Generator().manual_seed(seed)
        self.join = spread(generator, width, 2 * width)
        self.draw(generator, width=width, inner=inner, num_heads=config.num_heads)
        self.scale = nn.Parameter(torch.ones(width))
        if config.num_words:
            self.register_buffer("words", torch.arange(config.num_words))

    @classmethod
    def shape_of(cls, config: AdapterConfig) -> tuple[int, ...]:
        """Return the widths of the MLP, gate and value, and of the model."""
        return 2 * config.rank, config.width

    def leave(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return states ``[..., N, D]`` of rows and what they attended to ``[..., H, N, E]``."""
        return normed(self.passed(rows, attended)) * self.scale


class ShortHead(nn.Module):
    """A model's head for a draft layer's frequent words alone; others get no chance.

    Source: FR-Spec (arXiv 2502.14856).
    """

    def __init__(self, head: Any, words: Tensor) -> None:
        """Copy the rows of a linear head for `words` (int64 ``[W]``)."""
        super().__init__()
        self._size, self.words = len(head.weight), words
        self.weight = head.weight.detach()[words]
        bias = getattr(head, "bias", None)
        self.bias = None if bias is None else bias.detach()[words]

    def short(self, states: Tensor) -> Tensor:
        """Return logits ``[..., W]`` of states ``[..., D]``."""
        return F.linear(states, self.weight, self.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits ``[N, V]`` of states ``[N, D]``, minus infinity for words left out."""
        logits = states.new_full((len(states), self._size), float("-inf"))
        return logits.index_copy_(-1, self.words, self.short(states))


class DraftCache:
    """The keys and values of a draft layer's text, and of drafts behind it, in one sequence."""

    def __init__(
        self,
        layer: DraftLayer,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        capacity: int,
    ) -> None:
        """Make room for `capacity` entries; `embed` and `head` are the model's own."""
        self._layer, self._embed, self._head = layer, embed, head
        num_heads, weight = layer.config.num_heads, layer.join
        shape = (2, num_heads, capacity, layer.config.width // num_heads)
        self._entries = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self._cos, self._sin = layer.turn(torch.arange(capacity, device=weight.device))
        self._length = 0
        self._parents: list[int] = []

    @torch.inference_mode()
    def feed(self, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append text and forget drafts: logits ``[1, V]`` and state ``[1, D]`` of the last row."""
        self._parents = []
        start, num_rows = self._length, len(tokens)
        mask = None
        if num_rows > 1:
            mask = torch.ones(num_rows, start + num_rows, dtype=torch.bool).tril_(start)
        self._length += num_rows
        out = self._run(states, tokens, range(start, self._length), start, mask)[-1:]
        return self._head(out).float(), out

    @torch.inference_mode()
    def draft(
        self, states: Tensor, tokens: Sequence[int], parents: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Append drafts: logits ``[N, V]`` and states ``[N, D]``; parent -1: the text's end."""
        first = len(self._parents)
        self._parents += parents
        positions = [self._length + depth for depth in masks.depths(self._parents)[first:]]
        mask = torch.ones(len(tokens), self._length + len(self._parents), dtype=torch.bool)
        mask[:, self._length :] = masks.tree(self._parents)[first:]
        out = self._run(states, tokens, positions, self._length + first, mask)
        return self._head(out).float(), out

    def _run(
        self,
        states: Tensor,
        tokens: Sequence[int],
        positions: Sequence[int],
        start: int,
        mask: Tensor | None,
    ) -> Tensor:
        layer, device = self._layer, self._entries.device
        rows = layer.enter(states, self._embed(upload(tokens, device)))
        places = upload(positions, device)
        turn = self._cos.index_select(1, places), self._sin.index_select(1, places)
        query, key, value = layer.project(rows, turn)
        stop = start + len(tokens)
        self._entries[0, :, start:stop], self._entries[1, :, start:stop] = key, value
        keys, values = self._entries[:, :, :stop]
        visible = None if mask is None else upload(mask, device)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
        return layer.leave(rows, attended)


def normed(rows: Tensor) -> Tensor:
    """Return rows of root mean square 1."""
    return F.rms_norm(rows, rows.shape[-1:], eps=1e-6)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = states.chunk(2, -1)
    turned = torch.cat([-high, low], -1)
    out: Tensor = states * cos + turned * sin
    return out
