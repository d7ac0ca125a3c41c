"""How many proposals are verified, and what is expected of a branch's slots."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.core.decoder import Request
from decoders.core.drafting.proposer import Proposer
from decoders.core.engine.models import Models
from decoders.core.sampling import Uniforms
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, Sampling

SURVIVAL = [0.8, 0.6, 0.4, 0.2]


def proposer(
    variant: str = "c-ptp", *, alone: bool = False, row_cost: float = 0.02, **options: Any
) -> Proposer:
    model = TableModel(7)
    model.attach("ptp", 0.0, variant, standalone=alone)  # type: ignore[arg-type]
    measured = {"survival": SURVIVAL}
    adapter = model.adapters["ptp"] = dataclasses.replace(model.adapters["ptp"], measured=measured)
    models = Models(target=model)
    models.ensure(1, 32)
    sampling = Sampling(temperature=0.7)
    request = Request(
        prompt_ids=(1, 2),
        sampling=sampling,
        target=model.open(),
        uniforms=Uniforms(0, [1, 2]),
        adapter=adapter,
    )
    return Proposer(request, "ptp", row_cost=row_cost, alone=alone, **options)


@settings(max_examples=150, deadline=None)
@given(
    chances=st.lists(st.floats(0.02, 0.999), min_size=1, max_size=8),
    row_cost=st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.5]),
    most=st.integers(0, 9),
)
def test_the_number_of_verified_drafts_maximizes_expected_tokens_per_cost(
    chances: list[float], row_cost: float, most: int
) -> None:
    chances = sorted(chances, reverse=True)
    made = proposer(row_cost=row_cost)
    made.take(CallResult(slot_picks=(*range(len(chances)),), slot_confidences=tuple(chances)))
    reached = itertools.accumulate(made.chances, operator.mul)
    gains = [1.0, *(1 + sum for sum in itertools.accumulate(reached))]
    worth = [gain / (1 + row_cost * num) for num, gain in enumerate(gains)][: most + 1]
    chosen = made.worthwhile(most)
    assert chosen == tuple(range(len(chosen)))
    assert worth[len(chosen)] == pytest.approx(max(worth), rel=1e-9)


def test_survival_is_conditional_on_a_token_that_the_row_before_the_branch_gives_exactly() -> None:
    after_row = [0.6 / 0.8, 0.4 / 0.8, 0.2 / 0.8]
    assert proposer("o-ptp").survival.chances == pytest.approx(after_row)
    assert proposer("c-ptp").survival.chances == pytest.approx(SURVIVAL)
    assert proposer("o-ptp", exact_row=False).survival.chances == pytest.approx(SURVIVAL)
