"""Draws of a decoder.

Their distribution is the target's own, every draw has a seed, none is lost.
"""

from collections.abc import Sequence

import pytest
from torch import Tensor

from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.model import Call
from decoders.core.testing.goodness import Draws, _exact_distribution
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling
from tests.enumeration import enumerated_distribution
from tests.tiny_models import fresh

SAMPLING = Sampling(temperature=0.9, max_new_tokens=3)


def test_the_exact_distribution_equals_the_enumerated_distribution() -> None:
    model = TableModel(4, seed=3, scale=1.0)
    distribution = _exact_distribution(model, [1, 2], SAMPLING, 10**9)
    assert distribution.cells == pytest.approx(
        enumerated_distribution(model, [1, 2], SAMPLING, 3), abs=1e-6
    )


def test_a_cached_transformer_gives_the_distribution_of_cold_passes() -> None:
    model = HFModel(fresh("llama"))
    distribution = _exact_distribution(model, [5, 3, 7], SAMPLING, 20_000)
    assert len(distribution.cells) > 20
    for answer, mass in list(distribution.cells.items())[:5]:
        expected = 1.0
        for place in range(len(answer)):
            cold = _exact_distribution(
                model,
                [5, 3, 7, *answer[:place]],
                Sampling(temperature=0.9, max_new_tokens=1),
                10**9,
            )
            expected *= cold.cells[answer[place],]
        assert mass == pytest.approx(expected, rel=1e-4)


def test_every_answer_of_a_batch_has_its_own_seed() -> None:
    models = Models(target=TableModel(7, seed=1))
    scheduler = Scheduler(Autoregressive(), models, SAMPLING, batch_size=4)
    found = scheduler.run([[1, 2]] * 6, seeds=range(10, 16))
    for seed, answer in zip(range(10, 16), found, strict=True):
        sampling = Sampling(temperature=0.9, max_new_tokens=3, seed=seed)
        assert answer == generate(Autoregressive(), [1, 2], sampling, models)


def test_an_interruption_keeps_the_draws_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TableModel(3, seed=1, scale=1.0)
    draws = Draws(Autoregressive(), Models(target=target), [1], SAMPLING, 1000)
    forward, left = target.forward, iter(range(100))

    def interrupted(calls: Sequence[Call]) -> Tensor:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return forward(calls)

    monkeypatch.setattr(target, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draws.draw(0, 8)
    assert 100 < draws.fits[-1].num_draws < 1000
    assert draws.fits[-1].p_value > 1e-3


def test_the_beginnings_of_answers_are_tested_separately() -> None:
    models = Models(target=TableModel(4, seed=1, scale=1.0))
    draws = Draws(Autoregressive(), models, [1], SAMPLING, 2000, beginning=2)
    draws.draw(0, 64)
    begun, whole = draws.fits
    assert (begun.num_draws, whole.num_draws) == (2000, 2000)
    assert 10 <= begun.dof <= 15 < whole.dof
    assert min(begun.p_value, whole.p_value) > 1e-3
    (plain,) = Draws(Autoregressive(), models, [1], SAMPLING, 10).fits
    assert plain.num_draws == 0
