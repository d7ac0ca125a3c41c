"""The rules of verification: lossy ones accept what the target would not choose, also greedily."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from decoders.ar import Autoregressive
from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.verification import RULES, Lenient, Rule
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.testing.table_model import TableModel
from decoders.core.types import AcceptanceRule, Generation, Sampling

PROMPT = [1, 2, 3]
GREEDY = Sampling(max_new_tokens=24)
TARGET = TableModel(7, seed=3)


class Second(Drafter):
    """Proposes the target's second likeliest token."""

    def propose(self, text: Text, most: int) -> Sequence[int]:
        return TARGET.logits(text.tokens).topk(2).indices[1:].tolist()[:most]


def answer_of(rule: Rule) -> Generation:
    @dataclass(frozen=True, kw_only=True)
    class Scripted(DraftAndVerify):
        verification = rule

        def drafter(self, request: Request) -> Drafter:
            return Second()

    return generate(Scripted(), PROMPT, GREEDY, Models(target=TARGET))


def accepted(answer: Generation) -> int:
    return sum(step.accepted for step in answer.steps)


def test_greedy_top_two_accepts_the_runner_up_every_time() -> None:
    answer = answer_of(Lenient(AcceptanceRule(top=2)))
    assert accepted(answer) == sum(step.drafted for step in answer.steps) > 8
    assert answer.tokens != generate(Autoregressive(), PROMPT, GREEDY, Models(target=TARGET)).tokens


@pytest.mark.parametrize("rule", ["rejection", "coupled", "block"])
def test_greedy_exact_rules_accept_no_runner_up(rule: str) -> None:
    answer = answer_of(RULES[rule])
    assert accepted(answer) == 0
    assert answer.tokens == generate(Autoregressive(), PROMPT, GREEDY, Models(target=TARGET)).tokens


def test_without_verification_all_drafts_stand() -> None:
    answer = answer_of(RULES["none"])
    assert accepted(answer) == sum(step.drafted for step in answer.steps) > 8
