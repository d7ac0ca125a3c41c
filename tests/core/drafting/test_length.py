"""How many drafts a step verifies: the number with the most expected tokens per cost."""

import itertools
import random
from collections.abc import Sequence

import pytest

from decoders.core.drafting.length import AUTO, Length, num_worthwhile
from decoders.core.drafting.tree import DraftTree


def tokens_per_cost(stands: Sequence[float], num: int, row_cost: float, spent: float) -> float:
    return (1 + sum(stands[:num])) / (spent + row_cost * num)


@pytest.mark.parametrize("row_cost", [0.0, 0.02, 0.1, 0.4, 2.0])
@pytest.mark.parametrize("spent", [1.0, 1.7])
def test_the_chosen_number_of_drafts_maximises_tokens_per_cost(
    row_cost: float, spent: float
) -> None:
    draw, numbers = random.Random(0), set()
    for _ in range(200):
        stands = [
            *itertools.accumulate((draw.random() ** 0.3 for _ in range(9)), lambda a, b: a * b)
        ]
        num = num_worthwhile(stands, row_cost / spent)
        values = [tokens_per_cost(stands, n, row_cost, spent) for n in range(10)]
        assert values[num] == pytest.approx(max(values))
        numbers.add(num)
    assert numbers == {9} if row_cost == 0 else len(numbers) > 1 or row_cost == 2.0


def test_a_fixed_number_of_drafts_ignores_confidences_and_costs() -> None:
    length = Length(5, row_cost=9.0, draft_cost=9.0)
    length.observe(DraftTree.chain(1, [2, 3], [0.9, 0.9]), [0])
    assert length.limit == 5
    assert length.floor == 0
    assert length.next_pays([0.001])
    assert length.worthwhile([0.5, 1e-9]) == 2


def observed(confidence: float, accepted: int, steps: int = 40) -> Length:
    """Steps of three drafts, of which so many were accepted."""
    length = Length(AUTO, row_cost=0.05, draft_cost=0.2)
    for _ in range(steps):
        length.observe(DraftTree.chain(1, [2, 3, 4], [confidence] * 3), range(accepted + 1))
    return length


def test_an_overconfident_drafter_drafts_less_and_an_underconfident_drafter_more() -> None:
    paths = [0.9**n for n in range(1, 25)]
    too_sure, right, modest = observed(0.9, 0), observed(0.75, 3), observed(0.5, 3)
    numbers = [each.worthwhile(paths) for each in (too_sure, right, modest)]
    assert numbers == sorted(numbers)
    assert numbers[0] < numbers[2]
    assert not too_sure.next_pays([0.9])
    assert modest.next_pays([0.9])


def test_confidences_are_taken_at_their_word_until_a_draft_was_tested() -> None:
    paths, length = [0.9**n for n in range(1, 25)], Length(AUTO, row_cost=0.05)
    assert length.worthwhile(paths) == num_worthwhile(paths, 0.05)


def test_a_row_costs_relatively_less_after_more_draft_calls() -> None:
    paths, length = [0.9**n for n in range(1, 25)], Length(AUTO, row_cost=0.3, draft_cost=0.5)
    numbers = [length.worthwhile(paths, num_calls) for num_calls in (1, 4)]
    assert numbers == [num_worthwhile(paths, 0.3 / 1.5), num_worthwhile(paths, 0.3 / 3)]
    assert numbers[0] < numbers[1]


def test_a_further_draft_pays_only_if_its_tokens_are_worth_its_call_and_row() -> None:
    """At 0.8 accepted so far: 0.5 * 0.8 tokens for a cost of 0.3 on top of 1.3 with 1.5 tokens."""
    assert Length(AUTO, row_cost=0.1, draft_cost=0.2).next_pays([0.5])  # 0.4 * 1.3 > 0.3 * 1.5
    assert not Length(AUTO, row_cost=0.1, draft_cost=0.3).next_pays([0.5])  # 0.4 * 1.4 < 0.4 * 1.5


def test_drafts_after_a_rejected_draft_are_ignored() -> None:
    """Their uniforms draw again, so the distribution of answers would depend on the length."""
    lengths = [Length(AUTO, row_cost=0.05) for _ in range(2)]
    for length, rest in zip(lengths, ([0.01, 0.01], [0.99, 0.99]), strict=True):
        length.observe(DraftTree.chain(1, [2, 3, 4], [0.6, *rest]), [0])
    paths = [0.8**n for n in range(1, 20)]
    assert lengths[0].worthwhile(paths) == lengths[1].worthwhile(paths)
    assert vars(lengths[0]) == vars(lengths[1])


def test_siblings_count_as_one_test_with_their_joint_confidence() -> None:
    tree = DraftTree(1)
    rows = [tree.draft(token, 0) for token in (2, 3)]
    tree.confidences = dict(zip(rows, (0.5, 0.3), strict=True))
    chain = DraftTree.chain(1, [2], [0.8])
    lengths = [Length(AUTO), Length(AUTO)]
    for _ in range(9):
        lengths[0].observe(tree, [0, rows[1]])
        lengths[1].observe(chain, [0, 1])
    assert lengths[0].worthwhile([0.7]) == lengths[1].worthwhile([0.7])
    assert vars(lengths[0]) == pytest.approx(vars(lengths[1]))
