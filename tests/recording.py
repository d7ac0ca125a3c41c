"""Models with known distributions that remember the calls they were given."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from decoders.core.model import Call
from decoders.core.testing.table_model import TableModel


class Recording(TableModel):
    """Remembers its calls."""

    def __init__(self, vocab_size: int = 5, seed: int = 1, **options: Any) -> None:
        super().__init__(vocab_size, seed, **options)
        self.seen: list[Call] = []

    def forward(self, calls: Sequence[Call]) -> Tensor:
        self.seen += calls
        return super().forward(calls)


class Places(TableModel):
    """Remembers its calls, the length of the cache when they came, and their rows' places."""

    def __init__(self, vocab_size: int = 31, seed: int = 1, **options: Any) -> None:
        super().__init__(vocab_size, seed, **options)
        self.seen: list[tuple[int, Call, tuple[int, ...]]] = []

    def forward(self, calls: Sequence[Call]) -> Tensor:
        self.seen += [(call.session.length, call, call.row_positions()) for call in calls]
        return super().forward(calls)
