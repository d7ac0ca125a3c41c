"""Speculative decoding: exact distribution, wasted calls, rollback of both caches."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.engine import sequence as job_module
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.sampling import Uniforms
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling
from decoders.spec import Speculative
from tests.enumeration import enumerated_distribution

# Token 2 is drafted in 4 of 6 cases and stands in all, half or none of them; where it falls two
# tokens are left to recover, so that the number that let it fall must not choose between them.
TARGET = ((2, 2, 2), (3, 3, 0), (1, 1, 4), (2, 2, 2))
DRAFT = ((1, 1, 4),)
GRID = [(step + 0.5) / 6 for step in range(6)]


class Fractions(TableModel):
    """Distributions in sixths by the last two tokens, so that a grid of 6 integrates exactly."""

    def __init__(self, distributions: Sequence[Sequence[int]]) -> None:
        super().__init__(3)
        self._fractions = distributions

    def logits(self, context: Sequence[int]) -> torch.Tensor:
        last = sum(context[-2:]) if len(context) > 1 else context[-1]
        weights = self._fractions[last % len(self._fractions)]
        return torch.tensor([math.log(weight) if weight else -math.inf for weight in weights])


def enumerate_answers(decoder: Speculative) -> dict[tuple[int, ...], float]:
    """The exact distribution of three-token answers.

    Every uniform runs over the midpoints of its grid.

    With k=1 and a budget of 3 the uniforms consulted are draw 0 and 1, accept 1, recover 1 and 2.
    """
    models = Models(target=Fractions(TARGET), draft=Fractions(DRAFT))
    sampling = Sampling(temperature=1.0, max_new_tokens=3)
    distribution: defaultdict[tuple[int, ...], float] = defaultdict(float)
    consulted = [("draw", 0), ("draw", 1), ("accept", 1), ("recover", 1), ("recover", 2)]
    for values in itertools.product(GRID, repeat=len(consulted)):
        table = dict(zip(consulted, values, strict=True))

        class Scripted:
            def __init__(self, seed: int, prompt: Sequence[int], table: dict = table) -> None:
                self.at = lambda stream, position: table[stream, position]

        job_module.Uniforms = Scripted  # type: ignore[attr-defined, misc, assignment]
        distribution[generate(decoder, [1], sampling, models).tokens] += 1 / len(GRID) ** len(
            consulted
        )
    return distribution


def test_rejection_has_the_exact_distribution_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "Uniforms", Uniforms)
    found = enumerate_answers(Speculative(k=1))
    target = Fractions(TARGET)
    expected = enumerated_distribution(target, [1], Sampling(temperature=1.0), 3)
    assert found.keys() == expected.keys()
    for answer, mass in expected.items():
        assert found[answer] == pytest.approx(mass, abs=1e-6)


def models(agreement: float) -> Models:
    target = TableModel(11, seed=5)
    draft = TableModel(11, seed=6, agree_with=target, agreement=agreement)
    return Models(target=target, draft=draft)


def test_full_acceptance_wastes_no_draft_call() -> None:
    answer = generate(Speculative(k=4), [1, 2], Sampling(max_new_tokens=21), models(1.0))
    for step in answer.steps[1:]:
        assert (step.drafted, step.accepted, step.draft_calls) == (4, 4, 4)
        assert (step.target_calls, step.target_rows, len(step.tokens)) == (1, 5, 5)


def test_the_draft_catches_up_on_the_last_draft_and_the_bonus_in_one_call() -> None:
    answer = generate(Speculative(k=3), [1, 2], Sampling(max_new_tokens=9), models(1.0))
    first, second = answer.steps[1], answer.steps[2]
    assert first.draft_rows == 3 + 2  # the prompt and the first token, then two drafts
    assert second.draft_rows == 2 + 2  # the last draft and the bonus, then two drafts


def test_nothing_is_drafted_that_the_budget_cannot_hold() -> None:
    answer = generate(Speculative(k=8), [1, 2], Sampling(max_new_tokens=4), models(1.0))
    assert [step.drafted for step in answer.steps] == [0, 2]
    answer = generate(Speculative(k=8), [1, 2], Sampling(max_new_tokens=2), models(1.0))
    assert [step.drafted for step in answer.steps] == [0, 0]


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0, 1.5])
@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.9])
def test_coupled_equals_ar_token_for_token(temperature: float, agreement: float) -> None:
    both = models(agreement)
    for seed, k in itertools.product(range(10), (1, 2, 5)):
        sampling = Sampling(temperature=temperature, top_p=0.9, max_new_tokens=40, seed=seed)
        expected = generate(Autoregressive(), [1, 2, 3], sampling, both).tokens
        decoder = Speculative(k=k, verify="coupled")
        assert generate(decoder, [1, 2, 3], sampling, both).tokens == expected


def test_a_better_draft_has_more_accepted() -> None:
    sampling = Sampling(temperature=1.0, max_new_tokens=200)

    def accepted(agreement: float) -> int:
        answer = generate(Speculative(), [1], sampling, models(agreement))
        return sum(step.accepted for step in answer.steps)

    assert accepted(0.2) < accepted(0.8) < accepted(1.0)
