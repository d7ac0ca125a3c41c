"""Times the calls of cost cells, in sessions whose caches are filled to the needed length.

The cache is filled once per number of sequences, with keys and values of real tokens: memory that
was never written is shared by the system and can be read faster than real memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Self

from bench.extras.cost.records import CostCell
from bench.machine.clock import Clock, Stopwatch
from decoders.core.engine.models import Models
from decoders.core.model import Call, Model, Session

_PREFIX = 16
"""Tokens that are really fed; the rest of a cache is filled with copies of their states."""


class Sequences:
    """Open sessions of a model, with caches filled to the longest context of some cells."""

    def __init__(self, model: Model, cells: Collection[CostCell]) -> None:
        self._model = model
        (self._count,) = {cell.sequences for cell in cells}
        self._context = max(cell.context for cell in cells)
        self._capacity = max(cell.context + cell.rows for cell in cells)
        self._sessions: list[Session] = []

    def __enter__(self) -> Self:
        self._model.reserve(self._count, self._capacity)
        self._sessions = [self._model.open() for _ in range(self._count)]
        try:
            fed = min(_PREFIX, self._context)
            self._model.forward(
                [session.call(self._tokens(fed), read=()) for session in self._sessions]
            )
            for session in self._sessions:
                have = fed
                while have < self._context:
                    count = min(have, self._context - have)
                    self._model.gather(session, range(count), have)
                    have += count
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._sessions:
            self._model.close(self._sessions.pop())

    def _tokens(self, count: int) -> list[int]:
        return [(7 + 31 * index) % self._model.vocab_size for index in range(count)]

    def calls(self, cell: CostCell) -> list[Call]:
        """Make the calls of a cell, one per sequence."""
        for session in self._sessions:
            session.length = cell.context  # `_fill` wrote the cache up to there
        return [
            session.call(self._tokens(cell.rows), output="logits", read=range(cell.rows))
            for session in self._sessions
        ]

    def timed(self, cell: CostCell, clock: Clock) -> float:
        """Return the seconds of one call; repeat a call that compiled a graph."""
        models, calls = Models(target=self._model), self.calls(cell)
        before = models.num_graphs
        seconds = timed(lambda: self._model.forward(calls), clock)
        return self.timed(cell, clock) if models.num_graphs > before else seconds


def timed(work: Callable[[], object], clock: Clock) -> float:
    """Return the seconds that `work` takes."""
    with Stopwatch(clock) as watch:
        work()
    return watch.total_s
