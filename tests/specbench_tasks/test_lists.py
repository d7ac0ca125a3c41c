"""Lists to copy, change and reorder, and how answers are scored."""

from __future__ import annotations

import itertools

import pytest

from specbench_tasks.generators import generate, zoo_conversations
from specbench_tasks.generators.base import Split
from specbench_tasks.generators.questions import NUM_ITEMS
from specbench_tasks.registry import list_tasks, load_tasks
from specbench_tasks.scorers import PRIMARY, score, split_items
from specbench_tasks.task import FAMILIES, LISTS, GoldAnswer


@pytest.mark.parametrize("family", LISTS)
def test_every_generated_list_is_right_and_belongs_to_one_split(family: str) -> None:
    splits: tuple[Split, ...] = ("train", "test")
    prompts: dict[str, set[str]] = {split: set() for split in splits}
    for split in splits:
        for example in itertools.islice(generate(family, split, 3), 300):
            (reference,), (response,) = example.references, example.responses
            assert reference is not None
            assert score(family, response, reference) == {PRIMARY[family]: 1.0}
            assert len(set(split_items(response))) == NUM_ITEMS
            prompts[split].add(" ".join(sorted(split_items(reference.answers[0]))) + response)
    assert not prompts["train"] & prompts["test"]


def test_all_right_answers_of_replace_are_drawn_equally_often() -> None:
    places = [0] * NUM_ITEMS
    for example in itertools.islice(generate("replace", "test", 1), 1200):
        reference = example.references[0]
        assert reference is not None
        places[reference.answers.index(example.responses[0])] += 1
    assert all(abs(count - 200) < 60 for count in places), places


@pytest.mark.parametrize(
    ("family", "output", "right"),
    [
        ("copy", "A, B, C", True),
        ("copy", " A,B ,C.", True),
        ("copy", "A, B", False),
        ("copy", "A, C, B", False),
        ("copy", "Here: A, B, C", False),
        ("replace", "X, B, C", True),
        ("replace", "A, X, C", True),
        ("replace", "A, B, C", False),
        ("replace", "X, X, C", False),
        ("shuffle", "B, A, C", True),
        ("shuffle", "A, B, C", False),
        ("shuffle", "A, A, C", False),
        ("shuffle", "B, A, C, C", False),
        ("shuffle", "", False),
    ],
)
def test_lists_are_judged_item_by_item(family: str, output: str, right: bool) -> None:
    answers = ("X, B, C", "A, X, C", "A, B, X") if family == "replace" else ("A, B, C",)
    assert score(family, output, GoldAnswer(answers=answers))["right_list"] == right


def test_lists_are_loaded_by_name_and_are_no_part_of_the_default_tasks() -> None:
    tasks = load_tasks("shuffle,copy", limit=6)
    assert (tasks.name, tasks.families) == ("zoo:copy,shuffle", ("copy", "shuffle"))
    assert load_tasks("qa,replace", limit=4).families == ("qa", "replace")
    assert not set(LISTS) & {c.family for c in (*load_tasks().timing, *load_tasks().quality)}
    assert load_tasks().families == FAMILIES
    assert {info.task for info in list_tasks()} >= set(LISTS)
    assert len({c.turns for c in zoo_conversations("copy")}) == 120
