"""The rules of verification: lossy ones accept what the target would not choose, also greedily."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.rules import RULES, Lenient
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Coupled, Rule, Turn
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.registry import build, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.testing.table_model import TableModel
from decoders.core.types import (
    Acceptance,
    AcceptanceRule,
    CallResult,
    Generation,
    Output,
    Sampling,
)

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


def test_without_verification_all_drafts_are_accepted() -> None:
    answer = answer_of(RULES["none"])
    assert accepted(answer) == sum(step.drafted for step in answer.steps) > 8


def test_a_custom_rule_decides_from_the_result_and_output_position_of_its_turn() -> None:
    turns = list[Turn]()

    class First(Rule):
        lossless = False

        def output(self, sampling: Sampling, *, branches: bool) -> Output:
            return "probs"

        def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
            turns.append(turn)
            assert turn.result.probs is not None
            path = range(min(2, len(turn.tree)))
            return path, turn.recover(turn.result.probs[path[-1]], path[-1])

    answer = answer_of(First())
    assert {step.accepted for step in answer.steps[1:-1]} == {1}
    assert [turn.output for turn in turns] == [*range(1, GREEDY.max_new_tokens, 2)][: len(turns)]


def test_the_token_after_accepted_drafts_is_drawn_with_the_uniform_of_its_own_position() -> None:
    uniforms = Uniforms(5, PROMPT)
    turn = Turn(DraftTree(1), CallResult(), uniforms, output=4)
    picks = [turn.recover(torch.ones(1000), accepted) for accepted in range(3)]
    assert picks == [int(1000 * uniforms.at("recover", output)) for output in (4, 5, 6)]


def test_a_rule_may_report_how_the_drafts_compare_with_the_target() -> None:
    class Comparing(Rule):
        coupled = True

        def decide(self, turn: Turn) -> tuple[Sequence[int], int, Acceptance]:
            path, token = Coupled().decide(turn)
            tests = (0.25,) * turn.tree.num_drafts
            return path, token, Acceptance(len(path) - 1, token, ratios=tests, overlaps=tests)

    answer, plain = answer_of(Comparing()), answer_of(Coupled())
    assert answer.tokens == plain.tokens
    drafting = [step for step in answer.steps if step.drafted]
    assert {(step.tested, step.overlap, step.alpha) for step in drafting} == {(1, 0.25, 1.0)}
    assert {step.overlap for step in plain.steps} == {None}


def test_a_fresh_rule_has_new_uniforms_in_each_turn_and_other_rules_those_of_positions() -> None:
    seen = dict[bool, list[float]]()

    class Looks(Coupled):
        def __init__(self, fresh: bool) -> None:
            self.fresh = fresh

        def decide(self, turn: Turn) -> tuple[Sequence[int], int]:
            seen.setdefault(self.fresh, []).append(turn.uniforms.at("accept", 30))
            return super().decide(turn)

    for fresh in (True, False):
        answer_of(Looks(fresh))
    assert len({*seen[True]}) == len(seen[True]) > 2
    assert len({*seen[False]}) == 1
    assert seen[False][0] == Uniforms(0, PROMPT).at("accept", 30) not in seen[True]


def test_a_rule_without_decide_raises_an_error_that_names_the_method() -> None:
    with pytest.raises(NotImplementedError, match=r"Rule must define decide\(turn\)"):
        answer_of(Rule())


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_branching_drafts_are_refused_if_the_rule_verifies_chains(rule: str) -> None:
    class Branches(Drafter):
        branches = rule == "block"

        def propose(self, text: Text, most: int) -> DraftTree:
            tree = DraftTree(text.last)
            tree.add([1])
            tree.add([2])
            return tree

    class Branching(DraftAndVerify):
        verification = RULES[rule]

        def drafter(self, request: Request) -> Drafter:
            return Branches()

    sampling = Sampling(temperature=1.0, max_new_tokens=8)
    with pytest.raises(ValueError, match="these drafts branch, but they are to be verified as"):
        generate(Branching(), PROMPT, sampling, Models(target=TARGET))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("eagle:verify=block", "'width' of decoder 'eagle' is 3; it must be 1 with verify=block"),
        ("medusa:verify=block", "'width' of decoder 'medusa' is 4; it must be 1 with verify=block"),
        ("hybrid:verify=block", "'width' of decoder 'eagle' is 3; it must be 1 with verify=block"),
        ("hybrid:verify=block:then=spec:how=merge", "'how' of .* must be match with verify=block"),
        ("hybrid:verify=block:first=spec:then=lookup", "'first' .* that draws no drafts with"),
    ],
)
def test_a_block_of_drafts_that_may_branch_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(parse_spec(spec))
