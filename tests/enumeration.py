"""The distribution of answers by enumeration: the oracle that sampled answers are held against."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    open_ = [_Path({}, 1.0)]
    while open_:
        path = open_.pop()
        answer = run(_Scripted(path, open_, grid))
        distribution[answer] += path.mass  # of all the uniforms that the run has asked for
    return dict(distribution)


def _size(grid: Grid, stream: str, position: int, candidate: int) -> int:
    if isinstance(grid, int):
        return grid
    return grid[stream] if isinstance(grid, Mapping) else grid(stream, position, candidate)


@dataclass
class _Path:
    """Values of uniforms by address, and the mass of the cell that they span."""

    values: dict[Any, float]
    mass: float


class _Scripted:
    """Answers a new uniform with its grid's first value, and opens a path for each other one."""

    def __init__(self, path: _Path, open_: list[_Path], grid: Grid, step: int = 0) -> None:
        self._path, self._open, self._grid, self._step = path, open_, grid, step

    def at_step(self, step: int) -> "_Scripted":
        return _Scripted(self._path, self._open, self._grid, step)

    def at(self, stream: str, position: int, candidate: int = 0) -> float:
        address, path = (stream, position, candidate, self._step), self._path
        if address not in path.values:
            size = _size(self._grid, stream, position, candidate)
            path.mass /= size
            first, *others = [(step + 0.5) / size for step in range(size)]
            self._open += [_Path({**path.values, address: u}, path.mass) for u in others]
            path.values[address] = first
        return path.values[address]
