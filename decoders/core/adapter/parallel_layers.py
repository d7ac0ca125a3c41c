"""`ParallelLayers`: a few decoder layers on the last hidden states draft K tokens in one pass.

A row of text joins the hidden state at a position with the token picked there (EAGLE, arXiv
2401.15077). Every layer computes keys and values from this row, and the row is not processed any
further (DFlash, see docs/decoders/shallow.md). K slots after the last row run through the layers at
once. Slot j carries the uniform u by which the target will pick the j-th token after the last known
token, and predicts that token (PTP, arXiv 2512.21323). The token before a slot adds a low-rank bias
to the slot's logits (DSpark), in a selector only to its candidates, and by the slot's state (DFlash
2, see docs/decoders/shallow.md).

Letters: B sequences, K slots, L layers, N rows, D hidden width, H heads, E width of a head, W
words, C candidates, R rank of the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoders.core.adapter.draft_layer import Joined, TransformerBlock, Turn
from decoders.core.adapter.draft_pass import DraftPass, Inputs, Run, Texts, normed, unpack, write
from decoders.core.adapter.embedding import UniformEmbedding, all_levels, level_index
from decoders.core.adapter.module import spread
from decoders.core.adapter_config import AdapterConfig, SizeRule
from decoders.core.device import upload
from decoders.core.products import attention, product
from decoders.core.types import NO_UNIFORM, CallResult


class SlotPass(DraftPass):
    """A pass of slots after new text that returns drafts and probabilities, ``[B, 2, K]``."""

    layers: ParallelLayers
    num_brief = 1

    @torch.no_grad()
    def __init__(self, layers: ParallelLayers, *rest: Any) -> None:
        """See `DraftPass`."""
        super().__init__(layers, *rest)
        self.levels = layers.embedded(all_levels().to(layers.join.device))

    @property
    def num_bytes(self) -> int:
        """Bytes besides the adapter's weights, embedded uniforms included."""
        return super().num_bytes + self.levels.nbytes

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run a `DraftPass` on `Texts` and the slots after them."""
        if "packed" in inputs:
            texts = unpack(inputs, name[0])
            inputs = self._slots(texts, planes, texts["extra"], name[1], None)
        layers, last, entries = self.layers, inputs["last"], inputs["entries"]
        behind, sees, levels = inputs["behind"], inputs["sees"], inputs["levels"]
        rows = layers.enter(inputs["states"], self.embed(inputs["ids"]))
        text = layers.entries(rows, layers.turn(inputs["positions"]))
        write(planes, entries, [part for pair in text for part in pair])

        def attend(number: int, query: Tensor, *entries: Tensor) -> Tensor:
            both = planes[2 * number : 2 * number + 2]
            write(both, behind, entries)
            keys, values = (plane[:, :, : sees.shape[-1]] for plane in both)
            return attention(query, keys, values, sees).transpose(1, 2)

        embedded = self.levels.index_select(0, levels.flatten()).view(*levels.shape, -1)
        anchors = rows.flatten(0, 1).index_select(0, last)
        slots = layers.slots(anchors, embedded, inputs["warmth"])
        out = layers(slots, layers.turn(behind), attend)
        before = inputs["ids"].flatten().index_select(0, last)
        logits = self.head(out).float()
        if layers.num_candidates:
            return (layers.select(logits, out, before),)
        return (layers.chain(logits, before),)

    def _slots(
        self, rows: Inputs, planes: Sequence[Tensor], levels: Tensor, warmth: float, seen: Any
    ) -> dict[str, Tensor]:
        """Return the inputs of a pass with slots of these `levels` ``[B, K]`` after each text."""
        columns, num_slots = torch.arange(planes[0].shape[2], device=levels.device), levels.shape[1]
        behind = rows["ends"] + columns[:num_slots]
        reach = None if seen is None else seen + num_slots
        return {
            **{name: rows[name] for name in ("states", "ids", "positions", "entries", "last")},
            "behind": behind,
            "sees": (columns[:reach] <= behind.unsqueeze(-1)).unsqueeze(1),
            "levels": levels,
            "warmth": planes[0].new_full((1,), warmth),
        }

    def draft(self, texts: Texts, run: Run, size: int) -> Sequence[CallResult]:
        """Draft a token per slot after each text. At temperature 0 the uniforms are ignored."""
        num_slots, warmth = texts.first.shape.depth, texts.first.sampling.temperature
        unknown, planes = (NO_UNIFORM,) * num_slots, texts.planes
        uniforms = [each.uniforms if each and warmth else unknown for each in texts.calls]
        levels = torch.tensor([[*map(level_index, row)] for row in uniforms])
        if texts.seen is None:
            (drafted,) = run((num_slots, warmth), texts.packed(levels), planes)
        else:
            levels = upload(levels, planes[0].device)
            inputs = self._slots(texts.inputs, planes, levels, warmth, texts.seen)
            (drafted,) = run(f"{num_slots} slots", inputs, planes)
        results = []
        for each, (tokens, chances) in zip(texts.calls, drafted.tolist(), strict=True):
            if each is not None:
                each.session.drafted(each, 1, each.num_rows + num_slots)
                picks = tuple(map(int, tokens))
                results.append(CallResult(picks=picks, confidences=tuple(chances)))
        return results


class ParallelLayers(Joined):
    """The weights: the join, the slots' inputs, the layers, the last norm and the bias."""

    variant, student, masked = "shallow", "slots", False
    uses = ("num_heads", "num_words", "num_layers", "bias_rank", "candidates", "hidden_layers")
    work, example = SlotPass, {"num_heads": 2, "num_layers": 1, "num_words": 1}
    words: Tensor
    layers: Any

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Make fresh weights with a zero bias, or raise `ValueError` for other settings."""
        super().__init__(config)
        width, dyadic = config.width, config.code == "dyadic"
        generator = torch.Generator().manual_seed(seed)
        num_states = max(1, len(config.sizes.get("hidden_layers", ())))
        self.join = spread(generator, width, (1 + num_states) * width)
        self.start = spread(generator, width, width)
        self.numbers = nn.Parameter(torch.zeros(config.num_slots, width))
        self.warmth = nn.Parameter(torch.zeros(width))
        self.layers = nn.ModuleList(TransformerBlock() for _ in range(config.num_layers))
        for layer in self.layers:
            layer.draw(generator, config)
        self.scale = nn.Parameter(torch.ones(width))
        left = torch.rand(config.num_words + 1, config.bias_rank, generator=generator) - 0.5
        self.left = nn.Parameter(left)  # the last row is for all other tokens
        self.right = nn.Parameter(torch.zeros(config.num_words, config.bias_rank))
        if self.num_candidates:
            self.context = nn.Parameter(torch.zeros(config.bias_rank, width))
        self.register_buffer("words", torch.arange(config.num_words))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # noqa: TID251 - nn.Linear draws from it; forked
            self.embedding = UniformEmbedding(config.code, width, hidden=width * dyadic)

    @classmethod
    def rules(cls, config: AdapterConfig) -> Sequence[SizeRule]:
        """See `HiddenAdapter.rules`."""
        num, layers = config.sizes.get("candidates", 0), config.sizes.get("hidden_layers", [])
        are_numbers = isinstance(layers, list) and all(type(each) is int for each in layers)
        return (
            *super().rules(config),
            (config.num_words >= 1, "num_words", "1 or above"),
            (config.num_layers in range(1, 101), "num_layers", "1 to 100"),
            (config.bias_rank >= 0, "bias_rank", "0 or above"),
            (not num or config.bias_rank >= 1, "bias_rank", "1 or above with candidates"),
            (num in range(max(1, config.num_words)), "sizes", "fewer candidates than words"),
            (are_numbers, "sizes", "hidden_layers that are a list of layers' numbers"),
        )

    @property
    def num_candidates(self) -> int:
        """C, the number of candidates of a slot (0 without a selector)."""
        return int(self.config.sizes.get("candidates", 0))

    def turn(self, positions: Tensor) -> Turn:
        """Return `TransformerBlock.turn`, which all layers share."""
        turn: Turn = self.layers[0].turn(positions)
        return turn

    def entries(self, rows: Tensor, turn: Turn) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values ``[..., H, N, E]`` of text rows ``[..., N, D]``."""
        return [layer.project(rows, turn)[1:] for layer in self.layers]

    def embedded(self, u: Tensor) -> Tensor:
        """Embed uniforms ``[..., K]`` (float64, may be `NO_UNIFORM`) as vectors ``[..., K, D]``."""
        flat: Tensor = self.embedding(u.flatten(), u.new_empty(0))
        return flat.view(*u.shape, -1)

    def slots(self, last: Tensor, embedded: Tensor, temperature: Tensor | float) -> Tensor:
        """Return slots ``[..., K, D]`` of `embedded` uniforms after last text rows ``[..., D]``.

        The sampling's `temperature` (0: greedy) is a number or ``[..., 1, 1]``.
        """
        anchor = product(normed(last), self.start).unsqueeze(-2)
        beside = self.numbers[: embedded.shape[-2]] + temperature * self.warmth
        slots: Tensor = anchor + embedded + beside
        return slots

    def forward(self, slots: Tensor, turn: Turn, attend: Callable[..., Tensor]) -> Tensor:
        """Map slots ``[..., N, D]`` to inputs ``[..., N, D]`` of the model's head.

        `attend` takes a layer's number, and the slots' queries, keys and values.
        """
        for number, layer in enumerate(self.layers):
            slots = layer.passed(slots, attend(number, *layer.project(slots, turn)))
        return normed(slots) * self.scale

    def factors(self, index: Tensor, states: Tensor) -> Tensor:
        """Return the left factors ``[..., C, R]`` of words before slots of states ``[..., D]``."""
        factors: Tensor = self.left[index] * (1 + product(states, self.context)).unsqueeze(-2)
        return factors

    def index(self, tokens: Tensor) -> Tensor:
        """Return the index of each token among the words, or W for other tokens."""
        index = torch.searchsorted(self.words, tokens).clamp(max=len(self.words) - 1)
        return torch.where(self.words[index] == tokens, index, len(self.words))

    def chain(self, logits: Tensor, before: Tensor) -> Tensor:
        """Pick each slot's likeliest word, and return ids and probabilities, float64 ``[B, 2, K]``.

        A bias by the token before is added to all W words of `logits` ``[B, K, W]``. `before` are
        the ids ``[B]`` of the last known tokens.
        """
        picks, values, index = [], [], self.index(before)
        for row in logits.unbind(1):
            if self.config.bias_rank:
                row = row + product(self.left.index_select(0, index), self.right).float()
            value, index = row.max(-1)
            picks.append(index)
            values.append(value - row.logsumexp(-1))
        tokens = self.words[torch.stack(picks, 1)]
        return torch.stack([tokens.double(), torch.stack(values, 1).exp().double()], 1)

    def select(self, logits: Tensor, states: Tensor, before: Tensor) -> Tensor:
        """Pick the path through the slots' likeliest words with the most expected accepted drafts.

        `logits` ``[B, K, W]`` are without a bias, `states` ``[B, K, D]`` what they are of, and
        `before` the ids ``[B]`` of the last known tokens. The result is that of `chain`, with the
        path's conditional probabilities.
        """
        words = logits.topk(self.num_candidates).indices
        first = self.index(before)[:, None, None].expand_as(words[:, :1])
        left = self.factors(torch.cat([first, words[:, :-1]], 1), states)
        chances = self.candidate_logs(logits, words, left).exp()
        ahead, after = torch.zeros_like(chances[:, 0, 0]), list[Tensor]()
        # drafts that are expected from each word before on
        for slot in reversed(chances.unbind(1)):
            ahead, best = (slot * (1 + ahead.unsqueeze(1))).max(-1)
            after.append(best)
        path = [torch.zeros_like(first[:, 0, :1])]
        for best in reversed(after):
            path.append(best.gather(1, path[-1]))
        places = torch.stack(path, 1)
        steps = places[:, :-1] * words.shape[-1] + places[:, 1:]
        values = chances.flatten(2).gather(2, steps)
        tokens = self.words[words.gather(2, places[:, 1:])]
        return torch.stack([tokens.double(), values.double()], 1).squeeze(-1)

    def candidate_logs(self, logits: Tensor, words: Tensor, left: Tensor) -> Tensor:
        """Return log probabilities ``[..., P, C]`` of candidates after each of P words.

        The bias of `left` factors ``[..., P, R]`` on the candidates `words` ``[..., C]`` is added
        to their `logits` ``[..., W]``; other words keep theirs.
        """
        rest = logits.scatter(-1, words, float("-inf")).logsumexp(-1)[..., None, None]
        bias = (left @ self.right[words].mT).float()
        biased = logits.gather(-1, words).unsqueeze(-2) + bias
        return biased - torch.logaddexp(biased.logsumexp(-1, keepdim=True), rest)
