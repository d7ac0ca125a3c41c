"""Draw trips along a road: symbols whose distributions are known exactly.

A driver steps to a cell near an aim, which lies straight on (momentum) and towards a goal. The goal
is one of a few cells, is never shown, and changes occasionally. The symbols are cells, as in the
taxi data of PTP (arXiv 2512.21323, section 3.1). A bound on the loss per symbol is known: *blind*
is the loss of a predictor that knows the source, on the n-th symbol of a window, if it does not see
the window's earlier symbols. No independent predictor beats it; a model gets below it only through
its uniforms.

Letters: G goals, V cells, R rows, L symbols of a row, N symbols of a window.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from training.recipe import Count, Rate, RecipeTable, Seed, Share

Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_SETTLE_STEPS = 500  # steps of the power iteration; the chain forgets within about 50


class TripSettings(RecipeTable):
    """[source]: trips along a road of `width` cells, numbered in order.

    A driver aims `momentum` times the last step straight on, plus `pull` cells towards the goal,
    and steps `spread` cells (standard deviation) about the aim. `roughness` is the standard
    deviation of the cells' log popularity; `switch` is the chance per step of drawing a new goal.
    """

    width: Annotated[int, Field(ge=2, le=32)] = 25
    num_goals: Count = 6
    momentum: float = 0.25
    pull: float = 1.5
    spread: Rate = 2.5
    roughness: float = 0.5
    switch: Share = 0.0625
    seed: Seed = 1


class Trips:
    """Draw rows from a source whose distributions are known exactly.

    `steps` ``[G, V, V, V]`` is the distribution of the next cell given goal, previous cell and
    cell. `goals` ``[G, G]`` are the goal's transitions. `settled` ``[G, V, V]`` is the stationary
    distribution of goal, previous cell and cell.
    """

    def __init__(self, settings: TripSettings) -> None:
        self.num_symbols, num_goals = settings.width, settings.num_goals
        rng = np.random.default_rng(settings.seed)
        cells = np.arange(settings.width, dtype=np.float64)
        popularity = rng.normal(size=settings.width) * settings.roughness
        goals = cells[rng.choice(settings.width, num_goals, replace=False)]
        before, cell = cells[None, :, None], cells[None, None]
        way = np.sign(goals[:, None, None] - cell)
        aim = cell + settings.momentum * (cell - before) + settings.pull * way
        distance = (aim[..., None] - cells) ** 2
        weights: Floats = np.exp(popularity - distance / (2 * settings.spread**2))
        self.steps = weights / weights.sum(-1, keepdims=True)
        transition = np.full((num_goals, num_goals), settings.switch / num_goals)
        self.goals = transition + np.eye(num_goals) * (1 - settings.switch)
        joint = np.full(self.steps.shape[:3], 1.0 / self.steps[..., 0].size)
        for _ in range(_SETTLE_STEPS):
            joint = self._onward(joint)
        self.settled: Floats = joint / joint.sum()

    def _onward(self, joint: Floats) -> Floats:
        """Advance distributions ``[..., G, V, V]`` of goal, previous cell and cell by one step."""
        moved = np.einsum("...gpc,gh->...hpc", joint, self.goals)
        moved_on: Floats = np.einsum("...gpc,gpcn->...gcn", moved, self.steps, optimize=True)
        return moved_on

    def rows(self, num_rows: int, length: int, rng: np.random.Generator) -> _Ints:
        """Draw independent rows ``[R, L]`` of the stationary chain, L >= 2."""
        start = rng.choice(self.settled.size, num_rows, p=self.settled.ravel())
        goal, before, cell = np.unravel_index(start, self.settled.shape)
        ids = np.empty((num_rows, length), np.int64)
        ids[:, 0], ids[:, 1] = before, cell
        for index in range(2, length):
            goal = _draw(self.goals[goal], rng)
            ids[:, index] = _draw(self.steps[goal, ids[:, index - 2], ids[:, index - 1]], rng)
        return ids

    def beliefs(self, ids: _Ints) -> Floats:
        """Return distributions ``[R, L, G]`` of the goal given the row up to there (index 0: 0)."""
        beliefs = np.zeros((*ids.shape, len(self.goals)))
        belief = self.settled[:, ids[:, 0], ids[:, 1]].T
        for index in range(1, ids.shape[1]):
            if index > 1:
                likely = self.steps[:, ids[:, index - 2], ids[:, index - 1], ids[:, index]].T
                belief = belief @ self.goals * likely
            belief = belief / belief.sum(-1, keepdims=True)
            beliefs[:, index] = belief
        return beliefs

    def blind(self, ids: _Ints, starts: _Ints, length: int) -> Floats:
        """Return distributions ``[R, W, N, V]`` of N = `length` symbols from `starts` >= 2 on.

        They are conditioned only on the symbols before the window.
        """
        row = np.arange(len(ids))[:, None]
        belief = self.beliefs(ids)[row, starts - 1]
        joint = np.zeros((*starts.shape, *self.settled.shape))
        rows, columns = np.indices(starts.shape)
        joint[rows, columns, :, ids[row, starts - 2], ids[row, starts - 1]] = belief
        distributions = []
        for _ in range(length):
            joint = self._onward(joint)
            distributions.append(joint.sum((-3, -2)))
        return np.stack(distributions, 2)


def _draw(distributions: Floats, rng: np.random.Generator) -> _Ints:
    """Draw one symbol from each distribution ``[R, V]``."""
    cdf = distributions.cumsum(-1)
    level = rng.random(len(distributions)) * cdf[:, -1]
    below: _Ints = (cdf <= level[:, None]).sum(-1)
    return below.clip(max=distributions.shape[-1] - 1)
