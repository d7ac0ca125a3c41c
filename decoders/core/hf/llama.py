"""The forward pass of Llama's family as functions of tensors: without modules, hooks and state.

It serves Llama, Mistral, Qwen2, Qwen3 and models of their shape, among them SmolLM, TinyLlama and
the models of the zoo. All other architectures run through transformers' modules. Weights are views
of the loaded module's, joined where they share an input. `hf.self_check` compares the result with
transformers' own forward whenever a model is opened.

Letters: B sequences, N rows of a sequence, T cache entries seen, D hidden width, H query heads, K
key-value heads, E width of a head, R rank of an adapter, P token rows of a call with late slots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core import products
from decoders.core.adapter.gating import Change, Delta, join, join_deltas
from decoders.core.adapter.runtime import LateSlots
from decoders.core.hf.cache import PlaneCache
from decoders.core.hf.layout import Masks, MergedRows
from decoders.core.kernels import fused_kernels
from decoders.core.products import attention, gated, product, rotated

FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Classes of transformers whose forward pass this file computes."""
_FIXED_TURNS = ("default", "linear", "llama3", "yarn")
"""Types of rotation that depend on the position alone."""
Turn = tuple[Tensor, Tensor]
"""Cosines and sines ``[B, 1, N, E]`` that rotate queries and keys by position."""
_MAX_TURNS = 1 << 24
"""Most cosines of a table: 131,072 positions of heads of 128."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A product with a weight ``[out, in]`` and, in some models, a bias ``[out]``.

    `names` are the module's layers, whose outputs lie side by side.
    """

    names: Sequence[str]
    sizes: Sequence[int]
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The weights of a decoder layer: queries, keys and values are one product, gate and up too.

    `head_norms` are the weights ``[E]`` of the norms of queries and keys.
    """

    attention_norm: Tensor
    attention: Linear
    head_norms: tuple[Tensor, Tensor] | None
    attention_out: Linear
    feed_norm: Tensor
    feed: Linear
    feed_out: Linear
    kind: str

    @property
    def linears(self) -> tuple[Linear, Linear, Linear, Linear]:
        """The four products in the order of the pass."""
        return self.attention, self.attention_out, self.feed, self.feed_out


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights and sizes of a model.

    `turn` maps states and positions ``[B, N]`` to cosines and sines ``[B, N, E]``. Training has
    another way to `attend`.
    """

    layers: Sequence[DecoderLayer]
    norm: Tensor
    turn: Callable[[Tensor, Tensor], Turn]
    activation: Callable[[Tensor], Tensor]
    epsilon: float
    num_heads: int
    num_shared: int
    scale: float
    attend: Callable[..., Tensor] = attention


@dataclass(frozen=True, slots=True)
class SlotGate:
    """An adapter's changes by layer and product, and the rows' gate ``[B, N, 1]`` (None: all 1)."""

    changes: Sequence[Sequence[Change]]
    rows: Tensor | None


def join_weights(module: Any) -> Weights | None:
    """Return the weights of a transformers causal LM, or None if it needs its own modules.

    Weights that share an input are joined in memory: the module's become views of them.
    """
    config = module.config.get_text_config()
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if (
        type(module).__name__ not in FAMILY
        or config._attn_implementation != "sdpa"
        or any(type(part) is not nn.Linear or hasattr(part, "_hf_hook") for part in linears)
        or len({part.weight.device for part in linears}) > 1
    ):
        return None
    body, layers = module.model, []
    for number, part in enumerate(body.layers):
        at, feed = f"model.layers.{number}.self_attn", f"model.layers.{number}.mlp"
        norms: list[Any] = [getattr(part.self_attn, name, None) for name in ("q_norm", "k_norm")]
        layers.append(
            DecoderLayer(
                attention_norm=part.input_layernorm.weight,
                attention=_linear(part.self_attn, at, "q_proj", "k_proj", "v_proj"),
                head_norms=(norms[0].weight, norms[1].weight) if all(norms) else None,
                attention_out=_linear(part.self_attn, at, "o_proj"),
                feed_norm=part.post_attention_layernorm.weight,
                feed=_linear(part.mlp, feed, "gate_proj", "up_proj"),
                feed_out=_linear(part.mlp, feed, "down_proj"),
                kind=config.layer_types[number] if getattr(config, "layer_types", None) else "",
            )
        )
    return Weights(
        layers=layers,
        norm=body.norm.weight,
        turn=_turn(body.rotary_emb, body.norm.weight, config.max_position_embeddings),
        activation=F.silu if config.hidden_act == "silu" else body.layers[0].mlp.act_fn,
        epsilon=config.rms_norm_eps,
        num_heads=config.num_attention_heads,
        num_shared=config.num_key_value_heads,
        scale=body.layers[0].self_attn.scaling,
    )


@torch.no_grad()
def _turn(module: Any, like: Tensor, num: int) -> Callable[[Tensor, Tensor], Turn]:
    """Return a table of `num` positions on a GPU, or the module if a text's length counts.

    A table rounds like the module, but on a CPU compiled calls round later.
    """
    size = num * 2 * module.inv_freq.numel()
    if not like.is_cuda or module.rope_type not in _FIXED_TURNS or size > _MAX_TURNS:
        return module  # type: ignore[no-any-return]
    turns = module(like, torch.arange(num, device=like.device)[None])
    cosines, sines = (each[0] for each in turns)
    return lambda _, positions: (F.embedding(positions, cosines), F.embedding(positions, sines))


def _linear(part: Any, path: str, *names: str) -> Linear:
    members = [getattr(part, name) for name in names]
    biases: list[Tensor] = [
        each.weight.new_zeros(each.out_features) if each.bias is None else each.bias
        for each in members
    ]
    return Linear(
        names=[f"{path}.{name}" for name in names],
        sizes=[each.out_features for each in members],
        weight=join(members),
        bias=torch.cat(biases) if any(each.bias is not None for each in members) else None,
    )


def forward(
    weights: Weights,
    rows: Tensor,
    positions: Tensor,
    masks: Masks,
    cache: PlaneCache,
    *,
    gate: SlotGate | None = None,
    late: LateSlots | None = None,
    merged: MergedRows | None = None,
    states: dict[int, Tensor | None] | None = None,
) -> Tensor:
    """Return hidden states ``[B, N, D]`` after the last norm.

    Args:
        weights: the model's.
        rows: embedded rows ``[B, N, D]``.
        positions: of the rows, ``[B, N]``.
        masks: additive, ``[B, 1, N, T]`` by kind of layer, or None (`layout.Masks`).
        cache: takes keys and values of rows.
        gate: the adapter that slots run through; None: there are no slots.
        late: slots that enter above the first layer; a lone call's leave lower layers out.
        merged: how rows ``[1, R]`` of B sequences attend.
        states: by the number of a layer, from 1; set to its output without a norm.
    """
    states = {} if states is None else states
    if merged is not None:
        weights = dataclasses.replace(weights, attend=partial(merged.attend, weights.attend))
    cosines, sines = weights.turn(rows, positions)
    turn = cosines[:, None], sines[:, None]
    below = range(0 if late is None else late.adapter.config.enter)
    if late is not None and late.tokens is not None:  # the layers below run the tokens only
        kept = cache.cut(late.tokens)
        hidden, lower, turned = _cut(late.tokens, rows, masks, turn)
        hidden = _run(weights, below, hidden, kept, lower, turned, None, states)
        rows = torch.zeros_like(rows).index_copy(1, late.tokens, hidden)
    elif late is not None:
        rows = _run(weights, below, rows, cache, masks, turn, gate, states)
    rows = rows if late is None else late.replaced(rows)
    above = range(len(below), len(weights.layers))
    rows = _run(weights, above, rows, cache, masks, turn, gate, states)
    return norm(rows, weights.norm, weights.epsilon)


def _cut(tokens: Tensor, rows: Tensor, masks: Masks, turn: Turn) -> tuple[Tensor, Masks, Turn]:
    """Return the inputs of a call's rows for some of them, `tokens` ``[P]``."""

    def cut(part: Tensor) -> Tensor:
        assert part.shape[2] == rows.shape[1], "a trace would let the two sizes differ"
        return part.index_select(2, tokens)

    kept = {kind: None if each is None else cut(each) for kind, each in masks.items()}
    return rows.index_select(1, tokens), kept, (cut(turn[0]), cut(turn[1]))


def _run(
    weights: Weights,
    numbers: range,
    rows: Tensor,
    cache: PlaneCache,
    masks: Masks,
    turn: Turn,
    gate: SlotGate | None,
    states: dict[int, Tensor | None],
) -> Tensor:
    """Run decoder layers: each adds to the rows their attention, then their MLP."""
    added: Tensor | None = None
    kernels, sizes = fused_kernels(rows), (weights.num_heads, weights.num_shared)
    add = kernels.add_norm if kernels else _add_norm
    for number in numbers:
        layer, slots = weights.layers[number], None if gate is None else gate.rows
        changes = (None,) * 4 if gate is None else gate.changes[number]
        rows, inputs = add(rows, added, layer.attention_norm, weights.epsilon)
        heads, norms = linear(inputs, layer.attention, changes[0], slots), layer.head_norms
        # queries [B, H, N, E], and all keys and values [B, K, T, E] that are seen
        if kernels and isinstance(cache, PlaneCache) and (places := cache.places(number)):
            planes, entries = places
            query = kernels.turn_heads(heads, turn, norms, weights.epsilon, planes, entries)
            keys, values = cache.seen(planes[0]), cache.seen(planes[1])
        else:
            query, key, value = _split_heads(heads, turn, norms, weights.epsilon, sizes)
            keys, values = cache.update(key, value, number)
        mixed = weights.attend(query, keys, values, masks[layer.kind], weights.scale)
        added = linear(mixed.flatten(2), layer.attention_out, changes[1], slots)
        rows, inputs = add(rows, added, layer.feed_norm, weights.epsilon)
        fed = gated(linear(inputs, layer.feed, changes[2], slots), weights.activation)
        added = linear(fed, layer.feed_out, changes[3], slots)
        if number + 1 in states:
            rows, added = rows + added, None
            states[number + 1] = rows
    return rows if added is None else rows + added


def _split_heads(
    states: Tensor, turn: Turn, norms: Sequence[Tensor] | None, epsilon: float, sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries ``[B, H, N, E]``, rotated keys ``[B, K, N, E]``, and values.

    `sizes` are H and K of the states ``[B, N, (H + 2 K) E]``; `norms` scale queries and keys.
    """
    num_heads, num_shared = sizes
    heads = states.view(*states.shape[:2], num_heads + 2 * num_shared, -1).transpose(1, 2)
    turned, value = heads.split((num_heads + num_shared, num_shared), 1)  # type: ignore[no-untyped-call]
    if norms is not None:
        query = norm(turned[:, :num_heads], norms[0], epsilon)
        turned = torch.cat((query, norm(turned[:, num_heads:], norms[1], epsilon)), 1)
    query, key = rotated(turned, turn).split(sizes, 1)  # type: ignore[no-untyped-call]
    return query, key, value


def _add_norm(
    rows: Tensor, added: Tensor | None, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return the sum of rows ``[B, N, D]`` and `added`, and the scaled sum."""
    rows = rows if added is None else rows + added
    return rows, norm(rows, weight, epsilon)


def norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Scale rows to a root mean square of 1, in float32, and multiply by a weight."""
    if rows.is_cuda:  # one kernel, where Triton is missing
        return F.rms_norm(rows, weight.shape, weight, epsilon)
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(rows.dtype)


def linear(rows: Tensor, part: Linear, change: Change, slots: Tensor | None) -> Tensor:
    """Return rows times a weight, or a changed one for slots.

    Args:
        rows: ``[B, N, in]``.
        part: weight and bias.
        change: what an adapter changes of the weight; None: nothing.
        slots: the rows' gate ``[B, N, 1]``, 1 for slots; None: all rows are slots.
    """
    if slots is None:
        weight = change if isinstance(change, Tensor) else part.weight
        out = product(rows, weight, part.bias)
        return out + change.rows(rows) if isinstance(change, Delta) else out
    if change is None:
        return product(rows, part.weight, part.bias, gate=slots)
    if isinstance(change, Tensor):
        out = products.switched_product(rows, part.weight, change, slots)
    else:
        out = products.gated_product(rows, part.weight, change.low, change.high, slots)
    return out if part.bias is None else out + part.bias


def joined_changes(weights: Weights, deltas: Mapping[str, Delta]) -> list[list[Change]]:
    """Join an adapter's deltas by layer and product."""

    def change(part: Linear) -> Change:
        parts = [deltas.get(name) for name in part.names]
        return join_deltas(parts, part.sizes, part.weight, switches=True)

    return [[change(part) for part in layer.linears] for layer in weights.layers]
