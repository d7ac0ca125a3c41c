"""A small causal transformer that reads tokens and uniforms alike, all weights shared.

A C-PTP slot is one more row of the same model, after the tokens of its context and the earlier
slots of its window; its input is the embedding of the uniform that picked a token, where an
ordinary row's is the embedding of the token: a window's rows are those of a plain causal model on
``[tokens before the start, u, u, ...]``. Many windows of a row share the states of its tokens:
attention looks at those and at the window's own states by separate products under one softmax.

Letters: B rows, W windows of a row, N inputs of a window, S tokens of a row, D width, H heads,
E head size, M states of a window, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.embedding import Code, UniformEmbedding

_EPS = 1e-6
_ROPE_BASE = 10_000.0

State = tuple[Tensor, Tensor]
"""Keys and values of one layer, ``[B, W, H, M, E]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Sizes, the code of uniforms (see `UniformEmbedding`), and the seed of the first weights."""

    width: int = 128
    layers: int = 5
    heads: int = 4
    intermediate: int = 344
    code: Code = "dyadic"
    embedding_hidden: int = 128
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse heads that do not divide the width into even sizes."""
        if self.heads < 1:
            raise ValueError(f"{self.heads} heads: use 1 or more")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} with {self.heads} heads: use a multiple of {2 * self.heads}"
            )


@dataclass(frozen=True, slots=True)
class Past:
    """States of rows' tokens, layer by layer (W = 1), and an additive mask ``[B, 1, W, 1, S]``."""

    states: list[State]
    mask: Tensor

    @classmethod
    def of(cls, states: list[State], starts: Tensor) -> Past:
        """Return what windows at `starts` ``[B, W]`` see: the tokens before their start."""
        seen = torch.arange(states[0][0].shape[3]) < starts[..., None]
        mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        return cls(states, mask[:, None, :, None])


class Steps:
    """Preallocated states of windows that are fed one input at a time."""

    def __init__(self, settings: ModelSettings, sizes: tuple[int, int, int]) -> None:
        """Reserve states of (B, W, M) inputs in every layer."""
        rows, windows, length = sizes
        room = (rows, windows, settings.heads, length, settings.width // settings.heads)
        self.states = [(torch.empty(room), torch.empty(room)) for _ in range(settings.layers)]
        self.filled = 0

    def with_new(self, layer: int, new: State) -> State:
        """Store the states of one input; return all of this layer's states so far."""
        so_far = []
        for room, fresh in zip(self.states[layer], new, strict=True):
            room[..., self.filled : self.filled + 1, :] = fresh
            so_far.append(room[..., : self.filled + 1, :])
        return so_far[0], so_far[1]


class _TransformerBlock(nn.Module):
    """Attention with rotary positions, then a gated feed-forward (Llama's layer, no biases)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width, inner = settings.width, settings.intermediate
        self.heads = settings.heads
        self.attention_norm = nn.RMSNorm(width, _EPS)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, _EPS)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def inputs(self, x: Tensor, rotary: State) -> tuple[Tensor, State]:
        """Return queries ``[B, W, H, N, E]`` and the states of inputs ``[B, W, N, D]``."""
        parts = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(3, 0, 1, 4, 2, 5)
        return _rotate(q, rotary), (_rotate(k, rotary), v)

    def outputs(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's result from attention's ``[B, W, H, N, E]``."""
        x = x + self.out(mixed.transpose(2, 3).flatten(-2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        change: Tensor = self.down(F.silu(gate) * up)
        return x + change


class SlotTransformer(nn.Module):
    """The model; `uniforms` embeds slots, everything else is an ordinary causal LM."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        """Draw fresh weights from the settings' seed."""
        super().__init__()
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)  # noqa: TID251 - layers draw from it; forked
            self.tokens = nn.Embedding(vocab_size, settings.width)
            self.layers = nn.ModuleList(_TransformerBlock(settings) for _ in range(settings.layers))
            self.norm = nn.RMSNorm(settings.width, _EPS)
            self.head = nn.Linear(settings.width, vocab_size, bias=False)
            self.uniforms = UniformEmbedding(
                settings.code, settings.width, hidden=settings.embedding_hidden
            )
        self.uniforms.match(self.tokens.weight)

    def embed_uniforms(self, u: Tensor) -> Tensor:
        """Return slot inputs ``[..., D]`` of u ``[...]``."""
        warp = torch.ones(u.numel(), 2)
        embedded: Tensor = self.uniforms(u.flatten(), warp)
        return embedded.view(*u.shape, -1)

    def context(self, ids: Tensor) -> tuple[Tensor, list[State]]:
        """Return hidden states ``[B, S, D]`` of rows of tokens, and their states."""
        x = self.tokens(ids)[:, None]
        hidden, states = self(x, torch.arange(ids.shape[1]).expand(x.shape[:-1]))
        return hidden[:, 0], states

    def forward(
        self, x: Tensor, positions: Tensor, past: Past | None = None, steps: Steps | None = None
    ) -> tuple[Tensor, list[State]]:
        """Return final hidden states of inputs ``[B, W, N, D]``, and their states.

        Inputs of a window see the `past`; `steps` keep states from call to call, for one input
        each.
        """
        rotary = _rotary(positions, self.settings.width // self.settings.heads)
        outputs = []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, _TransformerBlock)
            query, own = layer.inputs(x, rotary)
            if steps is not None:
                own = steps.with_new(index, own)
            outputs.append(own)
            far = None if past is None else (*past.states[index], past.mask)
            mixed = _attend(query, own, far)
            x = layer.outputs(x, mixed)
        if steps is not None:
            steps.filled += 1
        return self.norm(x), outputs


def _attend(query: Tensor, own: State, past: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
    """Attend with queries ``[B, W, H, N, E]`` of the last N inputs of windows.

    `own` states are seen causally, keys and values ``[B, 1, H, S, E]`` of the `past` by its mask.
    """
    keys, values = own
    num_rows, num_windows, heads, rows, size = query.shape
    length = keys.shape[3]
    query = query * size**-0.5
    scores = torch.bmm(query.flatten(0, 2), keys.flatten(0, 2).mT)
    if rows > 1:
        hidden = torch.ones(rows, length, dtype=torch.bool).triu_(length - rows + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if past is None:
        return torch.bmm(scores.softmax(-1), values.flatten(0, 2)).view(query.shape)
    far_keys, far_values, mask = past
    num_far = far_keys.shape[3]
    flat = (num_rows * heads, num_windows * rows)
    far_query = query.transpose(1, 2).reshape(*flat, size)
    far = torch.bmm(far_query, far_keys.flatten(0, 2).mT)
    far = far.view(num_rows, heads, num_windows, rows, num_far) + mask
    near = scores.view(num_rows, num_windows, heads, rows, length)
    weights = torch.cat([far.transpose(1, 2), near], -1).softmax(-1)
    far_weights = weights[..., :num_far].transpose(1, 2).reshape(*flat, num_far)
    mixed = torch.bmm(far_weights, far_values.flatten(0, 2))
    mixed = mixed.view(num_rows, heads, num_windows, rows, size).transpose(1, 2)
    near_weights = weights[..., num_far:].reshape(-1, rows, length)
    return mixed + torch.bmm(near_weights, values.flatten(0, 2)).view(query.shape)


def _rotary(positions: Tensor, size: int) -> State:
    """Return cosines and sines ``[B, W, 1, N, E]``."""
    rates = _ROPE_BASE ** -(torch.arange(0, size, 2) / size)
    angles = positions[:, :, None, :, None] * torch.cat([rates, rates])
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rotary: State) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * rotary[0] + torch.cat([-high, low], -1) * rotary[1]
