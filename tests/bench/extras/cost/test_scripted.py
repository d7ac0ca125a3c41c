"""Scripted acceptance: drafts stand as the script says, and all calls run as ever."""

from __future__ import annotations

from typing import Any

import pytest

from bench.extras.cost.bare import SPECS
from bench.extras.cost.scripted import Scripted
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.registry import build, parse_spec
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling

VOCAB = 11
SPEC = "spec:k={k}"


def answer(spec: str, *chances: float, num_tokens: int = 60, **sampling: Any) -> Generation:
    models = Models(target=TableModel(VOCAB), draft=TableModel(VOCAB, seed=5))
    settings = Sampling(max_new_tokens=num_tokens, **sampling)
    scheduler = Scheduler(build(parse_spec(spec)), models, settings, read_out=Scripted(chances))
    (found,) = scheduler.run([[1, 2, 3]])
    assert isinstance(found, Generation), found
    return found


def accepted(found: Generation) -> list[int]:
    """Of all steps but the prompt's and the last, which the budget cuts."""
    return [step.accepted for step in found.steps[1:-1]]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}])
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_drafts_are_accepted_as_the_script_says(verify: str, sampling: dict[str, Any]) -> None:
    spec = f"spec:k=4:verify={verify}"
    assert set(accepted(answer(spec, 1.0, **sampling))) == {4}
    assert set(accepted(answer(spec, 0.0, **sampling))) == {0}
    assert set(accepted(answer(spec, 1.0, 1.0, 0.0, **sampling))) == {2}


def test_every_call_is_made_and_counted() -> None:
    for step in answer("spec:k=4", 1.0, 0.0).steps[1:-2]:
        assert (step.drafted, step.accepted, len(step.tokens)) == (4, 1, 2)
        assert (step.target_calls, step.target_rows, step.draft_calls) == (1, 5, 4)


@pytest.mark.slow
def test_the_acceptance_rate_approaches_the_chance_and_a_seed_reproduces_the_answer() -> None:
    found = answer("spec:k=1", 0.7, num_tokens=2000)
    stood = accepted(found)
    assert sum(stood) / len(stood) == pytest.approx(0.7, abs=0.04)
    assert answer("spec:k=1", 0.7, num_tokens=2000) == found
    assert answer("spec:k=1", 0.7, num_tokens=2000, seed=1) != found


def test_scripted_acceptance_does_not_change_decoders_without_drafts() -> None:
    models, sampling = Models(target=TableModel(VOCAB)), Sampling(max_new_tokens=20)
    plain = Scheduler(build(parse_spec("ar")), models, sampling).run([[1, 2, 3]])
    assert [answer("ar", 0.5, num_tokens=20)] == plain


def test_every_measured_decoder_spec_can_be_built() -> None:
    for spec in SPECS.values():
        assert build(parse_spec(spec.format(k=4, slots=5))).name in SPECS
