"""Tests of a decoder's distribution: their common level, their power, and where they are made."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.records.prompts import Prompt
from bench.verify.subject import (
    FALSE_ALARM,
    NUM_CONTEXTS,
    NUM_TOKENS,
    DistributionTest,
    judge_distributions,
    uncertain_contexts,
)
from decoders.core.testing.goodness import Fit
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling


def distribution_test(
    p_value: float, *, num_draws: int = 5000, exact: bool = True
) -> DistributionTest:
    draws: Any = SimpleNamespace(
        fits=[Fit(statistic=9.0, dof=8, p_value=p_value, num_draws=num_draws)], counts=Counter()
    )
    return DistributionTest("here", draws, exact)


def outcomes(*tests: DistributionTest) -> list[str]:
    return [found.outcome for found in judge_distributions(tests)]


def test_the_false_alarm_is_shared_among_all_tests_of_a_decoder() -> None:
    assert outcomes(distribution_test(FALSE_ALARM / 2)) == ["wrong"]
    assert (
        outcomes(distribution_test(FALSE_ALARM / 2), *[distribution_test(0.5)] * 3)
        == ["passed"] * 4
    )
    assert outcomes(distribution_test(FALSE_ALARM / 5), *[distribution_test(0.5)] * 3)[0] == "wrong"


def test_a_test_that_could_miss_a_tenth_of_the_mass_is_open_and_a_larger_one_passes() -> None:
    assert outcomes(distribution_test(0.5, num_draws=400)) == ["open"]
    (found,) = judge_distributions([distribution_test(0.5)])
    assert found.outcome == "passed"
    assert found.data["detectable_distance"] < 0.1


def test_in_half_precision_a_distribution_that_does_not_fit_is_open() -> None:
    assert outcomes(distribution_test(0.0, exact=False)) == ["open"]


class Unsure(TableModel):
    """Certain of token 0 but for the place after four tokens, or after `doubt` of them."""

    def __init__(self, doubts: dict[int, float]) -> None:
        super().__init__(5, order=99)
        self._doubts = doubts

    def logits(self, context: Any) -> torch.Tensor:
        sure = self._doubts.get(len(context), 30.0)
        return torch.tensor([sure, 0.0, 0.0, 0.0, 0.0])


def prompt(name: str, length: int) -> Prompt:
    ids = (1,) * length
    return Prompt(conversation=name, turn=1, family="qa", ids=ids, hash="", reference=None)


def test_distributions_are_tested_in_the_window_of_highest_uncertainty_of_the_target() -> None:
    """The window from the sixth token of the answer on holds both doubtful places."""
    target = Unsure({2 + 6: 0.0, 2 + 6 + NUM_TOKENS - 1: 0.0, 2 + 1: 1.0})
    answers = {"a#1": (0,) * 20}
    sampling = Sampling(temperature=1.0)
    (found,) = uncertain_contexts(target, [prompt("a", 2)], answers, sampling)
    assert found == ("a#1+6", (1, 1, *answers["a#1"][:6]))


def test_prompts_with_the_highest_uncertainty_are_tested_and_unanswered_ones_are_not() -> None:
    # a prompt of n tokens is in doubt where its answer begins, the less the longer it is
    prompts = [prompt(f"p{n}", n) for n in range(1, NUM_CONTEXTS + 4)]
    target = Unsure({n: 0.5 * n for n in range(1, NUM_CONTEXTS + 4)})
    answers = {p.name: (0,) for p in prompts[1:]}
    found = uncertain_contexts(target, prompts, answers, Sampling(temperature=1.0))
    assert [name for name, _ in found] == [f"p{n}#1+0" for n in range(2, NUM_CONTEXTS + 2)]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_certainty_of_the_target_depends_on_the_temperature(temperature: float) -> None:
    """At a low temperature the long doubt among two is none, at a high one it is the larger."""

    class Two(TableModel):
        def logits(self, context: Any) -> torch.Tensor:
            if len(context) == 3:
                return torch.tensor([0.0, 0.0, -30.0, -30.0, -30.0])
            if len(context) == 3 + 8:
                return torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0])
            return torch.tensor([60.0, 0.0, 0.0, 0.0, 0.0])

    (found,) = uncertain_contexts(
        Two(5), [prompt("a", 3)], {"a#1": (0,) * 20}, Sampling(temperature=temperature)
    )
    assert (found[0] == "a#1+0") == (temperature < 1)
