"""`DraftLayer`: a decoder layer on the last hidden states of a causal LM that drafts its tokens.

An input row joins the hidden state at a position with the embedding of the token picked there. The
output estimates the last hidden state at the next position: the model's frozen head predicts a
token from it, and the layer continues from it. Source: EAGLE (arXiv 2401.15077), on the layer's own
states as in EAGLE-3 (2503.01840). Norms before products have no weights: the products absorb them.
Letters: N rows, R rows read, D hidden width, H heads, E width of a head, C entries, W words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from decoders.core.adapter.draft_pass import DraftPass, Inputs, Run, Texts, normed, unpack, write
from decoders.core.adapter.growth import Trees, grow, tree_results
from decoders.core.adapter.module import HiddenAdapter, spread
from decoders.core.adapter_config import AdapterConfig, SizeRule
from decoders.core.device import upload
from decoders.core.kernels import fused_kernels
from decoders.core.products import attention, gated, product, rotated
from decoders.core.types import CallResult, DraftShape, Sampling

_THETA = 10_000.0
Turn = tuple[Tensor, Tensor]
"""Cosines and sines ``[..., 1, N, E]`` that rotate queries and keys by position."""


class TransformerBlock(nn.Module):
    """A decoder layer: attention and a gated MLP, each after a norm without weights."""

    num_heads: int
    attention: nn.Parameter
    attention_out: nn.Parameter
    feed: nn.Parameter
    feed_out: nn.Parameter

    def draw(self, generator: torch.Generator, config: AdapterConfig) -> None:
        """Draw fresh weights, with an MLP whose width is the `rank`."""
        self.num_heads, width, inner = config.num_heads, config.width, config.rank
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
        turn = turn[0].to(query.dtype), turn[1].to(query.dtype)
        return rotated(query, turn), rotated(key, turn), value

    def passed(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return the output ``[..., N, D]`` from input rows and attention ``[..., H, N, E]``."""
        rows = rows + product(attended.transpose(-3, -2).flatten(-2), self.attention_out)
        return rows + product(gated(product(normed(rows), self.feed)), self.feed_out)


class Joined(HiddenAdapter):
    """A network of decoder layers whose input rows join hidden states with tokens picked there."""

    example: ClassVar[Mapping[str, Any]] = {"num_heads": 2}
    join: nn.Parameter

    @classmethod
    def rules(cls, config: AdapterConfig) -> Sequence[SizeRule]:
        """See `HiddenAdapter.rules`."""
        num, width = config.num_heads, config.width
        parts = f"a number that divides the width of {width} into even parts"
        return (
            (num >= 1 and width % (2 * num) == 0, "num_heads", parts),
            (config.num_words >= 0, "num_words", "1 or above, or 0 for all"),
        )

    def enter(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Join states of L layers ``[..., L D]`` and embedded tokens ``[..., D]`` into rows."""
        states = normed(states.reshape(*states.shape[:-1], -1, self.config.width)).flatten(-2)
        return product(torch.cat([states, normed(embedded)], -1), self.join)


@lru_cache(64)  # graphs depend on nothing else of a sampling
def _warping(sampling: Sampling) -> Sampling:
    return replace(sampling, max_new_tokens=1, stop_ids=frozenset(), seed=0, law=None)


class LayerPass(DraftPass):
    """A forward pass of a draft layer: logits ``[R, W]`` and states ``[R, D]`` of the rows read.

    For a `name` it grows trees (`grow`) from several passes, so that one CUDA graph holds them all.
    """

    layers: Any
    num_brief = 1

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run a `DraftPass` on rows and a mask, or grow trees by a shape and a sampling."""
        if name is not None:
            shape, sampling = name
            inputs = unpack(inputs, shape.depth * shape.width if shape.draws else 0)
            if shape.draws:
                uniforms = inputs["extra"].view(torch.float64)
                inputs["uniforms"] = uniforms.reshape(-1, shape.depth, shape.width)
            how: dict[str, Any] = {"limit": shape.depth, "stops": False, "sync": False}
            trees = self._grow(shape, sampling, inputs, planes, None, self, **how)
            return (trees.drafts, trees.probs)[: 1 + shape.draws]
        out = self.layers(self.embed(inputs["ids"]), inputs, planes)
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
        **how: Any,
    ) -> Trees:
        """Grow trees after texts of up to `seen` entries (None: unknown), as `how` tells `grow`."""
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
        how |= {name: inputs.get(name) for name in ("uniforms", "depths")}
        return grow(*first, step, shape, sampling, words=self.words, **how)

    def draft(self, texts: Texts, run: Run, size: int) -> Sequence[CallResult]:
        """Grow a tree after each text, by one graph for all of it if graphs have fixed shapes."""
        shape, sampling = texts.first.shape, _warping(texts.first.sampling)
        planes, fixed = texts.planes, texts.seen is None
        uniforms = texts.uniforms if shape.draws else None
        on_cpu = planes[0].device.type == "cpu"
        for sync in (on_cpu and not fixed, True):  # again if top-p left a row open
            if fixed and not sync:
                extra = None if uniforms is None else uniforms.flatten(1)
                drafts, *probs = run((shape, sampling), texts.packed(extra), planes)
                laws = probs[0] if probs else drafts.new_empty(len(drafts), 0, 0)
                batch = Trees(drafts, laws, [shape.depth] * len(texts.calls))
            else:
                inputs = {**texts.inputs}
                if uniforms is not None:
                    inputs["uniforms"] = upload(uniforms, planes[0].device)
                how: dict[str, Any] = {"limit": max(texts.depths), "stops": on_cpu, "sync": sync}
                batch = self._grow(shape, sampling, inputs, planes, texts.seen, run, **how)
            trees = batch.drafts.tolist()
            if sync or not [chance for tree in trees for chance in tree[3] if chance != chance]:
                break
        for each, levels in zip(texts.calls, batch.levels, strict=True):
            if each is not None:
                depth = levels if fixed else min(levels, each.max_depth)
                each.session.drafted(each, depth, len(each.tokens) + shape.width * (depth - 1))
        results = tree_results(trees, batch.probs, self.words, size)
        return [each for each, call in zip(results, texts.calls, strict=True) if call is not None]


class DraftLayer(Joined, TransformerBlock):
    """The weights of a draft layer: the join, attention, a gated MLP and the last norm."""

    variant, uses = "eagle", ("num_heads", "num_words")
    work = LayerPass
    words: Tensor

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Make fresh weights, or raise `ValueError` for a configuration of another kind."""
        super().__init__(config)
        width, generator = config.width, torch.Generator().manual_seed(seed)
        self.join = spread(generator, width, 2 * width)
        self.draw(generator, config)
        self.scale = nn.Parameter(torch.ones(width))
        if config.num_words:
            self.register_buffer("words", torch.arange(config.num_words))

    def forward(self, embedded: Tensor, inputs: Inputs, planes: Sequence[Tensor]) -> Tensor:
        """Return states ``[B, N, D]`` of rows with embedded tokens ``[B, N, D]``."""
        sees, rows = inputs["mask.draft"], self.enter(inputs["states"], embedded)
        turn, entries = self.turn(inputs["positions"]), inputs["entries"]
        if kernels := fused_kernels(rows):
            heads = product(normed(rows), self.attention)
            query = kernels.turn_heads(heads, turn, None, 0.0, planes, entries)
        else:
            query, *key_value = self.project(rows, turn)
            write(planes, entries, key_value)
        keys, values = (plane[:, :, : sees.shape[-1]] for plane in planes)
        return self.leave(rows, attention(query, keys, values, sees).transpose(1, 2))

    def leave(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return states ``[..., N, D]`` from input rows and attention ``[..., H, N, E]``."""
        return normed(self.passed(rows, attended)) * self.scale
