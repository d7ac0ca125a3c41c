"""Masks against definitions written out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.core import masks


def drawn(mask):
    """A mask as the docstring draws it."""
    return ["".join(".#"[int(seen)] for seen in row) for row in mask]


def test_causal_rows_see_themselves_and_all_earlier_rows():
    assert drawn(masks.causal(3)) == ["#..", "##.", "###"]


def test_tree_rows_see_themselves_and_their_ancestors():
    parents = (masks.ROOT, 0, 0, 1, 2, masks.ROOT)
    assert drawn(masks.tree(parents)) == [
        "#.....",
        "##....",
        "#.#...",
        "##.#..",
        "#.#.#.",
        ".....#",
    ]
    assert masks.depths(parents) == (0, 1, 1, 2, 2, 0)


def test_tree_that_is_one_chain_is_causal():
    assert torch.equal(masks.tree((masks.ROOT, 0, 1, 2)), masks.causal(4))


PARENTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=14).map(
    lambda numbers: tuple(number % (row + 1) - 1 for row, number in enumerate(numbers))
)


@settings(max_examples=80, deadline=None)
@given(PARENTS)
def test_any_tree_shows_each_row_its_ancestors_and_nothing_else(parents):
    mask = masks.tree(parents)
    for row, parent in enumerate(parents):
        line = {row}
        while parent != masks.ROOT:
            line.add(parent)
            parent = parents[parent]
        assert set(mask[row].nonzero().flatten().tolist()) == line
        assert masks.depths(parents)[row] == len(line) - 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 5))
def test_any_block_equals_its_definition(rows, stem):
    block = masks.block(rows, stem)
    assert block[stem:].all()
    assert torch.equal(block[:stem], masks.causal(stem + rows)[:stem])


def test_tree_refuses_a_parent_that_comes_later():
    with pytest.raises(AssertionError, match="row 1 needs an earlier parent, got 2"):
        masks.tree((masks.ROOT, 2, 0))


def sees_in_branches(row, other):
    """By the docstring: rows are (branch, place in it), a token's place is None."""
    branch, place = row
    to_branch, to_place = other
    if to_place is None:
        return to_branch <= branch
    return place is not None and to_branch == branch and to_place <= place


def check_branches(sizes):
    rows: list[tuple[int, int | None]] = [(m, None) for m in range(len(sizes))]
    rows += [(m, place) for m, size in enumerate(sizes) for place in range(size)]
    expected = [[sees_in_branches(row, other) for other in rows] for row in rows]
    assert masks.branches(sizes).tolist() == expected


def test_slots_see_the_tokens_up_to_their_anchor_and_only_their_own_branch():
    assert drawn(masks.branches((1, 0, 2))) == [
        "#.....",
        "##....",
        "###...",
        "#..#..",
        "###.#.",
        "###.##",
    ]


@pytest.mark.parametrize(
    "sizes",
    [(0,), (1,), (5,), (0, 0), (0, 3), (3, 0), (4, 4, 4, 4), (0,) * 9, (9, 0, 1), (1,) * 17],
)
def test_branches_equal_their_definition(sizes):
    check_branches(sizes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=10))
def test_branches_of_any_sizes_equal_their_definition(sizes):
    check_branches(sizes)


def test_a_single_branch_after_the_last_token_is_causal():
    assert torch.equal(masks.branches((0, 0, 4)), masks.causal(7))


@pytest.mark.parametrize("sizes", [(3, 2, 1), (4, 4, 4, 4), (1,)])
def test_a_caller_may_change_its_mask_without_changing_the_next_one(sizes):
    masks.branches(sizes).logical_not_()
    check_branches(sizes)


def test_block_rows_see_each_other_and_the_stem():
    assert drawn(masks.block(3, stem=1)) == ["#...", "####", "####", "####"]
    assert masks.block(2).all()


@pytest.mark.parametrize(
    "mask",
    [
        masks.causal(4),
        masks.tree((-1, 0)),
        masks.branches((2, 0, 3)),
        masks.block(3),
    ],
)
def test_every_row_sees_itself_in_a_square_bool_mask(mask):
    assert mask.dtype == torch.bool
    assert mask.shape == (len(mask), len(mask))
    assert mask.diagonal().all()


def test_standalone_branches_do_not_see_the_token_they_stand_for() -> None:
    seen, alone = masks.branches((2, 0, 3)), masks.branches((2, 0, 3), standalone=True)
    changed = (seen != alone).nonzero().tolist()
    assert changed == [[3, 0], [4, 0], [5, 2], [6, 2], [7, 2]]
