"""`ParallelLayers`: a few decoder layers on the last hidden states draft K tokens in one pass.

A row of text joins the state behind a position with the token picked there (EAGLE, arXiv
2401.15077); every layer makes keys and values of it and the row itself goes no further (DFlash, see
docs/decoders/shallow.md). K slots behind the last row run through the layers at once. Slot j
carries the uniform u of the token j places after the last one known, which the target will pick by
it, and predicts that token (PTP, arXiv 2512.21323). What was drafted before a slot puts a low-rank
bias on its logits (DSpark).

Letters: K slots, L layers, N rows, D hidden width, H heads, E width of a head, W words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.config import AdapterConfig
from decoders.core.adapter.draft_layer import Block, ShortHead, normed
from decoders.core.adapter.embedding import UniformEmbedding
from decoders.core.adapter.module import HiddenAdapter, spread
from decoders.core.types import NO_UNIFORM
from decoders.core.upload import upload

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention of a layer's slots, given its number and their queries, keys and values."""
_CANDIDATES = 32  # of a slot, to which the bias is added


class _Layer(nn.Module, Block):
    def __init__(self, generator: torch.Generator, config: AdapterConfig) -> None:
        super().__init__()
        sizes = {"width": config.width, "inner": config.rank, "num_heads": config.num_heads}
        self.draw(generator, **sizes)


class ParallelLayers(HiddenAdapter):
    """The weights: the join, what slots begin as, the layers, the last norm and the bias."""

    variant, sized = "shallow", "numbers"
    words: Tensor

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Make fresh weights without a bias; `ValueError` for a configuration of another kind."""
        super().__init__(config)
        width, dyadic = config.width, config.code == "dyadic"
        generator = torch.Generator().manual_seed(seed)
        self.join = spread(generator, width, 2 * width)
        self.start = spread(generator, width, width)
        self.numbers = nn.Parameter(torch.zeros(config.num_slots, width))
        self.warmth = nn.Parameter(torch.zeros(width))
        self.layers = nn.ModuleList(_Layer(generator, config) for _ in range(config.num_layers))
        self.scale = nn.Parameter(torch.ones(width))
        left = torch.rand(config.num_words + 1, config.bias_rank, generator=generator) - 0.5
        self.left = nn.Parameter(left)  # the last row: all other tokens'
        self.right = nn.Parameter(torch.zeros(config.num_words, config.bias_rank))
        self.register_buffer("words", torch.arange(config.num_words))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # noqa: TID251 - nn.Linear draws from it; forked
            self.embedding = UniformEmbedding(config.code, width, hidden=width * dyadic)

    @classmethod
    def shape_of(cls, config: AdapterConfig) -> tuple[int, ...]:
        """Return the number of slots and the width of the model."""
        return config.num_slots, config.width

    @classmethod
    def _check(cls, config: AdapterConfig, state: Mapping[str, Tensor]) -> None:
        super()._check(config, state)
        found = state["right"], state[f"layers.{config.num_layers - 1}.feed"]
        sizes = (config.num_words, config.bias_rank), (2 * config.rank, config.width)
        if sizes != (stored := tuple(tuple(each.shape) for each in found)):
            raise ValueError(f"its sizes are {sizes}, its weights' {stored}")

    def enter(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Join states and embedded tokens, both ``[..., D]``, as rows ``[..., D]``."""
        return F.linear(torch.cat([normed(states), normed(embedded)], -1), self.join)

    def entries(self, rows: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values ``[..., H, N, E]`` of text ``[..., N, D]``, layer by layer."""
        return [layer.project(rows, positions)[1:] for layer in self._blocks]

    def slots(self, last: Tensor, u: Tensor, temperature: Tensor | float) -> Tensor:
        """Return slots ``[..., K, D]`` behind last rows ``[..., D]``.

        `u` is ``[..., K]`` float64 or `NO_UNIFORM`; the sampling's `temperature` (0: greedy) is one
        or ``[..., 1, 1]``.
        """
        flat = self.embedding(u.flatten(), u.new_empty(0))
        given = F.linear(normed(last), self.start).unsqueeze(-2)
        beside = self.numbers[: u.shape[-1]] + temperature * self.warmth
        slots: Tensor = given + flat.view(*u.shape, -1) + beside
        return slots

    def forward(self, slots: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return what the model's head reads, ``[..., N, D]``, of slots ``[..., N, D]``."""
        for number, layer in enumerate(self._blocks):
            slots = layer.passed(slots, attend(number, *layer.project(slots, positions)))
        return normed(slots) * self.scale

    def index(self, tokens: Tensor) -> Tensor:
        """Return where tokens stand among the words; W where they do not."""
        index = torch.searchsorted(self.words, tokens).clamp(max=len(self.words) - 1)
        return torch.where(self.words[index] == tokens, index, len(self.words))

    @property
    def _blocks(self) -> list[_Layer]:
        return [layer for layer in self.layers if isinstance(layer, _Layer)]


class SlotCache:
    """The keys and values of a text, in one sequence; slots run behind them and leave nothing."""

    def __init__(
        self,
        layers: ParallelLayers,
        embed: Callable[[Tensor], Tensor],
        head: ShortHead,
        capacity: int,
    ) -> None:
        """Make room for `capacity` rows of text; `embed` and `head` are the model's own."""
        config, weight = layers.config, layers.join
        self._layers, self._embed, self._head = layers, embed, head
        room = capacity + config.num_slots
        shape = (config.num_layers, 2, config.num_heads, room, config.width // config.num_heads)
        self._entries = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self._length = 0

    @torch.inference_mode()
    def propose(
        self, states: Tensor, tokens: Sequence[int], uniforms: Sequence[float], temperature: float
    ) -> tuple[list[int], list[float]]:
        """Append text and draft behind it: tokens and their chances, one for each uniform.

        States are ``[N, D]``; at temperature 0 uniforms do not count. The host waits once.
        """
        layers, device = self._layers, self._entries.device
        start, stop = self._length, self._length + len(tokens)
        end, self._length = stop + len(uniforms), stop
        ids, positions = upload(tokens, device), torch.arange(start, end, device=device)
        rows = layers.enter(states, self._embed(ids))
        for kept, entries in zip(
            self._entries, layers.entries(rows, positions[: len(tokens)]), strict=True
        ):
            kept[0, :, start:stop], kept[1, :, start:stop] = entries
        sees = torch.ones(len(uniforms), end, dtype=torch.bool, device=device).tril_(stop)

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            kept = self._entries[number]
            kept[0, :, stop:end], kept[1, :, stop:end] = key, value
            keys, values = kept[:, :, :end]
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=sees)

        given = uniforms if temperature else [NO_UNIFORM] * len(uniforms)
        u = upload(given, device, torch.float64)
        out = layers(layers.slots(rows[-1], u, temperature), positions[len(tokens) :], attend)
        return chain(layers, self._head.short(out).float(), ids[-1:])


def chain(layers: ParallelLayers, logits: Tensor, before: Tensor) -> tuple[list[int], list[float]]:
    """Return the likeliest word of each slot behind the one picked before it, and its chance.

    Logits are ``[K, W]``, without the bias; `before` is the id ``[1]`` of the last token known. The
    bias counts among a slot's likeliest `_CANDIDATES` alone.
    """
    values, index = logits.topk(min(_CANDIDATES, logits.shape[-1]))
    others = logits.scatter(-1, index, float("-inf")).logsumexp(-1)
    right = layers.right[index].float()
    picks, known = [], layers.index(before)
    for number in range(len(logits)):
        if layers.config.bias_rank:  # else they are sorted, the likeliest first
            values[number] += right[number] @ layers.left[known].float()[0]
        known = index[number].gather(0, values[number].argmax(-1, keepdim=True))
        picks.append(known)
    whole = torch.logaddexp(values.logsumexp(-1), others)
    chances = (values.amax(-1) - whole).exp()
    tokens, sure = torch.stack([layers.words[torch.cat(picks)].double(), chances.double()]).tolist()
    return [int(token) for token in tokens], sure
