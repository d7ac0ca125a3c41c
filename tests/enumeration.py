"""The distribution of answers by enumeration: the oracle that sampled answers are held against."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from decoders.core.sampling import warp
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling

Distribution = dict[Any, float]


def enumerated_distribution(
    model: TableModel, prompt: list[int], sampling: Sampling, num_tokens: int
) -> dict[tuple[int, ...], float]:
    """Probability of every answer of `num_tokens` tokens on a `TableModel`, by enumeration."""
    distribution: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(num_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for answer, mass in distribution.items():
            probs = warp(model.logits([*prompt, *answer]).unsqueeze(0), sampling)[0]
            for token, prob in enumerate(probs.double().tolist()):
                if prob > 0:
                    longer[(*answer, token)] = mass * prob
        distribution = longer
    return distribution


Grid = int | Mapping[str, int] | Callable[[str, int, int], int]


def integrated(run: Callable[[Any], Any], grid: Grid) -> Distribution:
    """The distribution of what `run` returns over all values of the uniforms that it asks for.

    Each runs over the midpoints of a grid: of one size, of its stream's, or of its address's
    (stream, position, candidate). Exact where every threshold is a multiple of the grid's step. A
    uniform asked for twice has one value, as it has in `Uniforms`.
    """
    distribution: defaultdict[Any, float] = defaultdict(float)
    open_: list[tuple[dict, float]] = [({}, 1.0)]
    while open_:
        known, mass = open_.pop()
        try:
            distribution[run(_Scripted(known))] += mass
        except _Unknown as unknown:
            (address,) = unknown.args
            size = _size(grid, *address[:3])
            steps = [(step + 0.5) / size for step in range(size)]
            open_ += [({**known, address: u}, mass / size) for u in steps]
    return dict(distribution)


def _size(grid: Grid, stream: str, position: int, candidate: int) -> int:
    if isinstance(grid, int):
        return grid
    return grid[stream] if isinstance(grid, Mapping) else grid(stream, position, candidate)


class _Unknown(Exception):
    """A uniform is asked for that has no value yet."""


class _Scripted:
    def __init__(self, known: dict, step: int = 0) -> None:
        self._known, self._step = known, step

    def at_step(self, step: int) -> "_Scripted":
        return _Scripted(self._known, step)

    def at(self, stream: str, position: int, candidate: int = 0) -> float:
        address = (stream, position, candidate, self._step)
        if address not in self._known:
            raise _Unknown(address)
        return self._known[address]
