"""Masks against definitions written out by hand."""

import pytest
import torch

from decoders.core import masks


def drawn(mask):
    """A mask as the docstring draws it."""
    return ["".join(".#"[int(seen)] for seen in row) for row in mask]


def test_causal_rows_see_themselves_and_what_came_before():
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


def test_tree_refuses_a_parent_that_comes_later():
    with pytest.raises(AssertionError, match="row 1 needs an earlier parent, got 2"):
        masks.tree((masks.ROOT, 2, 0))


def test_branch_chains_see_the_stem_and_not_each_other():
    assert drawn(masks.branch(2, 2, stem=1)) == ["#....", "##...", "###..", "#..#.", "#..##"]
    assert drawn(masks.branch(2, 1)) == ["#.", ".#"]


def test_branch_is_the_tree_of_its_parents():
    tree = masks.tree((masks.ROOT, 0, 1, 2, 1, 4))
    assert torch.equal(masks.branch(2, 2, stem=2), tree)


def test_block_rows_see_each_other_and_the_stem():
    assert drawn(masks.block(3, stem=1)) == ["#...", "####", "####", "####"]
    assert masks.block(2).all()


@pytest.mark.parametrize(
    "mask", [masks.causal(4), masks.tree((-1, 0)), masks.branch(2, 3, stem=2), masks.block(3)]
)
def test_every_row_sees_itself_in_a_square_bool_mask(mask):
    assert mask.dtype == torch.bool
    assert mask.shape == (len(mask), len(mask))
    assert mask.diagonal().all()
