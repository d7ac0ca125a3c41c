"""Trees of drafts: rows, shape, candidates, and coupled verification."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core import masks
from decoders.core.adapter.growth import draw, likeliest_paths
from decoders.core.drafting.states import _drafted_tree
from decoders.core.drafting.tree import DraftTree
from decoders.core.sampling import pick
from decoders.core.types import CallResult
from tests.enumeration import integrated


def made(*continuations: Sequence[int]) -> DraftTree:
    tree = DraftTree(9)
    for continuation in continuations:
        tree.add(continuation)
    return tree


def test_continuations_with_a_common_prefix_share_rows() -> None:
    tree = made([1, 2], [1, 3], [4, 2])
    assert tree.tokens == [9, 1, 2, 3, 4, 2]
    assert tree.parents == [masks.ROOT, 0, 1, 1, 0, 4]
    assert (len(tree), tree.depth) == (6, 2)
    assert tree.children(1) == {2: 2, 3: 3}
    assert tree.draft(3, 1) == 3


def test_a_row_sees_its_ancestors_and_its_depth_determines_its_position() -> None:
    tree = made([1, 2], [1, 3], [4])
    assert tree.positions(7) == [7, 8, 9, 9, 8]
    assert tree.mask.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]


def test_a_tree_of_its_first_row_alone_has_no_drafts() -> None:
    tree = DraftTree(3)
    assert (tree.depth, tree.path([5]), tree.first_branch(0)) == (0, [0], ())
    assert tree.mask.tolist() == [[True]]


def test_the_path_follows_the_picks_into_drafts_alone() -> None:
    tree = made([1, 2], [1, 3], [4, 2])
    tree.append(8, 0)
    assert tree.path([1, 3, 0, 0, 0, 0]) == [0, 1, 3]
    assert tree.path([4, 0, 0, 0, 2, 0]) == [0, 4, 5]
    assert tree.path([8, 0, 0, 0, 0, 0]) == [0]  # a row that is no draft
    assert tree.first_branch(0) == (1, 2)
    assert tree.first_branch(4) == (2,)


# ---------------------------------------------------------------- shape


def all_paths(chances: Sequence[Sequence[float]]) -> list[float]:
    """The chance of every path there could be, descending."""
    paths = [
        math.prod(chances[depth][c] for depth, c in enumerate(choice))
        for deep in range(1, len(chances) + 1)
        for choice in itertools.product(*(range(len(chances[d])) for d in range(deep)))
    ]
    return sorted((chance for chance in paths if chance > 0), reverse=True)


@pytest.mark.parametrize("most", [1, 2, 5, 11, 100])
def test_the_shape_holds_the_likeliest_of_all_paths(most: int) -> None:
    chances = [[0.6, 0.3, 0.05], [0.5, 0.4], [0.9, 0.08, 0.02]]
    rows = [1.0]
    for parent, depth, candidate in likeliest_paths(chances, most):
        assert parent < len(rows)
        rows.append(rows[parent] * chances[depth][candidate])
    assert sorted(rows[1:], reverse=True) == pytest.approx(all_paths(chances)[:most])


def test_siblings_are_in_order_and_candidates_of_zero_probability_are_left_out() -> None:
    shape = likeliest_paths([[0.5, 0.5, 0.0], [1.0, 0.0]], 20)
    second = shape.index((0, 0, 1)) + 1
    assert sorted(shape) == sorted([(0, 0, 0), (0, 0, 1), (1, 1, 0), (second, 1, 0)])
    for row in range(5):
        candidates = [candidate for parent, _, candidate in shape if parent == row]
        assert candidates == sorted(candidates)
    assert likeliest_paths([], 3) == []
    assert likeliest_paths([[math.nan, math.nan]], 3) == []


# ---------------------------------------------------------------- exact distributions


def test_candidates_are_drawn_without_replacement() -> None:
    q = torch.tensor([1, 1, 2, 0]) / 4
    distribution = integrated(lambda uniforms: tuple(draw_candidates(q, 3, uniforms, 5)), 12)
    left = {0: 1.0, 1: 1.0, 2: 2.0}
    for order in itertools.permutations(left):
        chance, total = 1.0, 4.0
        for token in order:
            chance *= left[token] / total
            total -= left[token]
        assert distribution.pop(order) == pytest.approx(chance)
    assert not distribution  # never token 3, which has no mass
    certain = integrated(
        lambda uniforms: tuple(draw_candidates(torch.eye(4)[2], 3, uniforms, 5)), 2
    )
    assert certain == {(2,): 1.0}  # no more where no mass is left


def draw_candidates(q: Tensor, num: int, uniforms: Any, output: int) -> list[int]:
    """Tokens drawn from q, one row of those that `draw` takes, as long as some mass is left."""
    u = torch.tensor([[uniforms.at("draw", output, c) for c in range(num)]], dtype=torch.float64)
    possible = int((q > 0).sum())  # behind these, ids mean nothing
    return draw(q[None, None], u)[0, 0, :possible].tolist()


def prefix(tree: DraftTree, row: int) -> list[int]:
    """The drafts up to a row, padded with -1 to index a table of distributions."""
    tokens = []
    while row:
        tokens.append(tree.tokens[row])
        row = tree.parents[row]
    return tokens[::-1]


class ByPrefix(dict):
    """Distributions by the tokens before."""

    def __missing__(self, key: tuple[int, ...]) -> Tensor:
        return self[key[-1:]]


@pytest.mark.parametrize("grid", [4, 8])
def test_coupled_verification_gives_the_targets_own_picks_for_any_drafts(grid: int) -> None:
    """By enumeration of the uniforms: a step's tokens are those AR picks with the same ones."""
    probs = ByPrefix({(): torch.tensor([1, 2, 1]) / 4, (0,): torch.tensor([2, 1, 1]) / 4})
    probs[(1,)], probs[(2,)] = (
        torch.tensor([0, 2, 2]) / 4,
        torch.tensor([1, 1, 2]) / 4,
    )
    trees = [made(), made([1]), made([0, 0], [0, 1], [2, 1]), made([1, 2], [0])]
    for u in itertools.product([(step + 0.5) / grid for step in range(grid)], repeat=3):
        expected: list[int] = []
        for value in u:
            distribution = probs[tuple(expected)]
            expected.append(
                int(pick(distribution[None], torch.tensor([value], dtype=torch.float64)))
            )
        for tree in trees:
            places = tree.positions(0)
            picks = [
                int(
                    pick(
                        probs[tuple(prefix(tree, row))][None],
                        torch.tensor([u[places[row]]], dtype=torch.float64),
                    )
                )
                for row in range(len(tree))
            ]
            path = tree.path(picks)
            tokens = [*(tree.tokens[row] for row in path[1:]), picks[path[-1]]]
            assert tokens == expected[: len(tokens)]


def test_the_tested_drafts_are_those_whose_parents_are_on_the_path() -> None:
    """Row 0 has children 1 and 2, row 2 has 3 and 4, row 1 has 5: along 0, 2, 3."""
    tree = DraftTree(9)
    for token, parent in ((1, 0), (2, 0), (3, 2), (4, 2), (5, 1)):
        tree.draft(token, parent)
    tree.confidences = {row: row / 10 for row in range(1, 6)}
    assert tree.tested([0, 2, 3]) == ((0.1, False), (0.2, True), (0.4, False), (0.3, True))
    assert tree.tested([0, 1]) == ((0.2, False), (0.1, True), (0.5, False))
    assert tree.tested([0]) == ((0.1, False), (0.2, False))


def test_tested_drafts_end_at_an_accepted_draft_without_a_confidence() -> None:
    """A reader counts accepted ones to find a draft's position."""
    tree = DraftTree.chain(9, [1, 2, 3], [0.5, 0.6, 0.7])
    tree.confidences = {1: 0.5, 3: 0.7}
    assert tree.tested(range(4)) == ((0.5, True),)
    assert DraftTree.chain(9, [1, 2]).tested(range(3)) == ()
    assert DraftTree.chain(9, [1, 2], [0.5, 0.4, 0.3]).tested([0, 1]) == ((0.5, True), (0.4, False))


def test_confidences_of_drafted_trees_are_conditional_on_parents_and_trees_may_be_cut() -> None:
    result = CallResult(picks=(4, 5, 6), confidences=(0.5, 0.4, 0.2), parents=(-1, -1, 0))
    tree = _drafted_tree(9, result)
    assert tree.confidences == {1: 0.5, 2: 0.4, 3: 0.4}
    cut = _drafted_tree(9, result, 1)
    assert cut.tokens == [9, 4]
    assert cut.confidences == {1: 0.5}


def test_drafts_of_one_token_after_one_parent_share_a_row() -> None:
    result = CallResult(
        picks=(4, 4, 6, 6), confidences=(0.5, 0.4, 0.2, 0.1), parents=(-1, -1, 0, 1)
    )
    tree = _drafted_tree(9, result)
    assert tree.tokens == [9, 4, 6]
    assert tree.parents == [masks.ROOT, 0, 1]
    assert tree.num_drafts == 2
    assert tree.path([4, 6, 0]) == [0, 1, 2]


def test_trees_share_a_mask_only_if_their_shapes_are_equal() -> None:
    one, other = DraftTree.chain(9, [1, 2]), DraftTree.chain(3, [4, 5])
    assert one.mask is other.mask
    assert torch.equal(one.mask, masks.causal(3))
    other.draft(7, 1)
    assert torch.equal(other.mask, masks.tree((-1, 0, 1, 1)))
    assert other.depths == (0, 1, 2, 2)
    assert torch.equal(one.mask, masks.causal(3))
