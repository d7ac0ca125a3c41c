"""JUnit XML and GitHub's annotations: one for each judged measure, at the decoder's class."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

from bench.compare.annotate import Place, github_commands, locate_decoders, to_junit
from bench.compare.compare import compare
from bench.compare.gate import Gate
from bench.compare.judge import Comparison
from bench.records.plan import Cell
from bench.stats.side import load_side
from tests.toy_package import DECODER, Toy

Pair = Callable[..., tuple[Path, Path]]
PLACES = {"spec": Place("src/a,b/mine.py", 7)}


def judged(runs: tuple[Path, Path], gate: Gate | None = None) -> Comparison:
    base, head = (load_side(str(run), run.parent) for run in runs)
    return compare(base, head, gate or Gate())


def one_call_more(record: dict[str, Any]) -> None:
    if record["decoder"] == "spec" and record["kind"] == "timing":
        record["steps"]["target_calls"][-1] += 1


def slower_as_ar(record: dict[str, Any]) -> None:
    if record["total_s"]:
        record["total_s"] *= 1.5


def cases(comparison: Comparison) -> dict[tuple[str, str], str | None]:
    """What stands in each test case: failure, error, skipped, or None."""
    suite = xml.fromstring(to_junit(comparison, PLACES))
    return {
        (str(case.get("classname")), str(case.get("name"))): next((e.tag for e in case), None)
        for case in suite
    }


def test_a_regression_is_a_failure_with_both_values_at_the_class(pair: Pair) -> None:
    comparison = judged(pair(one_call_more))
    suite = xml.fromstring(to_junit(comparison, PLACES))
    assert [(suite.get(key)) for key in ("failures", "errors", "skipped")] == ["1", "0", "0"]
    assert suite.get("tests") == str(len(suite))
    (failed,) = suite.iter("failure")
    assert "must not rise" in str(failed.get("message"))
    found = next(case for case in suite if failed in case)
    where = [found.get(key) for key in ("classname", "name", "file", "line")]
    assert where == ["spec", "calls", "src/a,b/mine.py", "7"]
    (line,) = github_commands(comparison, PLACES)
    assert line.startswith(
        "::error file=src/a%2Cb/mine.py,line=7,title=bench gate%3A spec%3A calls regressed::"
    )
    assert "%25)" in line, "a per cent sign is escaped"
    assert "\n" not in line


def test_equal_runs_have_a_passing_case_for_each_measure_and_no_annotation(pair: Pair) -> None:
    comparison = judged(pair())
    assert set(cases(comparison).values()) == {None}
    assert {("ar", "calls"), ("spec", "tokens per step"), ("spec", "time")} <= set(
        cases(comparison)
    )
    assert github_commands(comparison, PLACES) == []


def test_an_inconclusive_measure_is_skipped_with_a_warning_and_fails_under_a_strict_gate(
    pair: Pair,
) -> None:
    runs = pair(slower_as_ar)
    assert cases(judged(runs))["spec", "time"] == "skipped"
    assert all(line.startswith("::warning ") for line in github_commands(judged(runs), PLACES))
    strict = judged(runs, Gate(strict=True))
    assert cases(strict)["spec", "time"] == "failure"
    assert all(line.startswith("::error ") for line in github_commands(strict, PLACES))


def test_a_decoder_that_cannot_be_compared_is_an_error(pair: Pair) -> None:
    base, head = pair()
    manifest = json.loads((head / "manifest.json").read_text())
    manifest["cells"] = [cell for cell in manifest["cells"] if cell["cell"] != "ptp"]
    (head / "manifest.json").write_text(json.dumps(manifest))
    assert cases(judged((base, head)))["ptp", "comparable"] == "error"


def test_a_wrong_decoder_fails_as_not_lossless_in_a_single_annotation(pair: Pair) -> None:
    base, head = pair(one_call_more)
    status = json.loads((head / "run.json").read_text())
    status["differences"] = [{"cell": "spec", "num_answers": 1, "num_wrong": 1, "example": "c#1"}]
    (head / "run.json").write_text(json.dumps(status))
    comparison = judged((base, head))
    assert cases(comparison)["spec", "lossless"] == "failure"
    assert cases(comparison)["spec", "calls"] == "failure"
    (line,) = github_commands(comparison, PLACES)
    assert "lossless WRONG::head is WRONG" in line


def test_a_newline_in_a_file_name_cannot_inject_a_github_command(pair: Pair) -> None:
    """A file's name may hold a new line; GitHub would read what follows as a command."""
    place = {"spec": Place("a\n::stop-commands::x", 1)}
    (line,) = github_commands(judged(pair(one_call_more)), place)
    assert "\n" not in line
    assert line.count("::") == 2


def test_the_class_of_a_decoder_is_found_in_its_repository(tmp_path: Path) -> None:
    toy = Toy.written(tmp_path / "toy")
    names = {"mine": DECODER, "toy": "toy", "spec": "spec", "gone": "src/gone.py:Toy"}
    cells = [Cell(cell=cell, name=name, lossless=True) for cell, name in names.items()]
    line = 1 + toy.source().splitlines().index("class Toy(DraftAndVerify):")
    place = Place("src/toydec/toy.py", line)
    assert locate_decoders(cells, toy.root / "src") == {"mine": place}
    assert locate_decoders(cells, tmp_path) == {}
