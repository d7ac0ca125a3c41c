"""`DraftLayer`: a decoder layer on the last hidden states of a causal LM that drafts its tokens.

An input row joins the hidden state at a position with the embedding of the token picked there. The
output estimates the last hidden state at the next position: the model's frozen head predicts a
token from it, and the layer continues from it. Source: EAGLE (arXiv 2401.15077), on the layer's own
states as in EAGLE-3 (2503.01840). Norms before products have no weights: the products absorb them.
Letters: N rows, R rows read, D hidden width, H heads, E width of a head, C entries, W words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from decoders.core.adapter.growth import Trees, grow, tree_results
from decoders.core.adapter.module import HiddenAdapter, spread
from decoders.core.adapter_config import AdapterConfig
from decoders.core.graph_size import graph_size
from decoders.core.model import DraftCall
from decoders.core.products import attention, product
from decoders.core.types import MAX_DRAFTS, CallResult, DraftShape, Sampling
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

    @property
    def words(self) -> Tensor | None:
        """Ids of the words that logits cover, or None for the vocabulary."""
        return self.head.words if isinstance(self.head, ShortHead) else None

    @property
    def num_bytes(self) -> int:
        """Bytes besides the adapter's weights."""
        return self.head.weight.nbytes if isinstance(self.head, ShortHead) else 0

    def planes(self, num_rows: int, capacity: int) -> list[Tensor]:
        """Allocate keys and values ``[num_rows, H, C, E]`` of each layer for text and drafts."""
        config, like = self.layers.config, next(self.layers.parameters())
        room = max(config.num_slots, MAX_DRAFTS) + 1
        room = capacity + 2 * room  # the last part is for rows of padding and of no call
        shape = num_rows, config.num_heads, room, config.width // config.num_heads
        return [like.new_zeros(shape) for _ in range(2 * max(1, config.num_layers))]

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the pass, which reads and writes the planes."""
        raise NotImplementedError

    def draft(self, texts: Texts, run: Run, size: int) -> Sequence[CallResult]:
        """Draft after texts, count the work and return a result per call, for `size` ids."""
        raise NotImplementedError


@dataclass(frozen=True)
class Texts:
    """New text of B sequences, laid out as N rows of each, padded with zeros.

    Attributes:
        calls: a draft call for each row of the planes, or None.
        inputs: `states` ``[B, N, D]``, `ids`, `positions` and `entries` ``[B, N]``; `last`, flat
            indices ``[B]`` of the last rows; `ends` ``[B, 1]`` of the texts, and `depths`
            ``[B, 1]`` of their drafts, if they may differ.
        planes: keys and values ``[B, H, C, E]``.
        seen: the end of the longest text; None: passes read all entries, as graphs need it.
    """

    calls: Sequence[DraftCall | None]
    inputs: dict[str, Tensor]
    planes: Sequence[Tensor]
    seen: int | None

    @classmethod
    def of(cls, calls: Sequence[DraftCall | None], planes: Sequence[Tensor], bucketed: int) -> Self:
        """Lay calls out, padding up to `bucketed` rows to a power of two from 8 on."""
        if not planes:
            return cls(calls, {}, planes, None)
        present = [call for call in calls if call is not None]
        max_rows = max(call.num_rows for call in present)
        fixed = max_rows <= bucketed
        width = graph_size(max(max_rows, 8 * fixed), fixed)
        scrap = planes[0].shape[2] - 1
        nowhere = scrap - max(MAX_DRAFTS, present[0].shape.depth)
        packed, last_end = list[list[int]](), 0
        for number, call in enumerate(calls):
            tokens = () if call is None else call.tokens
            start = 0 if call is None else call.session.fed.get(call.name, 0)
            end, rest = start + len(tokens), width - len(tokens)
            places, last_end = range(start, end), max(last_end, end)
            last = number * width + max(0, len(tokens) - 1)
            rows = [*tokens, *[0] * rest, *places, *[0] * rest, *places, *[scrap] * rest]
            depth = 0 if call is None else call.max_depth
            packed.append([*rows, last, end if tokens else nowhere, depth])
        like = present[0].states
        numbers = upload(packed, like.device)
        ids, positions, entries = (numbers[:, n * width : (n + 1) * width] for n in range(3))
        missing = like.new_zeros(1, like.shape[1])
        states = pad_sequence([missing if call is None else call.states for call in calls], True)
        states = F.pad(states, (0, 0, 0, width - states.shape[1]))
        inputs = {"states": states, "ids": ids, "positions": positions, "entries": entries}
        inputs |= {"last": numbers[:, -3], "ends": numbers[:, -2:-1]}
        if fixed or len({call.max_depth for call in present}) > 1:
            inputs["depths"] = numbers[:, -1:]
        return cls(calls, inputs, planes, None if fixed else last_end)

    @property
    def first(self) -> DraftCall:
        """The first call, whose name, shape and sampling all calls share."""
        return next(call for call in self.calls if call is not None)

    @property
    def depths(self) -> list[int]:
        """The depth that each call asks for."""
        return [0 if call is None else call.max_depth for call in self.calls]

    def uniforms(self, *shape: int) -> Tensor:
        """Upload the calls' uniforms as float64 ``[B, …]`` (0.5 where there is no call)."""
        none = (0.5,) * math.prod(shape)
        numbers = [none if call is None else call.uniforms for call in self.calls]
        device = self.first.states.device
        return upload(numbers, device, torch.float64).view(len(self.calls), *shape)


class LayerPass(DraftPass):
    """A forward pass of a draft layer: logits ``[R, W]`` and states ``[R, D]`` of the rows read.

    For a `name` it grows trees (`grow`) from several passes, so that one CUDA graph holds them all.
    """

    layers: DraftLayer

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run a `DraftPass` on rows and a mask, or grow trees by a shape and a sampling."""
        if name is not None:
            shape, sampling = name
            how: dict[str, Any] = {"limit": shape.depth, "stops": False, "sync": False}
            return self._grow(shape, sampling, inputs, planes, None, self, **how)[:2]
        layer, sees = self.layers, inputs["mask.draft"]
        rows = layer.enter(inputs["states"], self.embed(inputs["ids"]))
        query, *key_value = layer.project(rows, layer.turn(inputs["positions"]))
        write(planes, inputs["entries"], key_value)
        keys, values = (plane[:, :, : sees.shape[-1]] for plane in planes)
        out = layer.leave(rows, attention(query, keys, values, sees))
        out = out.flatten(0, 1).index_select(0, inputs["read"])
        return self.head(out).float(), out

    def _grow(
        self,
        shape: DraftShape,
        sampling: Sampling,
        inputs: Inputs,
        planes: Sequence[Tensor],
        seen: int | None,
        run: Run,
        *,
        limit: int,
        stops: bool,
        sync: bool,
    ) -> Trees:
        positions, ends = inputs["positions"], inputs["ends"]
        num, device = len(positions), positions.device
        reach = planes[0].shape[2] if seen is None else seen + shape.width * shape.depth
        columns, drafted, level = torch.arange(reach, device=device), 0, 0
        sees = (columns < ends).unsqueeze(1)

        def step(states: Tensor, ids: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal sees, drafted, level
            num_rows = ids.shape[1]
            entries = columns[drafted : drafted + num_rows] + ends
            before = sees.gather(1, parents.unsqueeze(-1).expand(-1, -1, len(columns)))
            sees = before | (columns == entries.unsqueeze(-1))
            rows = {
                "states": states,
                "ids": ids,
                "positions": (ends + level).expand_as(ids),
                "entries": entries,
                "mask.draft": sees.unsqueeze(1),
                "read": torch.arange(num * num_rows, device=device),
            }
            drafted, level = drafted + num_rows, level + 1
            logits, out = run(None, rows, planes)
            return logits.view(num, num_rows, -1), out.view(num, num_rows, -1)

        rows = {name: inputs[name] for name in ("states", "ids", "positions", "entries")}
        rows["mask.draft"] = (columns[:seen] <= positions.unsqueeze(-1)).unsqueeze(1)
        rows["read"] = inputs["last"].repeat(1 + (num == 1))  # one row would need another graph
        logits, out = run(None, rows, planes)
        first = logits[:num].unsqueeze(1), out[:num].unsqueeze(1)
        how: dict[str, Any] = {"words": self.words, "stops": stops, "sync": sync}
        how |= {"uniforms": inputs.get("uniforms"), "depths": inputs.get("depths"), "limit": limit}
        return grow(*first, step, shape, sampling, **how)

    def draft(self, texts: Texts, run: Run, size: int) -> Sequence[CallResult]:
        """Grow a tree after each text, by one graph for all of it if graphs have fixed shapes."""
        shape, sampling = texts.first.shape, replace(texts.first.sampling, seed=0)
        inputs, planes, fixed = texts.inputs, texts.planes, texts.seen is None
        if shape.draws:
            inputs = {**inputs, "uniforms": texts.uniforms(shape.depth, shape.width)}
        on_cpu = planes[0].device.type == "cpu"
        for sync in (on_cpu and not fixed, True):  # again if top-p left a row open
            if fixed and not sync:
                drafts, probs = run((shape, sampling), inputs, planes)
                batch = Trees(drafts, probs, [shape.depth] * len(texts.calls))
            else:
                how: dict[str, Any] = {"limit": max(texts.depths), "stops": on_cpu, "sync": sync}
                batch = self._grow(shape, sampling, inputs, planes, texts.seen, run, **how)
            trees = batch.drafts.tolist()
            if sync or not any(chance != chance for tree in trees for chance in tree[3]):
                break
        for each, levels in zip(texts.calls, batch.levels, strict=True):
            if each is not None:
                depth = levels if fixed else min(levels, each.max_depth)
                each.session.drafted(each, depth, each.num_rows + shape.width * (depth - 1))
        results = tree_results(trees, batch.probs, self.words, size)
        return [each for each, call in zip(results, texts.calls, strict=True) if call is not None]


def write(planes: Sequence[Tensor], entries: Tensor, new: Sequence[Tensor]) -> None:
    """Write keys and values ``[B, H, N, E]`` to entries ``[B, N]`` of their planes."""
    num_rows, num_heads, capacity, _ = planes[0].shape
    first = torch.arange(num_rows * num_heads, device=entries.device).view(num_rows, -1, 1)
    index = (first * capacity + entries.unsqueeze(1)).flatten()
    for plane, each in zip(planes, new, strict=True):
        plane.view(-1, plane.shape[-1]).index_copy_(0, index, each.flatten(0, 2))


def normed(rows: Tensor) -> Tensor:
    """Scale each row to a root mean square of 1."""
    return F.rms_norm(rows, rows.shape[-1:], eps=1e-6)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = states.chunk(2, -1)
    turned = torch.cat([-high, low], -1)
    out: Tensor = states * cos + turned * sin
    return out
