"""The number of drafts with the most tokens per time, by the acceptance so far."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from decoders.core.checks import Check, checks_for
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.pace import Paced
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling
from decoders.spec import Speculative


def learnt(outcomes: list[tuple[int, int]], k: int, cost: float) -> int:
    """The number of drafts after steps that accepted some of their drafts."""
    paced = Paced(Drafter(), k, cost)
    for accepted, drafted in outcomes:
        verdict: Any = SimpleNamespace(
            accepted=accepted, tree=SimpleNamespace(num_drafts=drafted), tokens=()
        )
        paced.observe(SimpleNamespace(), verdict)  # type: ignore[arg-type]
    return paced.num_drafts


@pytest.mark.parametrize(
    ("outcomes", "k", "cost", "num"),
    [
        # chance 1/2: 1.5 / 1.1, 1.75 / 1.2 (most), 1.875 / 1.3
        ([], 8, 0.1, 2),
        # 1.5 / 1.4 against 1.75 / 1.8
        ([], 8, 0.4, 1),
        # (8 + 1) / (8 + 2) = 0.9: 1 + … = 2.71 / 1.4 at 2 are 1.936, 3.439 / 1.6 at 3 2.149,
        # 4.095 / 1.8 2.275, 4.686 / 2 2.343, 5.217 / 2.2 2.371 (most), 5.695 / 2.4 2.373, 2.370
        ([(4, 4), (4, 4)], 12, 0.2, 7),
        ([(4, 4), (4, 4)], 5, 0.2, 5),
        # nothing stands: (0 + 1) / (4 + 2) = 1/6
        ([(0, 3)] * 4, 8, 0.1, 1),
        # free drafts pay as long as they may stand
        ([(1, 2)], 8, 0.0001, 8),
    ],
)
def test_the_ratio_of_tokens_to_time_decides(
    outcomes: list[tuple[int, int]], k: int, cost: float, num: int
) -> None:
    assert learnt(outcomes, k, cost) == num


def test_a_call_without_drafts_teaches_nothing() -> None:
    assert learnt([(0, 0)] * 50, 8, 0.1) == learnt([], 8, 0.1)


@pytest.mark.parametrize("agreement", [0.0, 1.0])
def test_steps_grow_where_drafts_stand_and_shrink_where_they_fall(agreement: float) -> None:
    target = TableModel(7, seed=1, scale=1.5)
    draft = TableModel(7, seed=2, scale=1.5, agree_with=target, agreement=agreement)
    decoder = Speculative(k=8, cost=0.05)
    models = Models(target=target, draft=draft)
    answer = generate(decoder, [1, 2], Sampling(max_new_tokens=120), models)
    lengths = [step.drafted for step in answer.steps[1:-1]]
    assert lengths[0] == 3  # at chance 1/2
    assert lengths[-2:] == ([8, 8] if agreement else [1, 1])


def test_without_a_cost_every_step_has_k_drafts() -> None:
    target = TableModel(7, seed=1, scale=1.5)
    draft = TableModel(7, seed=2, scale=1.5, agree_with=target, agreement=0.6)
    models = Models(target=target, draft=draft)
    answer = generate(Speculative(k=5), [1, 2], Sampling(max_new_tokens=60), models)
    assert {step.drafted for step in answer.steps[1:-2]} == {5}


DECODERS = [Speculative(k=6, cost=0.1), Speculative(k=6, cost=0.1, verify="coupled")]


@pytest.mark.parametrize(
    ("decoder", "check"),
    [(each, check) for each in DECODERS for check in checks_for(each)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_adaptive_length_meets_the_contract(decoder: Speculative, check: Check) -> None:
    check(decoder)
