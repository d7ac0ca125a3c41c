"""Lists to copy, change and reorder, and their ceilings against enumeration and drawing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest

from specbench_tasks.generators import generate, zoo_conversations
from specbench_tasks.generators.base import SPLITS
from specbench_tasks.generators.lists import NUM_ITEMS, ceiling, split_items
from specbench_tasks.registry import list_tasks, load_tasks
from specbench_tasks.scorers import PRIMARY, score
from specbench_tasks.task import FAMILIES, LISTS, GoldAnswer

Answer = tuple[int, ...]


def right_answers(family: str, num: int) -> list[Answer]:
    """Every right answer to 0, 1, …, n - 1, each as likely; `num` is the new item."""
    given = tuple(range(num))
    if family == "copy":
        return [given]
    if family == "replace":
        return [(*given[:place], num, *given[place + 1 :]) for place in given]
    return [order for order in itertools.permutations(given) if order != given]


def by_enumeration(family: str, groups: Sequence[int]) -> float:
    """Follow every way of filling group after group from the exact conditional marginals."""
    answers = right_answers(family, sum(groups))

    def filled(before: Answer, left: Sequence[int]) -> float:
        if not left:
            return float(before in answers)
        matching = [answer for answer in answers if answer[: len(before)] == before]
        if not matching:
            return 0.0
        places = range(len(before), len(before) + left[0])
        marginals = []
        for place in places:
            said = [answer[place] for answer in matching]
            marginals.append({item: said.count(item) / len(said) for item in set(said)})
        total = 0.0
        for draw in itertools.product(*(distribution.items() for distribution in marginals)):
            chance = math.prod(share for _, share in draw)
            total += chance * filled((*before, *(item for item, _ in draw)), left[1:])
        return total

    return filled((), groups)


def compositions(num: int) -> Iterator[tuple[int, ...]]:
    """All ways to part n in ordered groups."""
    if not num:
        yield ()
    for size in range(1, num + 1):
        yield from ((size, *rest) for rest in compositions(num - size))


@pytest.mark.parametrize("family", LISTS)
@pytest.mark.parametrize("num", [2, 3, 4, 5])
def test_ceilings_are_those_of_enumeration(family: str, num: int) -> None:
    for groups in compositions(num):
        expected = by_enumeration(family, groups)
        assert ceiling(family, groups) == pytest.approx(expected, abs=1e-12), groups


@pytest.mark.parametrize("family", LISTS)
def test_one_by_one_everything_is_possible_and_each_merger_of_groups_costs(family: str) -> None:
    assert ceiling(family, (1,) * NUM_ITEMS) == pytest.approx(1)
    for groups in compositions(NUM_ITEMS):
        for place in range(len(groups) - 1):
            merged = (*groups[:place], groups[place] + groups[place + 1], *groups[place + 2 :])
            assert ceiling(family, merged) <= ceiling(family, groups) + 1e-12


def test_ceilings_in_one_pass_are_the_closed_forms() -> None:
    n = NUM_ITEMS
    assert ceiling("copy", (n,)) == 1
    assert ceiling("replace", (n,)) == pytest.approx((1 - 1 / n) ** (n - 1))
    kept = (math.factorial(n - 1) - 1) / (math.factorial(n) - 1)
    moved = (1 - kept) / (n - 1)
    moving_all = [1, 0, 1, 2, 9, 44, 265]  # orders of m items that move every one
    terms = [math.comb(n, j) * moving_all[n - j] * kept**j * moved ** (n - j) for j in range(n)]
    assert ceiling("shuffle", (n,)) == pytest.approx(sum(terms))
    assert (round(ceiling("replace", (n,)), 3), round(sum(terms), 3)) == (0.402, 0.015)


def test_what_has_no_ceiling_is_refused() -> None:
    with pytest.raises(ValueError, match="no ceiling is known of 'qa'; of copy, replace, shuffle"):
        ceiling("qa", (6,))
    for groups in ((), (0, 2), (1,)):
        with pytest.raises(ValueError, match="groups are"):
            ceiling("copy", groups)


@pytest.mark.parametrize("family", LISTS)
def test_every_generated_list_is_right_and_belongs_to_one_split(family: str) -> None:
    prompts: dict[str, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
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


def test_lists_are_asked_by_name_and_by_nothing_else() -> None:
    tasks = load_tasks("shuffle,copy", limit=6)
    assert (tasks.name, tasks.families) == ("zoo:copy,shuffle", ("copy", "shuffle"))
    assert load_tasks("qa,replace", limit=4).families == ("qa", "replace")
    assert not set(LISTS) & {c.family for c in (*load_tasks().timing, *load_tasks().quality)}
    assert load_tasks().families == FAMILIES
    assert {task.name for task in list_tasks()} >= set(LISTS)
    assert len({c.turns for c in zoo_conversations("copy")}) == 120
