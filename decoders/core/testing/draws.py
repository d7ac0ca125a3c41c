"""Answers drawn from a decoder under many seeds, held to the target's exact distribution.

The distribution is enumerated with the target alone, whatever way the decoder draws: the test has
one sample, and no baseline that could share an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import Model
from decoders.core.sampling import warp
from decoders.core.testing.goodness import (
    Answer,
    Distribution,
    Fit,
    Outcomes,
    enumerate_distribution,
    fit,
)
from decoders.core.types import Generation, Outcome, Sampling


class Draws:
    """Answers of `sampling.max_new_tokens` tokens to one prompt, counted by cell."""

    def __init__(
        self,
        decoder: Decoder,
        models: Models,
        prompt: Sequence[int],
        sampling: Sampling,
        num_draws: int,
    ) -> None:
        """Enumerate the distribution of short answers: every draw is a prefill."""
        self.counts: Counter[Outcomes] = Counter()
        self.distribution = exact_distribution(models.target, prompt, sampling, num_draws)
        self._decoder, self._models = decoder, models
        self._prompt, self._sampling, self._num_draws = prompt, sampling, num_draws

    def draw(
        self, first_seed: int, batch_size: int, on_draw: Callable[[], None] = lambda: None
    ) -> None:
        """Draw and count under seeds from `first_seed` on; raise what an answer raised."""

        def count(_index: int, outcome: Outcome) -> None:
            if not isinstance(outcome, Generation):
                raise outcome
            self.counts[self.distribution.cell_of(outcome.tokens)] += 1
            on_draw()

        scheduler = Scheduler(self._decoder, self._models, self._sampling, batch_size)
        seeds = range(first_seed, first_seed + self._num_draws)
        scheduler.run([self._prompt] * self._num_draws, seeds=seeds, on_finish=count)

    @property
    def fit(self) -> Fit:
        """The test of what was drawn so far."""
        return fit(self.distribution, self.counts)


def exact_distribution(
    target: Model, prompt: Sequence[int], sampling: Sampling, num_draws: int
) -> Distribution:
    """Enumerate answers under `sampling`, as fine as `num_draws` draws can test."""
    Models(target=target).ensure(1, len(prompt) + sampling.max_new_tokens)
    session = target.open()

    def next_distribution(prefix: Answer) -> NDArray[np.float64]:
        # the prompt's last token is fed again: a call has a row at least
        session.truncate(min(session.length, len(prompt) - 1))
        tokens = (*prompt, *prefix)[session.length :]
        logits = target.forward([session.call(tokens, output="logits")])
        distribution: NDArray[np.float64] = warp(logits, sampling)[0].double().cpu().numpy()
        distribution /= distribution.sum()
        return distribution

    try:
        return enumerate_distribution(
            next_distribution, sampling.max_new_tokens, num_draws, sampling.stop_ids
        )
    finally:
        target.close(session)
