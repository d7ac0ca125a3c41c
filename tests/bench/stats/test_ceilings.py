"""Which items a pass decided, and what the report says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.records.record import SampleRecord
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.write import write_report
from bench.stats.ceilings import groups, holds, mean_ceiling, on_lists
from specbench_tasks.generators.lists import ceiling
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


def test_one_pass_is_one_group() -> None:
    assert groups(listed([[0, *[1] * 10]], [1]), piece) == (6,)


def test_a_block_sees_those_before_it() -> None:
    assert groups(listed([[0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1]], [1, 1, 1]), piece) == (2, 2, 2)


def test_passes_of_a_block_are_groups_in_their_order_wherever_their_places_are() -> None:
    decided = [[0, 1, 2, 1, 2, 1, 1, 1, 3, 1, 1]]
    # B and C in pass 2, E in pass 3
    assert groups(listed(decided, [3]), piece) == (3, 2, 1)


def test_a_token_of_the_targets_own_within_a_block_is_of_the_pass_that_follows() -> None:
    decided = [[0, 1], [0, *[2] * 8]]
    assert groups(listed(decided, [0, 2]), piece) == (1, 5)


@pytest.mark.parametrize("tokens", [[0, 6, 1, 6, 2, 6, 3, 6, 4, 6, 7], [*range(6), 8, 6, 6, 6, 6]])
def test_an_answer_that_is_no_list_has_no_groups(tokens: list[int]) -> None:
    record = listed([[0, *[1] * 10]], [1], tokens)
    assert groups(record, piece) == ()
    assert mean_ceiling([record], piece) is None


def test_the_mean_is_over_answers_that_are_lists() -> None:
    whole = listed([[0, *[1] * 10]], [1], family="replace")
    parted = listed([[0, 1, 1, 1], [0, *[1] * 6]], [1, 1], family="replace")
    other = listed([[0, *[1] * 10]], [1], [7] * 11, family="replace")
    expected = (ceiling("replace", (6,)) + ceiling("replace", (2, 4))) / 2
    assert mean_ceiling([whole, parted, other], piece) == pytest.approx(expected)


def test_only_scored_answers_filled_in_passes_count() -> None:
    scored = listed([[0, *[1] * 10]], [1], family="copy", kind="quality")
    timed = listed([[0, *[1] * 10]], [1], family="copy")
    verified = make_record("ptp", emitted=(4, 7), family="copy", kind="quality")
    prose = listed([[0, *[1] * 10]], [1], family="qa", kind="quality")
    assert on_lists([scored, timed, verified, prose]) == [scored]


def test_ceilings_hold_where_tokens_are_drawn_as_they_are() -> None:
    assert holds({"temperature": 1.0, "top_p": 1.0, "top_k": 0})
    assert not holds({})
    assert not holds({"temperature": 1, "top_p": 0.9})
    assert not holds({"temperature": 0.7})


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
def test_the_report_holds_unverified_lists_against_their_ceiling(
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
