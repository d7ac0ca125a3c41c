"""Blocks: every cell on every prompt in every repeat, in a seeded order, the baseline twice."""

import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bench.plan.make import order_blocks
from bench.records.plan import Cell, Plan, PlannedPrompt, read_plan, write_plan
from bench.records.prompts import SkippedTurn

PROMPTS = [f"c{i}#1" for i in range(10)]
CELLS = ["ar", "spec", "ptp"]


def test_every_prompt_is_one_block_per_repeat() -> None:
    blocks = order_blocks(PROMPTS, CELLS, repeats=3, batch_size=1, seed=0)
    assert [block.block for block in blocks] == list(range(30))
    measured = sorted((b.prompts[0], b.repeat) for b in blocks)
    assert measured == sorted(product(PROMPTS, range(3)))


def test_a_block_runs_every_cell_and_the_baseline_twice() -> None:
    for block in order_blocks(PROMPTS, CELLS, repeats=1, batch_size=1, seed=0):
        assert sorted(block.order) == ["ar", "ar@aa", "ptp", "spec"]


def test_repeats_follow_each_other_and_orders_differ() -> None:
    blocks = order_blocks(PROMPTS, CELLS, repeats=2, batch_size=1, seed=0)
    assert [block.repeat for block in blocks] == [0] * 10 + [1] * 10
    assert [b.prompts for b in blocks[:10]] != [b.prompts for b in blocks[10:]]
    assert len({block.order for block in blocks}) > 5


def test_every_arm_has_every_position_equally_often_in_new_orders() -> None:
    blocks = order_blocks(PROMPTS, CELLS, repeats=4, batch_size=1, seed=0)
    positions = Counter((arm, at) for block in blocks for at, arm in enumerate(block.order))
    assert set(positions.values()) == {len(blocks) // 4}
    orders = {block.order for block in blocks}
    assert len({arms[(arms.index("ar") + 1) % 4] for arms in orders}) == 3  # neighbours change


def test_the_order_depends_on_the_seed_alone() -> None:
    def order(seed: int) -> object:
        return order_blocks(PROMPTS, CELLS, repeats=2, batch_size=1, seed=seed)

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_at_batch_b_a_block_is_a_fixed_group_of_4b_prompts() -> None:
    blocks = order_blocks(PROMPTS, CELLS, repeats=3, batch_size=2, seed=0)
    assert Counter(len(block.prompts) for block in blocks) == {8: 3, 2: 3}
    assert len({frozenset(block.prompts) for block in blocks}) == 2
    assert sorted(name for block in blocks[:2] for name in block.prompts) == sorted(PROMPTS)


def test_sessions_of_a_batched_job_share_its_groups_and_differ_in_their_order() -> None:
    options: dict[str, Any] = {"repeats": 2, "batch_size": 2, "group_seed": 7}
    one, two = (order_blocks(PROMPTS, CELLS, seed=seed, **options) for seed in (7, 8))
    assert {block.prompts for block in one} == {block.prompts for block in two}
    assert [block.order for block in one] != [block.order for block in two]
    options["group_seed"] = 8
    other = order_blocks(PROMPTS, CELLS, seed=8, **options)
    assert {block.prompts for block in one} != {block.prompts for block in other}


TURNS = [f"c{i}#{turn}" for i in range(20) for turn in range(1, 2 + i % 3)]


def test_groups_of_a_batch_have_whole_conversations() -> None:
    blocks = order_blocks(TURNS, CELLS, repeats=2, batch_size=2, seed=0)
    for first in (block for block in blocks if block.repeat == 0):
        whole = {name.partition("#")[0] for name in first.prompts}
        assert sorted(first.prompts) == sorted(n for n in TURNS if n.partition("#")[0] in whole)
        assert len(first.prompts) <= 4 * 2 + 2
    assert sorted(n for b in blocks if b.repeat for n in b.prompts) == sorted(TURNS)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_same_order_sorts_the_turns_of_a_conversation_among_their_places(batch_size: int) -> None:
    def order(same_order: bool) -> list[str]:
        options = {"repeats": 1, "batch_size": batch_size, "same_order": same_order}
        blocks = order_blocks(TURNS, CELLS, seed=0, **options)  # type: ignore[arg-type]
        return [name for block in blocks for name in block.prompts]

    mixed, ascending = order(False), order(True)
    conversations = [[name.partition("#")[0] for name in each] for each in (mixed, ascending)]
    assert conversations[0] == conversations[1]
    for conversation in set(conversations[0]):
        turns = [name for name in ascending if name.startswith(f"{conversation}#")]
        assert turns == sorted(turns)
    assert (mixed == ascending) is (batch_size > 1)


def test_a_plan_is_read_back_from_its_manifest(tmp_path: Path) -> None:
    plan = Plan(
        name="x",
        cells=(
            Cell(
                cell="spec@a",
                name="spec",
                label="a",
                options={"k": 3},
                lossless=True,
                comparable_to_ar=True,
            ),
        ),
        order_seed=3,
        prompts=(
            PlannedPrompt(
                prompt="c0#1",
                conversation="c0",
                turn=1,
                family="qa",
                hash="h",
                num_tokens=4,
                passes=("timing", "quality"),
                reference={"answers": ["x"]},
            ),
        ),
        blocks=order_blocks(["c0#1"], ["ar"], repeats=2, batch_size=1, seed=3),
        skipped=(SkippedTurn(conversation="c1", turn=1, family="qa", reason="long"),),
        identity={"code": "abc", "draft": None},
    )
    write_plan(tmp_path, plan)
    assert json.loads((tmp_path / "manifest.json").read_text())["schema"] == 1
    assert read_plan(tmp_path) == plan
    assert plan.num_answers == 4
    assert [p.prompt for p in plan.in_pass("quality")] == ["c0#1"]
