"""The distribution of answers by enumeration: the oracle that sampled answers are held against."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from decoders.core.decoder import Decoder
from decoders.core.engine import sequence
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.sampling import warp
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Outcome, Sampling

Distribution = dict[Any, float]
_TOGETHER = 64
"""Answers of a batch: alone, most of their time goes into the passes."""


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
    return _integrated(lambda each: [*map(run, each)], grid)


def integrated_answers(
    decoder: Decoder,
    models: Models,
    prompt: Sequence[int],
    sampling: Sampling,
    grid: Grid,
    *,
    seen: Callable[[Any], Any] = lambda uniforms: uniforms,
    read: Callable[[Outcome], Any] | None = None,
) -> Distribution:
    """The distribution of a decoder's answers to a prompt, as `integrated` has it, in batches.

    The decoder works with what `seen` makes of its uniforms. `read` is what is counted of an
    outcome; without it that is the tokens, and an answer that fails raises its error.
    """

    def run(scripted: Sequence[Any]) -> list[Any]:
        with mock.patch.object(sequence, "Uniforms", side_effect=map(seen, scripted)):
            outcomes = Scheduler(decoder, models, sampling, _TOGETHER).run([prompt] * len(scripted))
        return [*map(read or _tokens, outcomes)]

    return _integrated(run, grid)


def _tokens(outcome: Outcome) -> tuple[int, ...]:
    if not isinstance(outcome, Generation):
        raise outcome
    return outcome.tokens


def _integrated(run: Callable[[Sequence[Any]], Sequence[Any]], grid: Grid) -> Distribution:
    distribution: defaultdict[Any, float] = defaultdict(float)
    open_ = [_Path({}, 1.0)]
    while open_:
        paths = open_[-_TOGETHER:]
        del open_[-_TOGETHER:]
        answers = run([_Scripted(path, open_, grid) for path in paths])
        for path, answer in zip(paths, answers, strict=True):
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
