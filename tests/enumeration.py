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


def integrated(run: Callable[[Any], Any], grid: int | Mapping[str, int]) -> Distribution:
    """The distribution of what `run` returns over all values of the uniforms that it asks for.

    Each runs over the midpoints of a grid, or of its stream's. Exact where every threshold is a
    multiple of the grid's step.
    """
    distribution: defaultdict[Any, float] = defaultdict(float)
    open_: list[tuple[dict, float]] = [({}, 1.0)]
    while open_:
        known, mass = open_.pop()
        try:
            distribution[run(_Scripted(known))] += mass
        except _Unknown as unknown:
            (address,) = unknown.args
            size = grid if isinstance(grid, int) else grid[address[0]]
            steps = [(step + 0.5) / size for step in range(size)]
            open_ += [({**known, address: u}, mass / size) for u in steps]
    return dict(distribution)


class _Unknown(Exception):
    """A uniform is asked for that has no value yet."""


class _Scripted:
    def __init__(self, known: dict) -> None:
        self._known = known

    def at(self, *address: Any) -> float:
        if address not in self._known:
            raise _Unknown(address)
        return self._known[address]
