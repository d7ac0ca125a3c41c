"""`DraftLayer`: a decoder layer on the last hidden states of a causal LM that drafts its tokens.

An input row joins the hidden state at a position with the embedding of the token picked there. The
output estimates the last hidden state at the next position: the model's frozen head predicts a
token from it, and the layer continues from it. Source: EAGLE (arXiv 2401.15077), on the layer's own
states as in EAGLE-3 (2503.01840). Norms before products have no weights: the products absorb them.
Letters: N rows, R rows read, D hidden width, H heads, E width of a head, C entries, W words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core import masks
from decoders.core.adapter.module import HiddenAdapter, spread
from decoders.core.adapter_config import AdapterConfig
from decoders.core.graph_size import graph_size
from decoders.core.products import attention, product
from decoders.core.types import MAX_DRAFTS
from decoders.core.upload import upload

Inputs = Mapping[str, Tensor]
Function = Callable[[Tensor], Tensor]
"""A model's embedding or head."""
Run = Callable[[Any, Inputs, Sequence[Tensor]], Sequence[Tensor]]
"""Runs a `DraftPass`, or a graph of it, on a name, inputs and planes."""
_THETA = 10_000.0
Turn = tuple[Tensor, Tensor]
"""Cosines and sines ``[..., 1, N, E]`` that rotate queries and keys by position."""


class TransformerBlock:
    """A decoder layer: attention and a gated MLP, each after a norm without weights."""

    num_heads: int
    attention: nn.Parameter
    attention_out: nn.Parameter
    feed: nn.Parameter
    feed_out: nn.Parameter

    def draw(self, generator: torch.Generator, *, width: int, inner: int, num_heads: int) -> None:
        """Draw fresh weights, with an MLP of width `inner`."""
        self.num_heads = num_heads
        self.attention = spread(generator, 3 * width, width)
        self.attention_out = spread(generator, width, width)
        self.feed = spread(generator, 2 * inner, width)
        self.feed_out = spread(generator, width, inner)

    def turn(self, positions: Tensor) -> Turn:
        """Return cosines and sines of positions ``[N]`` or, in batches, ``[..., N]``."""
        width = self.attention.shape[1] // self.num_heads
        steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
        angles = (positions[..., None].float() / _THETA**steps).unsqueeze(-3)
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(self.attention.dtype), angles.sin().to(self.attention.dtype)

    def project(self, rows: Tensor, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values ``[..., H, N, E]`` of rows ``[..., N, D]``.

        `turn` rotates by the rows' positions.
        """
        projected = product(normed(rows), self.attention)
        split = (*rows.shape[:-1], 3, self.num_heads, rows.shape[-1] // self.num_heads)
        query, key, value = projected.view(split).movedim(-3, 0).transpose(-3, -2)
        cos, sin = (part.to(query.dtype) for part in turn)
        return _rotated(query, cos, sin), _rotated(key, cos, sin), value

    def passed(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return the output ``[..., N, D]`` from input rows and attention ``[..., H, N, E]``."""
        rows = rows + product(attended.transpose(-3, -2).flatten(-2), self.attention_out)
        gate, up = product(normed(rows), self.feed).chunk(2, -1)
        return rows + product(F.silu(gate) * up, self.feed_out)


class Joined(HiddenAdapter):
    """An adapter whose input rows join hidden states with the tokens picked there."""

    join: nn.Parameter

    def enter(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Join states and embedded tokens, both ``[..., D]``, into rows ``[..., D]``."""
        return product(torch.cat([normed(states), normed(embedded)], -1), self.join)


class DraftLayer(Joined, TransformerBlock):
    """The weights of a draft layer: the join, attention, a gated MLP and the last norm."""

    variant, sized = "eagle", "feed"
    words: Tensor

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Make fresh weights, or raise `ValueError` for a configuration of another kind."""
        super().__init__(config)
        width, inner = config.width, config.rank
        generator = torch.Generator().manual_seed(seed)
        self.join = spread(generator, width, 2 * width)
        self.draw(generator, width=width, inner=inner, num_heads=config.num_heads)
        self.scale = nn.Parameter(torch.ones(width))
        if config.num_words:
            self.register_buffer("words", torch.arange(config.num_words))

    @classmethod
    def parameter_shape(cls, config: AdapterConfig) -> tuple[int, ...]:
        """Return the MLP's width, for gate and value together, and the model's width."""
        return 2 * config.rank, config.width

    def leave(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return states ``[..., N, D]`` from input rows and attention ``[..., H, N, E]``."""
        return normed(self.passed(rows, attended)) * self.scale


class ShortHead(nn.Module):
    """A model's head for frequent words only.

    A draft layer proposes no other words. Source: FR-Spec (arXiv 2502.14856).
    """

    words: Tensor
    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: Any, words: Tensor) -> None:
        """Copy the rows of a linear head for `words` (int64 ``[W]``)."""
        super().__init__()
        bias = getattr(head, "bias", None)
        self.register_buffer("words", words)
        self.register_buffer("weight", head.weight.detach()[words])
        self.register_buffer("bias", None if bias is None else bias.detach()[words])

    def forward(self, states: Tensor) -> Tensor:
        """Return logits ``[..., W]`` of states ``[..., D]``."""
        return product(states, self.weight, self.bias)


class DraftPass:
    """A pass of an adapter on hidden states that takes only tensors, so that a graph holds it."""

    layers: Any

    def __init__(self, layers: HiddenAdapter, embed: Function, head: Function) -> None:
        """Take an adapter, and the model's embedding and head."""
        self.layers, self.embed, self.head = layers, embed, head

    def planes(self, capacity: int) -> list[Tensor]:
        """Allocate keys and values ``[1, H, C, E]`` of each layer for `capacity` rows of text."""
        config, like = self.layers.config, next(self.layers.parameters())
        room = capacity + max(config.num_slots, MAX_DRAFTS)
        shape = 1, config.num_heads, room, config.width // config.num_heads
        return [like.new_zeros(shape) for _ in range(2 * max(1, config.num_layers))]

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the pass, which reads and writes the planes."""
        raise NotImplementedError


class LayerPass(DraftPass):
    """A forward pass of a draft layer: logits ``[R, W]`` and states ``[R, D]`` of the rows read."""

    layers: DraftLayer

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run a `DraftPass` on the inputs that `DraftCache` lays out."""
        layer, entries, sees = self.layers, inputs["entries"][0], inputs["mask.draft"]
        rows = layer.enter(inputs["states"], self.embed(inputs["ids"]))
        query, *key_value = layer.project(rows, layer.turn(inputs["positions"][0]))
        write(planes, entries, key_value)
        keys, values = (plane[:, :, : sees.shape[-1]] for plane in planes)
        attended = attention(query, keys, values, sees)
        out = layer.leave(rows, attended)[0].index_select(0, inputs["read"])
        return self.head(out).float(), out


class TextCache:
    """The keys and values that draft layers store for the text of one sequence."""

    def __init__(
        self,
        run: Run,
        planes: Sequence[Tensor],
        *,
        bucketed: int = 0,
        words: Sequence[int] | None = None,
    ) -> None:
        """Begin an empty text, with `planes` of any content.

        Args:
            run: runs a forward pass.
            planes: memory for keys and values.
            bucketed: passes of up to this many rows are padded to a power of two.
            words: ids of the W words that logits cover; None: the vocabulary.
        """
        self.words = words
        self._run, self._planes, self._bucketed = run, planes, bucketed
        self._device, self._length = planes[0].device, 0

    def _seen(self, entries: int, rows: int) -> int:
        """Return the number of entries that a pass reads: if bucketed, all of the planes."""
        return self._planes[0].shape[2] if rows <= self._bucketed else entries

    def _padded(self, rows: int) -> int:
        """Round rows up to at least 2, or if bucketed to a power of two from 8 on, for a graph."""
        bucketed = rows <= self._bucketed
        return graph_size(max(rows, 8 * bucketed), bucketed)

    def _text(self, states: Tensor, tokens: Sequence[int], room: int) -> dict[str, Tensor]:
        """Lay rows out for a pass, padded to `room` rows with copies of the last row."""
        missing = room - len(tokens)
        ids = upload([[*tokens, *[tokens[-1]] * missing]], self._device)
        if missing:
            states = torch.cat([states, states[-1:].expand(missing, -1)])
        return {"states": states[None], "ids": ids}


class DraftCache(TextCache):
    """The keys and values of a draft layer's text, and of the drafts after it."""

    _parents: Sequence[int] = ()

    @torch.inference_mode()
    def feed(self, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append text, drop drafts and return logits ``[1, W]`` and state ``[1, D]`` of its end."""
        self._parents = ()
        start, num_rows = self._length, len(tokens)
        self._length += num_rows
        mask = torch.ones(num_rows, self._length, dtype=torch.bool).tril_(start)
        positions = range(start, self._length)
        return self._passed(states, tokens, positions, start, mask, [num_rows - 1])

    @torch.inference_mode()
    def draft(
        self, states: Tensor, tokens: Sequence[int], parents: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Append drafts (parent -1: text's end) and return logits ``[N, W]``, states ``[N, D]``."""
        first = len(self._parents)
        self._parents = [*self._parents, *parents]
        positions = [self._length + depth for depth in masks.depths(self._parents)[first:]]
        mask = torch.ones(len(tokens), self._length + len(self._parents), dtype=torch.bool)
        mask[:, self._length :] = masks.tree(self._parents)[first:]
        rows = range(len(tokens))
        return self._passed(states, tokens, positions, self._length + first, mask, rows)

    def _passed(
        self,
        states: Tensor,
        tokens: Sequence[int],
        positions: Sequence[int],
        start: int,
        mask: Tensor,
        read: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        num_rows, room, device = len(tokens), self._padded(len(tokens)), self._device
        missing, seen = room - num_rows, self._seen(mask.shape[1], num_rows)
        sees = F.pad(mask, (0, seen - mask.shape[1], 0, missing))
        sees[num_rows:, 0] = True  # a row that sees nothing would be NaN
        indices = [*read, *[0] * (self._padded(len(read)) - len(read))]
        inputs = self._text(states, tokens, room) | {
            "positions": upload([[*positions, *[0] * missing]], device),
            "entries": upload([[*range(start, start + room)]], device),
            "mask.draft": upload(sees[None, None], device),
            "read": upload(indices, device),
        }
        logits, after = self._run(None, inputs, self._planes)
        return logits[: len(read)], after[: len(read)]


def write(planes: Sequence[Tensor], entries: Tensor, new: Sequence[Tensor]) -> None:
    """Write keys and values ``[1, H, N, E]`` to entries ``[N]`` of their planes."""
    for plane, each in zip(planes, new, strict=True):
        plane.index_copy_(2, entries, each)


def normed(rows: Tensor) -> Tensor:
    """Scale each row to a root mean square of 1."""
    return F.rms_norm(rows, rows.shape[-1:], eps=1e-6)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = states.chunk(2, -1)
    turned = torch.cat([-high, low], -1)
    out: Tensor = states * cos + turned * sin
    return out
