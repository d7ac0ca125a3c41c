"""Draws of a decoder: their law is the target's own, every draw has a seed, none is lost."""

import pytest

from decoders.ar import Autoregressive
from decoders.core.draws import Draws, exact_law
from decoders.core.hf import HFModel
from decoders.core.models import Models
from decoders.core.scheduler import Scheduler, generate
from decoders.core.table_model import TableModel
from decoders.core.types import Sampling
from tests.enumeration import enumerated_law
from tests.tiny_models import fresh

SAMPLING = Sampling(temperature=0.9, max_new_tokens=3)


def test_the_law_equals_the_enumerated_one() -> None:
    model = TableModel(4, seed=3, scale=1.0)
    law = exact_law(model, [1, 2], SAMPLING, 10**9)
    assert law.cells == pytest.approx(enumerated_law(model, [1, 2], SAMPLING, 3), abs=1e-6)


def test_a_cached_transformer_gives_the_law_of_cold_passes() -> None:
    model = HFModel(fresh("llama"))
    law = exact_law(model, [5, 3, 7], SAMPLING, 20_000)
    assert len(law.cells) > 20
    for answer, mass in list(law.cells.items())[:5]:
        expected = 1.0
        for place in range(len(answer)):
            cold = exact_law(
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


def test_an_interruption_keeps_what_was_drawn() -> None:
    models = Models(target=TableModel(3, seed=1, scale=1.0))
    draws = Draws(Autoregressive(), models, [1], SAMPLING, 1000)
    left = iter(range(200))
    with pytest.raises(StopIteration):
        draws.draw(0, 8, lambda: next(left) and None)
    assert draws.fit.num_draws == 201
    assert draws.fit.p_value > 1e-3
