"""A lean forward pass of a Llama for training slots: joined weights, few copies, frozen base.

The context runs once without gradient. Slots stand in windows of one length, so their attention is
two batched products: of all slots with the context, and of each window with itself; query heads
that share a key head are rows of one product. `tests/training` holds it against transformers.

Letters: B rows, S tokens of a row, W windows of a row, L slots of a window, N = B W L slots,
D width, H query heads, K key heads, G = H / K, E head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Factors = Mapping[str, tuple[Tensor | None, Tensor]]
_JOINED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


class _Group(torch.autograd.Function):
    """``x W`` of frozen layers side by side, plus each one's ``(x A) B``; nothing is copied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, low: Tensor, *highs: Tensor) -> Tensor:
        """Take `weight` ``[in, sum out]``, the stacked A ``[in, n r]``, and B ``[r, out]`` each."""
        y = x @ weight
        inner = x @ low
        first = 0
        for part, high in zip(torch.split(inner, [len(h) for h in highs], 1), highs, strict=True):
            y[:, first : first + high.shape[1]].addmm_(part, high)
            first += high.shape[1]
        ctx.save_for_backward(x, weight, low, inner, *highs)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of x, A and B; the weight is frozen."""
        (dy,) = grads
        x, weight, low, inner, *highs = ctx.saved_tensors
        d_inner = torch.empty_like(inner)
        d_highs, first = [], 0
        for number, high in enumerate(highs):
            rank, width = high.shape
            where = slice(number * rank, (number + 1) * rank)
            part = dy[:, first : first + width]
            torch.mm(part, high.t(), out=d_inner[:, where])
            d_highs.append(inner[:, where].t() @ part)
            first += width
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (dy @ weight.t()).addmm_(d_inner, low.t())
        return dx, None, x.t() @ d_inner, *d_highs


class _Norm(torch.autograd.Function):
    """RMSNorm with a frozen weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return ``x / rms(x) * weight`` of ``[N, D]``."""
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square_()
        scale = scale.div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = (x * scale).mul_(weight)
        return normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return ``r g - x r^3 mean(g x)``, where g = dy w and r = 1 / rms."""
        x, weight, scale = ctx.saved_tensors
        inner = grads[0] * weight
        mean = (inner * x).mean(-1, keepdim=True)
        factor = mean.mul_(scale**3).neg_()
        return inner.mul_(scale).addcmul_(x, factor), None, None


class _Gate(torch.autograd.Function):
    """``silu(a) b`` of the halves a, b of ``[N, 2 M]``."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        """Save the input alone."""
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, -1)
        product: Tensor = F.silu(gate).mul_(up)
        return product

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Write both halves into one tensor."""
        (both,) = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        d_both = torch.empty_like(both)
        torch.mul(grads[0], F.silu(gate), out=d_both[:, up.shape[1] :])
        torch.ops.aten.silu_backward.grad_input(
            grads[0] * up, gate, grad_input=d_both[:, : up.shape[1]]
        )
        return (d_both,)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A decoder layer's frozen weights, transposed and joined, and the names of their deltas."""

    names: tuple[tuple[str, ...], ...]
    weights: tuple[Tensor, ...]
    norms: tuple[Tensor, Tensor]


@dataclass(slots=True)
class Context:
    """Hidden states ``[B, S, D]`` of tokens before the layer where slots enter (`entering`).

    `states` are keys and values ``[B K, S, E]`` of every layer from there on.
    """

    entering: Tensor
    states: list[tuple[Tensor, Tensor]]


class LeanLlama:
    """The frozen weights of a `LlamaForCausalLM`, laid out for training slots."""

    def __init__(self, module: Any, enter: int) -> None:
        """Copy the weights of `module`, joined; slots enter at decoder layer `enter`.

        Other architectures, biases or scaled positions raise `ValueError`.
        """
        config = module.config
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        rope = config.rope_parameters
        plain = type(module).__name__ == "LlamaForCausalLM" and rope["rope_type"] == "default"
        if not plain or config.attention_bias or config.mlp_bias or config.hidden_act != "silu":
            raise ValueError(
                f"{type(module).__name__} cannot be trained by run.lean: it is for Llama models "
                "without biases and scaled positions; set run.lean = false"
            )
        self.enter, self.eps = enter, config.rms_norm_eps
        self.embedding = module.model.embed_tokens.weight
        self.norm = module.model.norm.weight
        steps = torch.arange(0, self.size, 2).float() / self.size
        self.frequencies = (rope["rope_theta"] ** -steps).to(module.device)
        self.layers = [_joined(f"model.layers.{n}", x) for n, x in enumerate(module.model.layers)]

    @torch.no_grad()
    def context(self, ids: Tensor) -> tuple[Tensor, Context]:
        """Return final states ``[B, S, D]`` of right-padded rows, and what slots see of them."""
        batch, length = ids.shape
        x = F.embedding(ids, self.embedding).flatten(0, 1)
        cos, sin = self._rotary(torch.arange(length, device=ids.device).repeat(batch))
        entering, states = x, []
        for number, layer in enumerate(self.layers):
            if number == self.enter:
                entering = x
            q, k, v = self._heads(self._norm(x, layer.norms[0]) @ layer.weights[0], cos, sin)
            shape = (batch, length, -1, self.size)
            q, k, v = (part.view(shape).transpose(1, 2) for part in (q, k, v))
            if number >= self.enter:
                flat = (batch * self.groups, length, self.size)
                states.append((k.reshape(flat), v.reshape(flat)))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + mixed.transpose(1, 2).reshape(x.shape[0], -1) @ layer.weights[1]
            both = self._norm(x, layer.norms[1]) @ layer.weights[2]
            x = x + self._gate(both) @ layer.weights[3]
        whole = (batch, length, -1)
        return self._norm(x, self.norm).view(whole), Context(entering.view(whole), states)

    def slots(
        self,
        context: Context,
        x: Tensor,
        positions: Tensor,
        hidden: tuple[Tensor, Tensor],
        factors: Factors,
    ) -> Tensor:
        """Return final hidden states ``[B, W, L, D]`` of slots.

        They enter as `x` ``[B, W, L, D]`` at `positions` ``[B, W, L]``; `hidden` are additive masks
        of the context ``[B, W, S]`` and of the window ``[B, W, L, L]``, `factors` those of
        `SlotAdapter`.
        """
        shape = x.shape
        cos, sin = self._rotary(positions.flatten())
        x = x.reshape(-1, shape[-1])
        for layer, states in zip(self.layers[self.enter :], context.states, strict=True):
            h = self._linear(layer, 0, self._norm(x, layer.norms[0]), factors)
            mixed = self._attend(self._heads(h, cos, sin), states, shape, hidden)
            x = x + self._linear(layer, 1, mixed, factors)
            both = self._linear(layer, 2, self._norm(x, layer.norms[1]), factors)
            x = x + self._linear(layer, 3, self._gate(both), factors)
        return self._norm(x, self.norm).view(shape)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        normed: Tensor = _Norm.apply(x, weight, self.eps)  # type: ignore[no-untyped-call]
        return normed

    @staticmethod
    def _gate(both: Tensor) -> Tensor:
        product: Tensor = _Gate.apply(both)  # type: ignore[no-untyped-call]
        return product

    @staticmethod
    def _linear(layer: _Layer, part: int, x: Tensor, factors: Factors) -> Tensor:
        pairs = [factors[name] for name in layer.names[part]]
        lows = [low.t() for low, _ in pairs if low is not None]
        highs = [high.t() for _, high in pairs]
        y: Tensor = _Group.apply(x, layer.weights[part], torch.cat(lows, 1), *highs)  # type: ignore[no-untyped-call]
        return y

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[:, None, None] * self.frequencies
        return angles.cos().to(self.norm.dtype), angles.sin().to(self.norm.dtype)

    def _heads(self, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys (both rotated) and values ``[N, heads, E]``."""
        parts = h.view(len(h), -1, self.size)
        turned = self.heads + self.groups
        low, high = parts[:, :turned].chunk(2, -1)
        both = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
        return both[:, : self.heads], both[:, self.heads :], parts[:, turned:]

    def _attend(
        self,
        parts: tuple[Tensor, Tensor, Tensor],
        states: tuple[Tensor, Tensor],
        shape: torch.Size,
        hidden: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Return attention ``[N, H E]`` of slots to the context and to their windows."""
        batch, windows, slots, _ = shape
        size, groups, share = self.size, self.groups, self.heads // self.groups
        q, k, v = parts
        q = q.reshape(batch, windows, slots, groups, share, size).permute(0, 3, 1, 2, 4, 5)
        q = q.reshape(batch * groups, windows * slots * share, size)
        k, v = (
            part.reshape(batch, windows, slots, groups, size)
            .permute(0, 3, 1, 2, 4)
            .reshape(batch * groups * windows, slots, size)
            for part in (k, v)
        )
        keys, values = states
        length, rows = keys.shape[1], slots * share
        far = _scores(q, keys, size**-0.5)
        near = _scores(q.reshape(-1, rows, size), k, size**-0.5)
        far.view(batch, groups, windows, rows, length).add_(hidden[0][:, None, :, None])
        near.view(batch, groups, windows, slots, share, slots).add_(hidden[1][:, None, :, :, None])
        seen = torch.cat([far, near.view(len(far), -1, slots)], -1).softmax(-1)
        mixed = torch.bmm(seen[..., :length], values)
        own = torch.bmm(seen[..., length:].reshape(-1, rows, slots), v)
        mixed = (mixed + own.view(mixed.shape)).view(batch, groups, windows, slots, share, size)
        return mixed.permute(0, 2, 3, 1, 4, 5).reshape(-1, self.heads * size)


def _scores(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    unused = queries.new_empty(())
    return torch.baddbmm(
        unused.expand(len(queries), queries.shape[1], keys.shape[1]),
        queries,
        keys.transpose(1, 2),
        beta=0,
        alpha=scale,
    )


@torch.no_grad()
def _joined(name: str, layer: Any) -> _Layer:
    names = tuple(tuple(f"{name}.{part}" for part in parts) for parts in _JOINED)
    weights = tuple(
        torch.cat([layer.get_submodule(part).weight for part in parts]).t().contiguous()
        for parts in _JOINED
    )
    norms = (layer.input_layernorm.weight, layer.post_attention_layernorm.weight)
    return _Layer(names, weights, norms)
