"""Refining a block: schedules in numbers, and what each rule keeps, revises and masks again."""

from collections.abc import Sequence
from typing import Any

import pytest

from decoders.core.drafting.refinement import MaskBlock, Rules, _masks_left
from decoders.core.types import MASKED

M = MASKED


def block_of(size: int, **rules: Any) -> MaskBlock:
    """A block whose first token, 100, is known."""
    block = MaskBlock(size, Rules(**rules), stop_ids={9})
    block.begin(100)
    return block


def taken(block: MaskBlock, picks: Sequence[int], confidences: Sequence[float]) -> list[int]:
    block.take(picks, confidences)
    return block.slot_tokens


# Schedules.


@pytest.mark.parametrize(
    ("passes", "expected"),
    [(1, [0]), (2, [5, 0]), (3, [6, 3, 0]), (4, [7, 5, 2, 0]), (5, [8, 6, 4, 2, 0])],
)
def test_the_linear_schedule_of_mask_predict_for_ten_positions(
    passes: int, expected: list[int]
) -> None:
    found = [_masks_left(10, done, passes, "linear") for done in range(1, passes + 1)]
    assert found == expected


def test_the_cosine_schedule_fills_few_at_first_and_all_at_last() -> None:
    assert [_masks_left(10, done, 4, "cosine") for done in range(1, 5)] == [9, 7, 3, 0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("commit", ["quota", "cmlm"])
@pytest.mark.parametrize("passes", [1, 2, 3, 5, 8])
def test_passes_leave_no_more_masks_than_their_schedule_allows(
    schedule: str, commit: str, passes: int
) -> None:
    block = block_of(12, max_passes=passes, commit=commit, schedule=schedule)
    for done in range(1, passes + 1):
        shown = taken(block, range(20, 31), [0.01 * place for place in range(11)])
        left = _masks_left(11, done, passes, schedule)  # type: ignore[arg-type]
        assert shown.count(M) == left or (done < passes and shown.count(M) < left)
        assert block.finished == (done == passes)
    assert block.tokens == (100, *range(20, 31))


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_zero_max_passes_means_one_pass_per_predicted_token(size: int) -> None:
    """One token a pass; a block of one token, which the target gives, has one pass too."""
    block, passes = block_of(size, max_passes=0, early_exit=False), 0
    while not block.finished:
        block.take(range(20, 19 + size), [0.5] * (size - 1))
        passes += 1
        assert block.slot_tokens.count(M) == max(0, size - 1 - passes)
    assert passes == max(1, size - 1)


# Commits.


def test_a_quota_fills_the_surest_masks() -> None:
    block = block_of(5, max_passes=2)
    assert taken(block, [1, 2, 3, 4], [0.3, 0.9, 0.1, 0.5]) == [100, M, 2, M, 4]
    assert taken(block, [5, 6, 7, 8], [0.0] * 4) == [100, 5, 2, 7, 4]
    assert block.finished
    assert block.passes == 2


def test_a_quota_counts_no_positions_after_the_first_stop_token() -> None:
    picks, sureness = [1, 2, 3, 9, 9, 9, 9, 9], [0.3, 0.6, 0.2, 0.7, 0.99, 0.99, 0.99, 0.99]
    block = block_of(9, max_passes=2)
    assert taken(block, picks, sureness) == [100, M, 2, M, 9, M, M, M, M]  # 2 of 4
    assert taken(block, [5, 6, 7, 8, 9, 9, 9, 9], sureness)[:5] == [100, 5, 2, 7, 9]


def test_an_answer_may_grow_past_a_stop_token_that_was_only_predicted() -> None:
    block = block_of(5, max_passes=3, commit="threshold")
    taken(block, [1, 9, 9, 9], [0.9, 0.2, 0.9, 0.9])
    assert block.slot_tokens == [100, 1, M, M, M]
    assert taken(block, [1, 2, 3, 9], [0.9, 0.9, 0.9, 0.9]) == [100, 1, 2, 3, 9]


def test_mask_predict_masks_again_within_the_answer() -> None:
    block = block_of(7, max_passes=2, commit="cmlm")
    shown = taken(block, [1, 2, 9, 9, 9, 9], [0.3, 0.8, 0.9, 0.1, 0.1, 0.1])
    assert shown == [100, M, 2, 9, 9, 9, 9]


def test_a_threshold_fills_confident_positions_and_always_the_most_confident_one() -> None:
    block = block_of(5, max_passes=0, commit="threshold", threshold=0.8)
    assert taken(block, [1, 2, 3, 4], [0.3, 0.9, 0.1, 0.8]) == [100, M, 2, M, 4]
    assert taken(block, [5, 6, 7, 8], [0.2, 0.1, 0.3, 0.1]) == [100, M, 2, 7, 4]
    assert not block.finished
    assert taken(block, [5, 6, 7, 8], [0.2, 0.1, 0.3, 0.1]) == [100, 5, 2, 7, 4]
    assert block.finished


def test_threshold_plus_quota_fills_every_position_that_either_rule_would_fill() -> None:
    rules = {"max_passes": 2, "commit": "threshold+quota", "threshold": 0.8}
    sure, unsure = block_of(5, **rules), block_of(5, **rules)
    assert taken(sure, [1, 2, 3, 4], [0.9, 0.9, 0.1, 0.8]) == [100, 1, 2, M, 4]
    assert taken(unsure, [1, 2, 3, 4], [0.5, 0.2, 0.1, 0.3]) == [100, 1, M, M, 4]


def test_mask_predict_remasks_the_positions_that_were_filled_with_the_lowest_confidence() -> None:
    block = block_of(5, max_passes=4, commit="cmlm")
    assert taken(block, [1, 2, 3, 4], [0.4, 0.9, 0.1, 0.5]) == [100, M, 2, M, M]
    # what stands keeps its token and its 0.9, though the pass predicts otherwise, and very surely
    assert taken(block, [5, 6, 7, 8], [0.95, 1.0, 0.8, 0.2]) == [100, 5, 2, M, M]
    # a token of an earlier pass is masked again as soon as others are surer
    assert taken(block, [0, 0, 3, 4], [0.0, 0.0, 0.99, 0.99]) == [100, 5, M, 3, 4]
    assert taken(block, [0, 7, 0, 0], [0.0] * 4) == [100, 5, 7, 3, 4]
    assert block.finished


def test_the_last_pass_fills_everything() -> None:
    block = block_of(5, max_passes=1, commit="threshold", threshold=1.0)
    assert taken(block, [1, 2, 3, 4], [0.1] * 4) == [100, 1, 2, 3, 4]
    assert block.finished


@pytest.mark.parametrize("commit", ["quota", "threshold", "threshold+quota", "cmlm"])
def test_without_a_limit_a_block_takes_at_most_one_pass_per_position(commit: str) -> None:
    block = block_of(7, max_passes=0, commit=commit, threshold=1.0)
    while not block.finished:
        block.take([1] * 6, [0.5] * 6)
    assert block.passes == 6


# Revisions.


def test_an_edit_replaces_a_token_once_a_pass_confidently_predicts_another_one() -> None:
    block = block_of(4, max_passes=3, revise="edit", edit_threshold=0.7)
    assert taken(block, [1, 2, 3], [0.9, 0.1, 0.2]) == [100, 1, M, M]
    assert taken(block, [5, 2, 3], [0.8, 0.1, 0.2]) == [100, 5, M, 3]
    assert taken(block, [6, 2, 4], [0.6, 0.1, 0.7]) == [100, 5, 2, 4]


def test_remasking_defers_a_doubted_token_to_a_later_pass_except_in_the_last_pass() -> None:
    block = block_of(4, max_passes=3, revise="remask", edit_threshold=0.7)
    assert taken(block, [1, 2, 3], [0.9, 0.1, 0.2]) == [100, 1, M, M]
    assert taken(block, [5, 2, 3], [0.8, 0.1, 0.2]) == [100, M, M, 3]
    assert taken(block, [6, 2, 4], [0.9, 0.9, 0.9]) == [100, 6, 2, 3]


def test_each_position_records_the_last_pass_that_set_its_token() -> None:
    block = block_of(4, max_passes=3, revise="edit", edit_threshold=0.7)
    block.take([1, 2, 3], [0.9, 0.1, 0.2])
    assert block.decided[:2] == [0, 1]
    block.take([5, 2, 3], [0.8, 0.1, 0.2])  # edits the first, fills the last
    assert (block.decided[1], block.decided[3]) == (2, 2)
    block.take([6, 2, 4], [0.6, 0.1, 0.7])
    assert block.decided == [0, 2, 3, 3]
    masked = block_of(4, max_passes=3, revise="remask", edit_threshold=0.7)
    for picks in ([1, 2, 3], [5, 2, 3], [6, 2, 4]):
        masked.take(picks, [0.9, 0.1, 0.2])
    assert masked.decided == [0, 3, 3, 2]
    running = block_of(4, max_passes=4, commit="threshold", prefix="running", revise="remask")
    assert taken(running, [1, 2, 3], [0.2, 0.95, 0.2]) == [100, M, 2, M]
    running.begin(7)
    assert taken(running, [5, 3], [0.95, 0.2]) == [100, 7, M, M]  # the doubted token is a mask
    running.begin(8)  # and then the target's own
    assert running.decided == [0, 0, 0, 0]


def test_a_block_ends_early_after_a_pass_that_leaves_no_masks_and_revises_no_token() -> None:
    rules: dict[str, Any] = {"max_passes": 9, "commit": "threshold", "revise": "edit"}
    block = block_of(3, **rules)
    block.take([1, 2], [0.95, 0.1])
    block.take([4, 2], [0.95, 0.95])  # an edit: another pass is due
    assert (block.slot_tokens, block.finished) == ([100, 4, 2], False)
    block.take([4, 2], [0.95, 0.95])
    assert (block.finished, block.passes) == (True, 3)
    patient = block_of(3, early_exit=False, **rules)
    for done in range(1, 10):
        patient.take([1, 2], [1.0, 1.0])
        assert patient.finished == (done == 9)


def test_masks_after_a_stop_token_do_not_delay_the_end_of_a_block() -> None:
    block = block_of(5, max_passes=8, commit="threshold")
    block.take([1, 9, 3, 4], [0.2, 0.95, 0.1, 0.1])
    assert (block.slot_tokens, block.finished) == ([100, M, 9, M, M], False)
    block.take([1, 9, 3, 4], [0.95, 0.95, 0.1, 0.1])
    assert block.finished
    assert block.tokens == (100, 1, 9)


def test_a_block_of_one_token_has_nothing_to_refine() -> None:
    block = block_of(1, max_passes=4, early_exit=False)
    block.take([], [])
    assert block.finished
    assert block.tokens == (100,)


# What is final before the block is.


def test_a_running_prefix_ends_at_the_first_mask_and_is_not_revised() -> None:
    block = block_of(6, max_passes=4, commit="threshold", prefix="running", revise="edit")
    assert taken(block, [1, 2, 3, 4, 5], [0.95, 0.2, 0.95, 0.3, 0.1]) == [100, 1, M, 3, M, M]
    assert (block.start, block.tokens, block.finished) == (2, (100, 1), False)
    block.begin(7)  # the target's own token after the prefix
    assert taken(block, [3, 5, 6], [0.95, 0.95, 0.2]) == [100, 1, 7, 3, 5, M]
    assert block.start == 5
    block.begin(8)  # nothing is left for slots
    assert taken(block, [], []) == [100, 1, 7, 3, 5, 8]
    assert block.finished


def test_a_running_prefix_needs_no_mask_filled_to_move_on() -> None:
    block = block_of(4, max_passes=0, commit="threshold", prefix="running")
    assert taken(block, [1, 2, 3], [0.5, 0.8, 0.7]) == [100, M, M, M]
    assert block.start == 1


def test_mask_predict_does_not_mask_a_running_prefix_again() -> None:
    block = block_of(5, max_passes=3, commit="cmlm", prefix="running", revise="none")
    assert taken(block, [1, 2, 3, 4], [0.1, 0.9, 0.2, 0.8]) == [100, M, 2, M, 4]
    block.begin(1)
    assert taken(block, [2, 3, 4], [0.5, 0.9, 0.9])[:2] == [100, 1]


def test_a_deferred_tail_ends_the_block_before_the_first_mask() -> None:
    block = block_of(5, max_passes=1, commit="threshold", tail="defer", prefix="running")
    assert taken(block, [1, 2, 3, 4], [0.95, 0.5, 0.95, 0.5]) == [100, 1, M, 3, M]
    assert block.finished
    assert block.tokens == (100, 1)
    whole = block_of(5, max_passes=1, commit="threshold", tail="fill", prefix="running")
    assert taken(whole, [1, 2, 3, 4], [0.95, 0.5, 0.95, 0.5]) == [100, 1, 2, 3, 4]


def test_the_last_pass_may_remask_a_token_if_the_tail_is_deferred() -> None:
    rules = {"max_passes": 2, "commit": "threshold", "revise": "remask"}
    for tail, expected in (("defer", [100, M, 2, 3]), ("fill", [100, 1, 2, 3])):
        block = block_of(4, tail=tail, **rules)
        assert taken(block, [1, 2, 3], [0.95, 0.95, 0.1]) == [100, 1, 2, M]
        assert taken(block, [5, 2, 3], [0.95, 0.95, 0.95]) == expected
