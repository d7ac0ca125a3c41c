"""Which items a pass decided, and what the report says of it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.extras.sections.lists import (
    answers_to_lists,
    ceiling,
    ceilings_hold,
    groups_by_pass,
    mean_ceiling,
)
from bench.records.record import SampleRecord
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.write import write_report
from specbench_tasks.generators.questions import NUM_ITEMS
from specbench_tasks.task import LISTS
from tests.bench.conftest import make_record, tables_of, write_run

LETTERS = "ABCDEF"
PIECES = dict(enumerate(LETTERS)) | {6: ", ", 7: ".", 8: " X"}


def piece(token: int) -> str:
    return PIECES.get(token, f"<{token}>")


def listed(
    decided: Sequence[Sequence[int]], passes: Sequence[int], tokens: Sequence[int] = (), **more: Any
) -> SampleRecord:
    """An answer "A, B, C, D, E, F" whose tokens were decided so."""
    usual = [0, 6, 1, 6, 2, 6, 3, 6, 4, 6, 5]
    emitted = [len(each) for each in decided]
    record = make_record("nar", emitted=emitted, tokens=tuple(tokens or usual), **more)
    assert record.steps is not None
    steps = replace(record.steps, passes=tuple(passes), decided=tuple(map(tuple, decided)))
    return replace(record, steps=steps)


def test_items_filled_in_one_pass_are_one_group() -> None:
    assert groups_by_pass(listed([[0, *[1] * 10]], [1]), piece) == (6,)


def test_blocks_of_one_pass_are_separate_groups() -> None:
    assert groups_by_pass(listed([[0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1]], [1, 1, 1]), piece) == (
        2,
        2,
        2,
    )


def test_items_are_grouped_by_pass_regardless_of_their_position() -> None:
    decided = [[0, 1, 2, 1, 2, 1, 1, 1, 3, 1, 1]]
    # B and C in pass 2, E in pass 3
    assert groups_by_pass(listed(decided, [3]), piece) == (3, 2, 1)


def test_a_token_of_the_target_within_a_block_belongs_to_the_following_pass() -> None:
    decided = [[0, 1], [0, *[2] * 8]]
    assert groups_by_pass(listed(decided, [0, 2]), piece) == (1, 5)


@pytest.mark.parametrize("tokens", [[0, 6, 1, 6, 2, 6, 3, 6, 4, 6, 7], [*range(6), 8, 6, 6, 6, 6]])
def test_an_answer_that_is_no_list_has_no_groups(tokens: list[int]) -> None:
    record = listed([[0, *[1] * 10]], [1], tokens)
    assert groups_by_pass(record, piece) == ()
    assert mean_ceiling([record], piece) is None


def test_the_mean_ceiling_covers_only_answers_that_are_lists() -> None:
    whole = listed([[0, *[1] * 10]], [1], family="replace")
    parted = listed([[0, 1, 1, 1], [0, *[1] * 6]], [1, 1], family="replace")
    other = listed([[0, *[1] * 10]], [1], [7] * 11, family="replace")
    expected = (ceiling("replace", (6,)) + ceiling("replace", (2, 4))) / 2
    assert mean_ceiling([whole, parted, other], piece) == pytest.approx(expected)


def test_only_scored_lists_that_were_filled_in_passes_count() -> None:
    scored = listed([[0, *[1] * 10]], [1], family="copy", kind="quality")
    timed = listed([[0, *[1] * 10]], [1], family="copy")
    verified = make_record("ptp", emitted=(4, 7), family="copy", kind="quality")
    prose = listed([[0, *[1] * 10]], [1], family="qa", kind="quality")
    assert answers_to_lists([scored, timed, verified, prose]) == [scored]


def test_ceilings_hold_only_if_tokens_are_drawn_from_unwarped_distributions() -> None:
    assert ceilings_hold({"temperature": 1.0, "top_p": 1.0, "top_k": 0})
    assert not ceilings_hold({})
    assert not ceilings_hold({"temperature": 1, "top_p": 0.9})
    assert not ceilings_hold({"temperature": 0.7})


@pytest.fixture
def list_run(tmp_path: Path) -> Callable[[float], Path]:
    """A run of ar, ptp and nar that was also asked to replace an item."""

    def write(temperature: float) -> Path:
        path = write_run(tmp_path / "run", {"ptp": 3.0, "nar": 6.0}, lossy=["nar"])
        place: dict[str, Any] = {
            "family": "replace",
            "kind": "quality",
            "block": -1,
            "text": "A, B, C",
        }
        place |= {"ttft_s": None, "total_s": None, "scores": {"right_list": 0.5}}
        records = [
            make_record("ar", emitted=(1,) * 11, conversation="replace-0", **place),
            make_record("ptp", emitted=(4, 7), conversation="replace-0", **place),
            listed([[0, *[1] * 10]], [1], conversation="replace-0", **place),
        ]
        with (path / "samples.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(record.to_json() + "\n" for record in records)
        (path / "vocab.json").write_text(json.dumps({str(k): v for k, v in PIECES.items()}))
        text = f'model = "zoo"\nmax_new_tokens = 256\ntemperature = {temperature}\n'
        (path / "config.toml").write_text(text)
        return path

    return write


@pytest.mark.usefixtures("undrawn")
def test_the_report_compares_unverified_lists_with_their_ceiling(
    list_run: Callable[[float], Path],
) -> None:
    path = list_run(1.0)
    write_report(path)
    text = (path / "report.md").read_text(encoding="utf-8")
    assert "## Lists against the ceiling of independent prediction" in text
    share = 100 * (1 - 1 / 6) ** 5
    assert f"| nar | 50.0 / {share:.1f} |" in text
    assert "| ar | 50.0 / none |" in text
    assert "| ptp | 50.0 / none |" in text


def test_at_another_temperature_the_report_says_why_there_is_no_ceiling(
    list_run: Callable[[float], Path],
) -> None:
    findings = Findings(load_run(list_run(0.0)))
    assert not [t for t in tables_of(findings)["parallel"] if "ceiling" in t.title]
    assert [line for line in findings.caveats if line.startswith("No ceilings of lists")]


# ---------------------------------------------------------------- ceilings, against enumeration

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
def test_the_ceiling_is_1_item_by_item_and_no_merger_of_groups_raises_it(family: str) -> None:
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
