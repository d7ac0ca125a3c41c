"""A comparison as tables, JSON and side-by-side answers, and the verbs that print it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bench.compare.compare import compare
from bench.compare.gate import Gate
from bench.compare.judge import Comparison, Measure, Regression
from bench.compare.show import _change as shown_change
from bench.compare.show import (
    marked,
    print_comparison,
    show_changes,
    to_json,
    to_markdown,
    to_table,
)
from bench.stats.side import load_side

ROOT = Path(__file__).parents[3]
Pair = Callable[..., tuple[Path, Path]]


def judged(runs: tuple[Path, Path], **rules: Any) -> Comparison:
    base, head = (load_side(str(run), run.parent) for run in runs)
    return compare(base, head, Gate(**rules))


def printed(show: Callable[[Console], object], width: int = 160) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        show(console)
    return capture.get()


def other_token(record: dict[str, Any]) -> None:
    if record["decoder"] == "spec" and record["prompt_hash"] == "hqa-3#1":
        record["tokens"][2] = 79


def test_the_markdown_names_each_regressed_measure_and_its_change(pair: Pair) -> None:
    text = to_markdown(judged(pair(other_token)))
    assert text.startswith("### head against base: regressed")
    row = next(line for line in text.splitlines() if line.startswith("| spec | "))
    assert re.match(r"\| spec \| \*\*regressed\*\* \|( [\d,.]+ = \|){4}", row)
    assert "* spec: changed answers regressed: 0.0 % -> " in text
    assert ", must not rise" in text
    assert "tolerance" not in text
    assert "needs" not in text


def test_a_margin_is_stated_unrounded(pair: Pair) -> None:
    def slower(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["total_s"]:
            record["total_s"] *= 2

    text = to_markdown(judged(pair(slower), time={"margin_apart": 0.025}))
    assert " per token, margin 2.5 %" in text


def test_the_markdown_names_commits_and_has_both_numbers_beside_the_change(pair: Pair) -> None:
    def slower(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["kind"] == "timing":
            record["total_s"] *= 2
            record["steps"]["target_calls"][-1] += 1

    base, head = pair(slower)
    for run, git in (
        (base, {"commit": "a" * 40, "branch": "main", "dirty": False}),
        (head, {"commit": "b" * 40, "branch": None, "dirty": True}),
    ):
        env = json.loads((run / "env.json").read_text(encoding="utf-8"))
        (run / "env.json").write_text(json.dumps(env | {"git": git}), encoding="utf-8")
    text = to_markdown(judged((base, head)))
    heading = f"head at {'b' * 9} with uncommitted changes against base at {'a' * 9} (main)"
    assert text.startswith(f"### {heading}: regressed")
    assert "The benchmark is at" not in text  # the commits are its own
    assert "milliseconds are of all prompts together, so their ratio may differ" in text
    row = next(line for line in text.splitlines() if line.startswith("| spec | "))
    assert re.search(r"\| \*\*[\d,]+ -> [\d,]+ \(\+[\d.]+ %\)\*\* \|", row)
    assert re.search(r"[\d.]+ ms -> [\d.]+ ms \(\+100.0 % \[\+", row)


def test_the_revision_that_was_checked_out_is_named(pair: Pair) -> None:
    runs = pair()
    env = json.loads((runs[0] / "env.json").read_text(encoding="utf-8"))
    git = {"commit": "c" * 40, "branch": None, "dirty": False}
    (runs[0] / "env.json").write_text(json.dumps(env | {"git": git}), encoding="utf-8")
    status = json.loads((runs[0] / "run.json").read_text(encoding="utf-8"))
    (runs[0] / "run.json").write_text(json.dumps(status | {"revision": "origin/main"}))
    assert load_side(str(runs[0]), runs[0].parent).code == f"{'c' * 9} (origin/main)"


def test_both_outputs_show_both_values_of_the_key_figure_and_the_same_name_of_the_control(
    pair: Pair,
) -> None:
    def more_steps(record: dict[str, Any]) -> None:
        steps = record["steps"]
        if record["decoder"] == "spec" and record["kind"] == "timing":
            steps["emitted"] = [*steps["emitted"][:-1], steps["emitted"][-1] - 1, 1]
            for name in {name for name in steps if steps[name]} - {"emitted"}:
                steps[name] = [*steps[name], 0]

    comparison = judged(pair(more_steps))
    texts = to_markdown(comparison), printed(lambda c: print_comparison(comparison, c), 240)
    (both,) = re.findall(r"\| spec \|.*?\| (\d\.\d\d -> \d\.\d\d) \(", texts[0])
    before, _, after = both.partition(" -> ")
    assert re.search(rf"{before}\b.*\n.*-> {after}\b", texts[1])
    for text in texts:
        assert "not judged" not in text
        flat = re.sub(r"[\s|]+", " ", text)
        assert "time over ar (control)" in flat or "The control, time over ar, is" in flat
    row = next(line for line in texts[0].splitlines() if line.startswith("| ar |"))
    assert "| 1.00 = |" in row


def test_an_inconclusive_result_states_how_many_more_conversations_would_decide(pair: Pair) -> None:
    rng = np.random.default_rng(0)

    def noisy(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["total_s"]:
            record["total_s"] *= float(np.exp(rng.normal(0.18, 0.15)))

    runs = pair(noisy)
    comparison = judged(runs)
    assert comparison.verdict is Regression.inconclusive
    for text in (to_markdown(comparison), printed(lambda c: print_comparison(comparison, c))):
        flat = " ".join(text.split())
        assert re.search(r"needs about \d+ more conversations to decide: --limit \d+", flat)
        assert "ends with 0; with --fail-inconclusive it ends with 4" in flat


def test_times_that_the_gate_only_reports_are_marked_as_reported(pair: Pair) -> None:
    runs = pair()
    reported = to_markdown(judged(runs, time={"fail": False}))
    assert "it is only reported" in reported
    assert "cancels out; it decides nothing." in reported
    assert "it regressed if the whole" in to_markdown(judged(runs))


def test_warnings_of_the_runs_are_folded_in_markdown_and_open_on_the_terminal(pair: Pair) -> None:
    base, head = pair()
    status = json.loads((head / "run.json").read_text(encoding="utf-8"))
    status["warnings"] = ["the machine was busy", "it was hot"]
    (head / "run.json").write_text(json.dumps(status), encoding="utf-8")
    comparison = judged((base, head))
    text = to_markdown(comparison)
    folded = text[text.index("<details><summary>2 warnings of the runs</summary>") :]
    assert "* head: the machine was busy" in folded
    assert text.count("the machine was busy") == 1
    shown = printed(lambda console: print_comparison(comparison, console))
    assert "! head: the machine was busy" in shown


def test_the_markdown_for_a_pull_request_reports_a_wrong_decoder_first(pair: Pair) -> None:
    base, head = pair(other_token)
    status = json.loads((head / "run.json").read_text())
    wrong = [{"cell": "spec", "num_wrong": 1, "num_answers": 3}]
    (head / "run.json").write_text(json.dumps(status | {"differences": wrong}))
    text = to_markdown(judged((base, head)))
    assert text.startswith("### head against base: WRONG")
    assert "| spec | **WRONG** |" in text
    remarks = [line for line in text.splitlines() if line.startswith("* ")]
    assert remarks[0].startswith("* spec: head is WRONG: it claims to be lossless")
    assert remarks[1].startswith("* spec: identical to ar regressed")
    assert text.count("head is WRONG") == 1
    assert to_json(judged((base, head)))["exit_code"] == 3


def test_the_terminal_shows_changed_answers_and_ends_with_the_verdict(pair: Pair) -> None:
    comparison = judged(pair(other_token))
    text = printed(lambda console: print_comparison(comparison, console))
    assert text.rstrip().splitlines()[-1] == "regressed"
    assert "spec: 2 answers changed (--diff shows them)" in text


def test_the_terminal_counts_the_differences_that_it_leaves_out(pair: Pair) -> None:
    changes = tuple(f"setting {number} differs" for number in range(15))
    comparison = replace(judged(pair(other_token)), changes=changes)
    text = printed(lambda console: print_comparison(comparison, console))
    assert [f"setting {number} differs" in text for number in (11, 12)] == [True, False]
    assert "and 3 more differences (--json has all)" in text


@pytest.mark.parametrize("verdict", ["improved", "regressed", "pass"])
def test_an_unusual_measure_has_a_column_only_if_its_verdict_is_not_pass(
    pair: Pair, verdict: str
) -> None:
    comparison = judged(pair(other_token))
    measure = Measure("draft_calls", 10, 5, -0.5, True, 0.0, Regression(verdict))
    cell = replace(comparison.cells[0], measures=(measure,))
    headings = to_table(replace(comparison, cells=(cell,))).headings
    assert ("draft calls" in headings) is (verdict != "pass")


@pytest.mark.parametrize(
    ("ar", "line"),
    [
        (("a1", "a2"), "code of decoders: ar a1 -> a2, spec s1 on both sides, ptp p1 -> p2"),
        (("a1", "a1"), "code of decoders: spec s1 on both sides, ptp p1 -> p2"),
    ],
)
def test_the_code_of_every_decoder_is_listed_except_an_unchanged_ar(
    pair: Pair, ar: tuple[str, str], line: str
) -> None:
    codes = {"ar": ar, "spec": ("s1", "s1"), "ptp": ("p1", "p2"), "nar": (None, "n1")}
    comparison = judged(pair(other_token))
    cells = [
        replace(comparison.cells[0], cell=name, base_code=base, head_code=head)
        for name, (base, head) in codes.items()
    ]
    comparison = replace(comparison, cells=tuple(cells))
    assert f"* {line}\n" in to_markdown(comparison).replace("\\", "")


def test_every_column_is_whole_on_a_narrow_terminal(pair: Pair) -> None:
    def worse(record: dict[str, Any]) -> None:
        other_token(record)
        if record["scores"] and record["decoder"] == "ptp":
            record["scores"] = {name: 0.5 * score for name, score in record["scores"].items()}

    comparison = judged(pair(worse))
    text = printed(lambda console: print_comparison(comparison, console), width=80)
    table = to_table(comparison)
    assert len(table.headings) > 12
    assert "…" not in text
    assert all(word in text for heading in table.headings for word in re.split("[ .]", heading))
    assert all(part in text for row in table.rows for cell in row for part in cell.text.split("->"))
    assert text.count("\nspec ") > 2  # every part names the rows


def test_json_holds_every_measure_and_no_infinity(pair: Pair) -> None:
    def draft(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["steps"]:
            record["steps"]["draft_calls"][0] = 1

    data = json.loads(json.dumps(to_json(judged(pair(draft))), allow_nan=False))
    (spec,) = [cell for cell in data["cells"] if cell["cell"] == "spec"]
    (calls,) = [m for m in spec["measures"] if m["name"] == "draft_calls"]
    assert (calls["base"], calls["change"], calls["verdict"]) == (0, None, "regressed")
    assert (data["verdict"], data["exit_code"]) == ("regressed", 3)
    assert data["gate"]["time"]["margin"] == 0.03


def test_changed_answers_stand_side_by_side_once_for_all_repeats(pair: Pair) -> None:
    base, head = (load_side(str(run), run.parent) for run in pair(other_token))
    text = printed(lambda console: show_changes(base, head, console))
    assert text.count("spec  qa-3#1 (qa), repeat 0: differs from token 2") == 1
    assert " w0 w1[ w2]" in text
    assert " w0 w1[ w79]" in text


def test_runs_with_equal_answers_show_no_difference(pair: Pair) -> None:
    base, head = (load_side(str(run), run.parent) for run in pair())
    assert "no answer changed" in printed(lambda console: show_changes(base, head, console))


def test_answers_of_a_stored_reference_are_shown(
    pair: Pair, stored: Callable[[Path], Path]
) -> None:
    base, head = pair(other_token)
    before, after = (load_side(str(run), run.parent) for run in (stored(base), head))
    assert " w79]" in printed(lambda console: show_changes(before, after, console))


def test_tokens_that_only_one_side_has_are_marked() -> None:
    text = marked((1, 2, 3), (1, 3, 4), "<{}>".format, "red", brackets=True)
    assert text.plain == "<1>[<2>]<3>"
    assert [str(span.style) for span in text.spans] == ["red"]


# ---------------------------------------------------------------- the verb


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which fails if it imports torch."""
    code = (
        "import sys, cli\n"
        "try:\n    cli.main()\n"
        "finally:\n    assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.slow
def test_compare_writes_its_files_and_ends_with_3_without_torch(pair: Pair, tmp_path: Path) -> None:
    base, head = pair(other_token)
    files = tmp_path / "a.md", tmp_path / "a.json"
    done = command("compare", base, head, "--markdown", files[0], "--json", files[1], "--diff")
    assert done.returncode == 3, done.stderr
    assert "differs from token 2" in done.stdout
    assert files[0].read_text().startswith("### head against base: regressed")
    assert json.loads(files[1].read_text())["exit_code"] == 3


def test_files_of_a_comparison_may_lie_in_folders_that_are_missing(
    pair: Pair, tmp_path: Path
) -> None:
    from tests.command_line import bench

    base, head = pair(other_token)
    file = tmp_path / "new" / "out" / "a.xml"
    assert bench("compare", base, head, "--junit", file).code == 3
    assert "<testsuite" in file.read_text()


def test_comparing_a_folder_that_is_not_a_run_is_a_usage_error(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import cli

    base, _ = pair()
    monkeypatch.setattr(sys, "argv", ["bench", "compare", str(base), str(tmp_path / "no")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "no run folder" in capsys.readouterr().err


def test_shares_that_would_look_equal_when_rounded_get_more_decimals() -> None:
    def shown(base: float, head: float) -> str:
        made = Measure(
            name="quality.qa",
            base=base,
            head=head,
            change=head - base,
            relative=False,
            tolerance=0.0,
            verdict=Regression.regressed,
        )
        return shown_change(made)

    assert shown(0.57, 0.5614) == "57.0 % -> 56.1 %"
    assert shown(0.57, 0.56996) == "57.000 % -> 56.996 %"
    assert shown(1.0, 0.99996) == "100.0 % -> 99.9 %"
