"""A next-token table with exact laws: the oracle model of tests and contract checks.

The law of the next token depends on the last `order` visible tokens through a seeded table of
logits, so every probability can be enumerated. It honours what a cached transformer honours
(committed prefix, positions, masks, truncate, keep), at no cost.

Letters: V vocabulary, N rows of a call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decoders.core.model import Session
from decoders.core.types import Call


class TableModel:
    """A `Model` whose logits are a fixed random function of the last `order` tokens.

    Args:
        vocab_size: V.
        seed: two seeds give two independent tables (a target and its draft).
        order: how many tokens of context the law sees; fewer where fewer exist.
        scale: spread of the logits; small is high entropy.
        agree_with: a model whose logits are mixed in, so that a draft resembles its target …
        agreement: … with this weight in [0, 1].
    """

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
        """See the class."""
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.device = torch.device("cpu")
        self.weight_bytes = 0
        self.num_forwards = 0
        self._seed, self._order, self._scale = seed, order, scale
        self._agree_with, self._agreement = agree_with, agreement
        self._laws: dict[tuple[int, ...], Tensor] = {}
        self._capacity = 0
        self._sessions: list[Session | None] = []
        self._tokens: list[list[tuple[int, int]]] = []  # per cache row: (position, token)

    def cache_bytes(self) -> int:
        """A table has no cache to speak of."""
        return 0

    def holds(self, num_rows: int, capacity: int) -> bool:
        """See `Model.holds`."""
        return num_rows <= len(self._sessions) and capacity <= self._capacity

    def reserve(self, num_rows: int, capacity: int) -> None:
        """See `Model.reserve`."""
        assert not any(self._sessions), "reserve while a session is open"
        self._capacity = capacity
        self._sessions = [None] * num_rows
        self._tokens = [[] for _ in range(num_rows)]

    def open(self) -> Session:
        """See `Model.open`."""
        assert None in self._sessions, f"all {len(self._sessions)} cache rows are taken"
        row = self._sessions.index(None)
        session = Session(self, row, self._capacity)
        self._sessions[row] = session
        return session

    def close(self, session: Session) -> None:
        """See `Model.close`."""
        last = max(row for row, owner in enumerate(self._sessions) if owner is not None)
        mover = self._sessions[last]
        self._sessions[last] = None
        if mover is not None and mover is not session:
            self._tokens[session.row] = self._tokens[last]
            self._tokens[last] = []
            self._sessions[session.row] = mover
            mover.row = session.row

    def logits(self, context: Sequence[int]) -> Tensor:
        """The logits ``[V]`` after `context` (only its last `order` tokens matter)."""
        key = tuple(context[-self._order :]) if self._order else ()
        if key not in self._laws:
            digest = hashlib.blake2b(repr((self._seed, key)).encode(), digest_size=8).digest()
            generator = np.random.Generator(np.random.Philox(int.from_bytes(digest, "little")))
            own = torch.from_numpy(generator.normal(0, self._scale, self.vocab_size)).float()
            if self._agree_with is not None:
                other = self._agree_with.logits(context)
                own = self._agreement * other + (1 - self._agreement) * own
            self._laws[key] = own
        return self._laws[key]

    def forward(self, calls: Sequence[Call]) -> Tensor:
        """See `Model.forward`: logits ``[sum R, V]``."""
        self.num_forwards += 1
        rows = [row for call in calls for row in self._run(call)]
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size)

    def _run(self, call: Call) -> list[Tensor]:
        session = call.session
        cache = self._tokens[session.row]
        del cache[session.length :]
        first = session.length
        positions = call.positions or range(first, first + len(call.tokens))
        fed = list(zip(positions, call.tokens, strict=True))
        logits = []
        for row in call.read:
            sees = range(row + 1) if call.mask is None else call.mask[row].nonzero().flatten()
            visible = sorted(cache + [fed[int(other)] for other in sees])
            logits.append(self.logits([token for _, token in visible]))
        cache.extend(fed)
        session.committed(call)
        return logits

    def gather(self, session: Session, sources: Sequence[int], start: int) -> None:
        """See `Model.gather`."""
        cache = self._tokens[session.row]
        cache[start : start + len(sources)] = [cache[source] for source in sources]
