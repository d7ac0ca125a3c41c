"""Define a next-token table with exact distributions, the model of tests and contract checks.

Logits are a seeded function of the last `order` visible tokens, so every probability can be
enumerated. Prefix, positions, masks, slots, `truncate` and `select_rows` work as in a cached
transformer. An adapter is a parallel student that errs in a given share of its predictions; slots
without a uniform take the likeliest tokens. The hidden state ``[R, D]`` is artificial: the last
`order` tokens as numbers after fillers of -1, from which heads and draft layers read the context.
The state of a lower layer n has the last n + 1 tokens; at layer 0 it embeds the token. A vector
``[D]`` acts as the token nearest to its last number.

Letters: V vocabulary, N rows of a call.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoders.core.adapter.growth import grow, tree_results, trees_of_heads
from decoders.core.adapter_config import SLOT_VARIANTS, AdapterConfig, Variant, is_masked
from decoders.core.model import Call, DraftCall, Model, Session
from decoders.core.plugins import network
from decoders.core.sampling import pick, warp
from decoders.core.types import MASKED, NO_UNIFORM, CallResult, Sampling, Slots

_WIDTH, _NUM_LAYERS = 8, 3
"""Minimum width D of hidden states, and the number of layers."""


class TableModel(Model):
    """Define a `Model` whose logits are a fixed random function of the last `order` tokens.

    Args:
        vocab_size: V.
        seed: two seeds give two independent tables (a target and its draft).
        order: number of context tokens that the distribution sees, if so many exist.
        scale: spread of the logits; a small scale means high entropy.
        agree_with: a model whose logits are mixed in, so that a draft model resembles its target.
        agreement: weight of these logits, in [0, 1].
    """

    weight_bytes = 0
    words: Tensor | None = None
    """Ids that draft layers propose (None: the whole vocabulary)."""

    def __init__(
        self,
        vocab_size: int = 7,
        seed: int = 0,
        *,
        order: int = 2,
        scale: float = 2.0,
        agree_with: TableModel | None = None,
        agreement: float = 0.0,
        max_length: int = 4096,
    ) -> None:
        """Make the table of these arguments (see the class)."""
        super().__init__()
        self.vocab_size, self.num_layers = vocab_size, _NUM_LAYERS
        self.max_length = max_length
        self.device = torch.device("cpu")
        self.num_forwards = 0
        self._seed, self._order, self._scale = seed, order, scale
        self._agree_with, self._agreement = agree_with, agreement
        self._distributions: dict[tuple[int, ...], Tensor] = {}
        self._tokens: list[list[tuple[int, int]]] = []  # per cache row: (position, token)
        self._adapters: dict[str, AdapterConfig] = {}
        self.errors: dict[str, float] = {}
        self._picked: dict[tuple[tuple[int, ...], float, tuple[float, float]], int] = {}

    def attach(
        self, name: str, error: float, variant: Variant = "o-ptp", *, standalone: bool = False
    ) -> None:
        """Add a student.

        Args:
            name: its name in calls.
            error: share of its slots or heads that are wrong.
            variant: its kind, see `AdapterConfig`.
            standalone: its branches replace the row before them, see `AdapterConfig`.
        """
        sizes = {} if variant in SLOT_VARIANTS else network(variant).example
        self._adapters[name] = AdapterConfig(
            variant=variant,
            code="constant" if is_masked(variant) else "dyadic",
            num_slots=6,
            layers={},
            width=_WIDTH,
            **sizes,
            anchored=standalone,
            standalone=standalone,
            greedy=True,
        )
        self.errors[name] = error

    @property
    def adapters(self) -> dict[str, AdapterConfig]:
        """See `Model.adapters`."""
        return self._adapters

    def adapter_bytes(self, name: str) -> int:
        """See `Model.adapter_bytes`."""
        assert name in self.adapters, f"{name!r} is not attached"
        return 0

    def cache_bytes(self) -> int:
        """See `Model.cache_bytes`."""
        return 0

    def reserve(self, num_rows: int, capacity: int) -> None:
        """See `Model.reserve`."""
        super().reserve(num_rows, capacity)
        self._tokens = [[] for _ in range(num_rows)]

    def copy_row(self, source: int, row: int, length: int) -> None:
        """See `Model.copy_row`."""
        self._tokens[row] = self._tokens[source][:length]

    def logits(self, context: Sequence[int]) -> Tensor:
        """Return the logits ``[V]`` after `context` (only its last `order` tokens count)."""
        key = tuple(context[-self._order :]) if self._order else ()
        if key not in self._distributions:
            digest = hashlib.blake2b(repr((self._seed, key)).encode(), digest_size=8).digest()
            generator = np.random.Generator(np.random.Philox(int.from_bytes(digest, "little")))
            noise = torch.from_numpy(generator.normal(0, self._scale, self.vocab_size)).float()
            if self._agree_with is not None:
                other = self._agree_with.logits(context)
                noise = self._agreement * other + (1 - self._agreement) * noise
            self._distributions[key] = noise
        return self._distributions[key]

    @torch.inference_mode()
    def forward(self, calls: Sequence[Call]) -> Tensor:
        """Return logits (see `Model.forward`) as inference tensors, like every real model."""
        self.num_forwards += 1
        rows = [row for call in calls for row in self._run(call)]
        logits = torch.stack(rows) if rows else torch.empty(0, self.vocab_size)
        if self.masked is not None and self.masked.mask_id is not None:
            logits[:, self.masked.mask_id] = -torch.inf
        return logits

    def _run(self, call: Call) -> list[Tensor]:
        session, slots = call.session, call.slots
        if slots is not None and slots.vectors is not None:
            numbers = slots.vectors[:, -1].round().long().clamp(0, self.vocab_size - 1).tolist()
            call = replace(call, slots=replace(slots, slot_tokens=tuple(numbers)))
        cache = self._tokens[session.row]
        del cache[session.length :]
        rows = _CallRows(call, cache)
        contexts = [rows.context(row) for row in call.read]
        logits = [self.logits(context) for context in contexts]
        if call.slots is not None:
            logits += [self._predict(call.slots, slot, rows) for slot in call.slots.read]
        before = [rows.context(row) for row in call.hidden]
        cache.extend(rows.fed)
        states = self._hidden(before) if before else None
        if call.hidden_layers:
            orders = [n + 1 if n < _NUM_LAYERS else None for n in call.hidden_layers]
            states = torch.stack([self._hidden(before, order) for order in orders], 1)
        session.committed(call, states)
        return logits

    def _hidden(self, contexts: Sequence[Sequence[int]], order: int | None = None) -> Tensor:
        order = self._order if order is None else order
        seen = [list(context)[max(0, len(context) - order) :] for context in contexts]
        width = max(_WIDTH, self._order)
        rows = [[-1] * (width - len(tokens)) + tokens for tokens in seen]
        return torch.tensor(rows, dtype=torch.float32)

    @torch.inference_mode()
    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        """Draft (see `Model.draft`) without a cache of text, as each state holds its context."""
        students = {
            "heads": self._draft_by_heads,
            "layer": self._draft_by_layer,
            "slots": self._draft_by_slots,
        }
        new = [c if c.rows is None else replace(c, states=c.states[[*c.rows]]) for c in calls]
        return [students[network(self.adapters[c.name].variant).student](c) for c in new]

    def _draft_by_heads(self, call: DraftCall) -> CallResult:
        shape, draws = call.shape, _draws(call)
        logits = self._proposed(call.name, call.states[-1], shape.depth)[None]
        call.session.drafted(call, 1, 1)
        return trees_of_heads(logits, [call.max_depth], shape, call.sampling, draws)[0]

    def _proposed(self, name: str, state: Tensor, num_heads: int) -> Tensor:
        """Return logits ``[num_heads, V]`` of heads on a state ``[D]``."""
        context, rows = self._context(state), []
        for head in range(num_heads):
            context = [*context, int(self.logits(context).argmax())]
            wrong = self._chance(repr((self._seed, context, head))) < self.errors[name]
            rows.append(self.logits(context).roll(int(wrong) * (self.vocab_size // 2)))
        return torch.stack(rows)

    def _draft_by_layer(self, call: DraftCall) -> CallResult:
        logits, after = self._drafted(call.name, call.states, call.tokens)
        num_rows = [call.num_rows]

        def step(states: Tensor, ids: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            num_rows.append(ids.shape[1])
            logits, after = self._drafted(call.name, states[0], ids[0].tolist())
            return logits[None], after[None]

        text = logits[None, -1:], after[None, -1:]
        how: dict[str, Any] = {"words": self.words, "limit": call.max_depth}
        trees = grow(*text, step, call.shape, call.sampling, _draws(call), **how)
        call.session.drafted(call, len(num_rows), sum(num_rows))
        return tree_results(trees.drafts.tolist(), trees.probs, self.words, self.vocab_size)[0]

    def _draft_by_slots(self, call: DraftCall) -> CallResult:
        """Pick drafts by their uniforms, or wrongly where the student errs."""
        temperature, error, drafts = call.sampling.temperature, self.errors[call.name], list[int]()
        context = [*self._context(call.states[-1]), call.tokens[-1]]
        for u in call.uniforms:
            wrong = self._errs([*context, int(2**20 * u)], "slot", error)
            u = u if temperature else NO_UNIFORM
            context.append(self._pick(context, u, (temperature or 1.0, 1.0)))
            drafts.append((context[-1] + wrong) % self.vocab_size)
        call.session.drafted(call, 1, call.num_rows + len(drafts))
        return CallResult(picks=tuple(drafts), confidences=(1 - error,) * len(drafts))

    @staticmethod
    def _context(state: Tensor) -> list[int]:
        return [int(token) for token in state.tolist() if token >= 0]

    def _drafted(self, name: str, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return logits ``[N, V]`` and states ``[N, D]`` of a draft layer's rows."""
        contexts = [
            [*self._context(state), token] for state, token in zip(states, tokens, strict=True)
        ]
        logits = []
        for context in contexts:
            wrong = self._errs(context, "drafted", self.errors[name])
            logits.append(self.logits(context).roll(int(wrong) * (self.vocab_size // 2)))
        return torch.stack(logits), self._hidden(contexts)

    def _errs(self, context: Sequence[int], kind: str, error: float) -> bool:
        """Return whether student `kind` errs after a context, which happens in a share `error`."""
        seen = list(context[-self._order :]) if self._order else []
        return self._chance(repr((self._seed, seen, kind))) < error

    @staticmethod
    def _chance(key: str) -> float:
        """Hash a key to a number in [0, 1)."""
        digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") / 2**32

    def _predict(self, slots: Slots, slot: int, rows: _CallRows) -> Tensor:
        context = rows.context(len(rows.fed) + slot)
        if slots.vectors is not None:
            return self.logits([*context, *(token for _, token in rows.slot_inputs(slot))])
        if self.adapters[slots.adapter].standalone:  # the first slot replaces the token before it
            ends = itertools.accumulate(slots.sizes)
            branch = next(m for m, end in enumerate(ends) if slot < end)
            context = [*context, slots.anchors[branch]]
        token = 0
        for u, slot_token in rows.slot_inputs(slot):
            token = self._pick(context, u, slots.warp) if slot_token == MASKED else slot_token
            context = [*context, token]
        chance = self._chance(repr((self._seed, context, slots.uniforms[slot])))
        wrong = chance < self.errors[slots.adapter]
        if self.adapters[slots.adapter].variant == "o-ptp":
            token = (token + wrong) % self.vocab_size
            return torch.full((self.vocab_size,), -3.0).index_fill(0, torch.tensor(token), 3.0)
        return self.logits(context).roll(int(wrong) * (self.vocab_size // 2))

    def _pick(self, context: Sequence[int], u: float, warped: tuple[float, float]) -> int:
        """Pick the token after a context by u, temperature and top-p (without u the likeliest)."""
        key = (tuple(context[-self._order :]) if self._order else (), u, warped)
        if key not in self._picked:
            distribution = self.logits(context).unsqueeze(0)
            if u == NO_UNIFORM:
                self._picked[key] = int(distribution.argmax())
            else:
                distribution = warp(distribution, Sampling(temperature=warped[0], top_p=warped[1]))
                self._picked[key] = int(pick(distribution, torch.tensor([u], dtype=torch.float64)))
        return self._picked[key]

    def gather(self, session: Session, sources: Sequence[int], start: int) -> None:
        """See `Model.gather`."""
        cache = self._tokens[session.row]
        cache[start : start + len(sources)] = [cache[source] for source in sources]


def _draws(call: DraftCall) -> Tensor | None:
    numbers = torch.tensor(call.uniforms, dtype=torch.float64)
    return numbers.view(1, call.shape.depth, call.shape.width) if call.shape.draws else None


class _CallRows:
    """Hold the rows of a call, and the tokens that each row sees."""

    def __init__(self, call: Call, cache: list[tuple[int, int]]) -> None:
        self._call, self._cache = call, cache
        self._positions = call.row_positions()
        self._seen = None if call.mask is None else call.mask.tolist()
        self.fed = list(zip(self._positions, call.tokens, strict=False))

    def _sees(self, row: int, other: int) -> bool:
        return other <= row if self._seen is None else bool(self._seen[row][other])

    def context(self, row: int) -> list[int]:
        """Return the tokens a row sees, in the order of their positions."""
        seen = [fed for other, fed in enumerate(self.fed) if self._sees(row, other)]
        return [token for _, token in sorted(self._cache + seen)]

    def slot_inputs(self, slot: int) -> list[tuple[float, int]]:
        """Return, in order, the uniforms and tokens of the slots up to a slot that it sees."""
        slots, first = self._call.slots, len(self.fed)
        assert slots is not None
        limit = self._positions[first + slot]
        seen = [
            (position, u, slots.slot_tokens[other] if slots.slot_tokens else MASKED)
            for other, u in enumerate(slots.uniforms)
            if (position := self._positions[first + other]) <= limit
            and self._sees(first + slot, first + other)
        ]
        return [(u, slot_token) for _, u, slot_token in sorted(seen)]
