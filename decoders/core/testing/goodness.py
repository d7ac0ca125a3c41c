"""Test whether drawn answers follow a distribution with known probabilities.

An answer falls into a *cell*: a likely whole answer, or a prefix too rare to expand; rarer answers
form the rest. Pearson's chi-square over cells is reported with its power: of all distributions at
total-variation distance x over the cells, those that shift every cell by the same factor have the
smallest noncentrality, 4 n x²: a distance detected in their case is always detected.
Letters: n draws, d degrees of freedom, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from decoders.core.decoder import Decoder
from decoders.core.engine.forms import apply_law
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import Model
from decoders.core.sampling import warp
from decoders.core.types import Generation, Outcome, Sampling

Answer = tuple[int, ...]
Outcomes = Answer | Literal["rest", "impossible"]
_NextDistribution = Callable[[Answer], NDArray[np.float64]]

POWER = 0.9
MIN_EXPECTED = 10
"""Minimum of a cell's expected draws, so that the tail of the chi-square distribution holds."""
_MIN_EXPANDED = 50
"""Minimum of a prefix's expected draws for which it is expanded."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Hold the exact probabilities of cells, and the possible tokens after each expanded prefix."""

    cells: Mapping[Answer, float]
    possible: Mapping[Answer, NDArray[np.bool_]]

    @property
    def rest(self) -> float:
        """The probability mass of answers outside all cells."""
        return max(0.0, 1.0 - math.fsum(self.cells.values()))

    def cell(self, answer: Answer) -> Outcomes:
        """Return the cell of an answer, ``rest``, or ``impossible`` if its probability is 0."""
        for length in range(len(answer) + 1):
            prefix = answer[:length]
            if prefix in self.cells:
                return prefix
            possible = self.possible.get(prefix)
            if possible is None:
                return "rest"
            if length == len(answer) or not possible[answer[length]]:
                return "impossible"
        raise AssertionError("the loop returns at the answer's end")


def enumerate_distribution(
    next_distribution: _NextDistribution,
    num_tokens: int,
    num_draws: int,
    stop_ids: Collection[int] = (),
) -> Distribution:
    """Enumerate answers, as finely as a number of draws can test.

    Args:
        next_distribution: returns the probabilities ``[V]`` after a prefix.
        num_tokens: number of tokens of an answer that meets no stop id.
        num_draws: n.
        stop_ids: ids that end an answer.
    """
    cells: dict[Answer, float] = {}
    possible: dict[Answer, NDArray[np.bool_]] = {}
    level: list[tuple[Answer, float]] = [((), 1.0)]
    for left in reversed(range(num_tokens)):
        deeper = []
        for prefix, mass in level:
            probs = next_distribution(prefix)
            possible[prefix] = probs > 0
            for token in np.flatnonzero(probs * mass * num_draws >= MIN_EXPECTED).tolist():
                child, child_mass = (*prefix, token), mass * float(probs[token])
                if left and token not in stop_ids and child_mass * num_draws >= _MIN_EXPANDED:
                    deeper.append((child, child_mass))
                else:
                    cells[child] = child_mass
        level = deeper
    return Distribution(cells, possible)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Hold a chi-square test: its statistic, degrees of freedom, p-value and number of draws."""

    statistic: float
    dof: int
    p_value: float
    num_draws: int


def fit(distribution: Distribution, counts: Mapping[Outcomes, int]) -> Fit:
    """Test draws, counted by cell, with Pearson's chi-square.

    Cells with too few expected draws join the rest; a rest with too few joins the rarest cell. A
    single impossible answer rejects the distribution.
    """
    num_draws = sum(counts.values())
    cells = sorted((mass, counts.get(cell, 0)) for cell, mass in distribution.cells.items())
    pairs = [pair for pair in cells if pair[0] * num_draws >= MIN_EXPECTED]
    rare = [(distribution.rest, counts.get("rest", 0)), *cells[: len(cells) - len(pairs)]]
    rest = (math.fsum(mass for mass, _ in rare), sum(seen for _, seen in rare))
    if rest[0] * num_draws >= MIN_EXPECTED or not pairs:
        pairs.append(rest)
    else:
        pairs[0] = (pairs[0][0] + rest[0], pairs[0][1] + rest[1])
    dof = len(pairs) - 1
    if counts.get("impossible"):
        return Fit(statistic=math.inf, dof=dof, p_value=0.0, num_draws=num_draws)
    if not dof:  # with a single cell there is no test
        return Fit(statistic=0.0, dof=0, p_value=1.0, num_draws=num_draws)
    statistic = sum((seen - mass * num_draws) ** 2 / (mass * num_draws) for mass, seen in pairs)
    p_value = float(stats.chi2.sf(statistic, dof))
    return Fit(statistic=float(statistic), dof=dof, p_value=p_value, num_draws=num_draws)


def detectable_distance(test: Fit, alpha: float) -> float:
    """Return the total-variation distance detected with chance `POWER` at level `alpha` (or 1)."""
    if not (test.dof and test.num_draws):
        return 1.0
    threshold = stats.chi2.isf(alpha, test.dof)
    reached = optimize.brentq(
        lambda spread: float(stats.ncx2.sf(threshold, test.dof, spread)) - POWER,
        1e-9,
        10 * (threshold + 10),
    )
    return min(1.0, math.sqrt(float(reached) / (4 * test.num_draws)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's method (1979), to reject those below the family's level."""
    order = np.argsort(p_values)
    scaled = [p_values[i] * (len(p_values) - rank) for rank, i in enumerate(order)]
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled)) if scaled else []
    return [float(value) for value in adjusted]


class Draws:
    """Draw answers of `sampling.max_new_tokens` tokens to one prompt, counted by cell.

    The first `beginning` tokens of each answer are also counted by themselves: an error in the
    first steps stands out among the few cells of short beginnings (0: they are not counted).
    """

    def __init__(
        self,
        decoder: Decoder,
        models: Models,
        prompt: Sequence[int],
        sampling: Sampling,
        num_draws: int,
        *,
        beginning: int = 0,
    ) -> None:
        """Enumerate the exact distribution (of short answers, as every draw costs a prefill)."""
        lengths = [*([beginning] if beginning else []), sampling.max_new_tokens]
        self._tallies: list[tuple[int, Distribution, Counter[Outcomes]]] = []
        for length in lengths:
            shorter = replace(sampling, max_new_tokens=length)
            exact = _exact_distribution(models.target, prompt, shorter, num_draws)
            self._tallies.append((length, exact, Counter()))
        self._decoder, self._models = decoder, models
        self._prompt, self._sampling, self._num_draws = prompt, sampling, num_draws

    def draw(self, first_seed: int, batch_size: int) -> None:
        """Draw and count answers for seeds from `first_seed` on, raising an answer's exception."""

        def count(_index: int, outcome: Outcome) -> None:
            if not isinstance(outcome, Generation):
                raise outcome
            for length, exact, counts in self._tallies:
                counts[exact.cell(outcome.tokens[:length])] += 1

        where = self._decoder, self._models, self._sampling, batch_size
        scheduler = Scheduler(*where, memory=self._decoder.memory())
        seeds = range(first_seed, first_seed + self._num_draws)
        scheduler.run([self._prompt] * self._num_draws, seeds=seeds, on_finish=count)

    @property
    def distribution(self) -> Distribution:
        """The exact distribution of whole answers."""
        return self._tallies[-1][1]

    @property
    def counts(self) -> Counter[Outcomes]:
        """Number of whole answers drawn up to now, by cell."""
        return self._tallies[-1][2]

    @property
    def fits(self) -> list[Fit]:
        """Tests of all draws up to now: of beginnings, if counted, then of whole answers."""
        return [fit(exact, counts) for _, exact, counts in self._tallies]


def _exact_distribution(
    target: Model, prompt: Sequence[int], sampling: Sampling, num_draws: int
) -> Distribution:
    """Enumerate answers under `sampling`, as finely as `num_draws` draws can test."""
    Models(target=target).ensure(1, len(prompt) + sampling.max_new_tokens)
    session = target.open()

    def next_distribution(prefix: Answer) -> NDArray[np.float64]:
        # the prompt's last token is fed again, because a call needs a row
        session.truncate(min(session.length, len(prompt) - 1))
        tokens = (*prompt, *prefix)[session.length :]
        logits = target.forward([session.call(tokens, output="logits")])
        logits = apply_law(logits, [prefix], sampling)
        distribution: NDArray[np.float64] = warp(logits, sampling)[0].double().cpu().numpy()
        distribution /= distribution.sum()
        return distribution

    try:
        return enumerate_distribution(
            next_distribution, sampling.max_new_tokens, num_draws, sampling.stop_ids
        )
    finally:
        target.close(session)
