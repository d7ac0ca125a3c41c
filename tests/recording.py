"""A model with known distributions that remembers the calls it was given."""

from collections.abc import Sequence

from torch import Tensor

from decoders.core.testing.table_model import TableModel
from decoders.core.types import Call


class Recording(TableModel):
    """Remembers its calls."""

    def __init__(self) -> None:
        super().__init__(5, seed=1, scale=2.0)
        self.seen: list[Call] = []

    def forward(self, calls: Sequence[Call]) -> Tensor:
        self.seen += calls
        return super().forward(calls)
