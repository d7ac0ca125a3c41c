"""What is demanded of head: base's promise, errors first, and nothing finer than an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.compare.compare import compare
from bench.compare.gate import Gate
from bench.compare.judge import CellRegression, Comparison, Measure, Regression
from bench.errors import Exit
from bench.stats.side import load_side

Pair = Callable[..., tuple[Path, Path]]
Stored = Callable[[Path], Path]
Altered = Callable[[Path, Callable[[dict[str, Any]], object]], None]
ELSEWHERE = {"comparability_key": "elsewhere", "dtype": "float32"}
LOST = "base claims ar's tokens, head does not; head is judged by that claim"


def judged(runs: tuple[Path, Path], gate: Gate | None = None) -> Comparison:
    base, head = (load_side(str(run), run.parent) for run in runs)
    return compare(base, head, gate or Gate())


def of(comparison: Comparison, cell: str) -> CellRegression:
    (found,) = [c for c in comparison.cells if c.cell == cell]
    return found


def measures(comparison: Comparison, cell: str) -> dict[str, Measure]:
    return {measure.name: measure for measure in of(comparison, cell).measures}


def give_up(run: Path, cell: str = "spec") -> None:
    """Let a decoder claim nothing any more."""
    manifest = json.loads((run / "manifest.json").read_text())
    for planned in manifest["cells"]:
        planned["lossless"] = planned["lossless"] and planned["cell"] != cell
    (run / "manifest.json").write_text(json.dumps(manifest))


def leave_ar(record: dict[str, Any]) -> None:
    """Another token in one answer of `spec`."""
    if record["decoder"] == "spec" and record["prompt_hash"] == "hqa-3#1":
        record["tokens"][-1] = 79


def fail(record: dict[str, Any]) -> None:
    """No answer of `spec` to one prompt."""
    if record["decoder"] == "spec" and record["prompt_hash"] == "hqa-3#1":
        measured = ("tokens", "text", "stop", "steps", "ttft_s", "total_s")
        record.update(dict.fromkeys(measured), error="ValueError: no")


# ---------------------------------------------------------------- promises


def refute(run: Path) -> None:
    """Let `spec` have failed the contract's checks when the run was planned."""
    manifest = json.loads((run / "manifest.json").read_text())
    for planned in manifest["cells"]:
        if planned["cell"] == "spec":
            planned |= {"checked": "wrong", "check_note": "gives other tokens"}
    (run / "manifest.json").write_text(json.dumps(manifest))


def test_a_decoder_that_failed_its_checks_is_wrong_in_a_run_that_did_not_end(
    synthetic_run: Callable[..., Path],
) -> None:
    run = synthetic_run(status={"status": "error", "verdict": "INCOMPLETE"})
    before = load_side(str(run), run.parent)
    assert (before.verdict, before.status.differences) == ("INCOMPLETE", None)
    refute(run)
    side = load_side(str(run), run.parent)
    assert (side.verdict, side.status.wrong) == ("WRONG", ["spec"])
    assert "checks: gives other tokens" in side.reasons[0]
    assert (side.guarantees["spec"], side.guarantees["ptp"]) == ("WRONG", "same tokens")
    assert side.num_wrong("ptp") is None  # nothing was compared


@pytest.mark.parametrize("reference", [False, True])
def test_a_decoder_that_drops_its_guarantee_is_judged_by_the_guarantee_of_base(
    pair: Pair, stored: Stored, altered: Altered, reference: bool
) -> None:
    base, head = pair()
    give_up(head)
    if reference:
        stored(base)
    kept = judged((base, head))
    assert (of(kept, "spec").verdict, of(kept, "spec").notes) == (Regression.passed, (LOST,))
    altered(head, leave_ar)
    left = judged((base, head))
    assert measures(left, "spec")["identical_to_ar"].verdict is Regression.regressed
    assert "changed_answers" in measures(left, "spec")
    assert left.exit_code == Exit.REGRESSION
    assert of(left, "ptp").verdict is Regression.passed


def test_near_ties_of_one_decoder_do_not_excuse_another_decoder(pair: Pair) -> None:
    base, head = pair(leave_ar, env=ELSEWHERE)
    give_up(head)
    ties = [{"cell": "ptp", "num_wrong": 0, "num_answers": 3}]
    status = json.loads((head / "run.json").read_text())
    (head / "run.json").write_text(json.dumps(status | {"differences": ties}))
    found = measures(judged((base, head)), "spec")["identical_to_ar"]
    assert (found.verdict, found.note) == (Regression.regressed, "")


@pytest.mark.parametrize("reference", [False, True])
def test_a_decoder_without_a_guarantee_may_depart_further_from_ars_tokens(
    pair: Pair, stored: Stored, altered: Altered, reference: bool
) -> None:
    base, head = pair()
    for run in (base, head):
        give_up(run)
        altered(run, leave_ar)
    altered(head, lambda r: r["decoder"] == "spec" and r.update(tokens=[5] * len(r["tokens"])))
    if reference:
        stored(base)
    assert of(judged((base, head)), "spec").verdict is Regression.passed
    assert "identical_to_ar" not in measures(judged((base, head)), "spec")


def test_in_half_precision_exactness_is_measured_and_not_judged(pair: Pair) -> None:
    runs = pair(leave_ar)
    for run in runs:
        env = json.loads((run / "env.json").read_text())
        (run / "env.json").write_text(json.dumps(env | {"dtype": "bfloat16"}))
    comparison = judged(runs)
    found = measures(comparison, "spec")["identical_to_ar"]
    assert found.head == pytest.approx(13 / 14)
    assert found.verdict is Regression.passed
    assert any("not judged in bfloat16" in line for line in comparison.unjudged)
    assert comparison.exit_code == Exit.DONE


def test_row_invariant_half_precision_is_judged_as_float32_is(pair: Pair) -> None:
    runs = pair(leave_ar)
    for run in runs:
        env = json.loads((run / "env.json").read_text())
        (run / "env.json").write_text(json.dumps(env | {"dtype": "bfloat16"}))
        config = (run / "config.toml").read_text()
        (run / "config.toml").write_text(f'numerics = "invariant"\ntile = 16\n{config}')
    comparison = judged(runs)
    assert measures(comparison, "spec")["identical_to_ar"].verdict is Regression.regressed
    assert comparison.exit_code == Exit.REGRESSION
    head = runs[1] / "config.toml"
    head.write_text(head.read_text().replace("tile = 16", "tile = 8"))
    assert "changed_answers" not in measures(judged(runs), "spec")


# ---------------------------------------------------------------- granularity


def worse_in(num: int, *families: str) -> Callable[[dict[str, Any]], None]:
    """The first `num` answers of `ptp` in some families score nothing."""
    places = {f"{family}-held-{i}" for family in families for i in range(num)}

    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "ptp" and record["conversation"] in places:
            record["scores"] = dict.fromkeys(record["scores"], 0.0)

    return change


@pytest.mark.parametrize("reference", [False, True])
def test_on_another_machine_one_worse_answer_in_a_family_passes_and_two_regress(
    pair: Pair, stored: Stored, altered: Altered, reference: bool
) -> None:
    base, head = pair(worse_in(1, "qa"), env=ELSEWHERE)
    if reference:
        stored(base)
    comparison = judged((base, head))
    found = measures(comparison, "ptp")["quality.qa"]
    assert found.change is not None
    assert found.change < -0.005
    assert (found.tolerance, found.verdict) == (1 / 4, Regression.passed)
    assert comparison.exit_code == Exit.DONE
    altered(head, worse_in(2, "qa"))
    assert measures(judged((base, head)), "ptp")["quality.qa"].verdict is Regression.regressed


def test_on_another_machine_one_worse_answer_in_every_family_regresses_the_mean(pair: Pair) -> None:
    families = ("mt_bench", "summarization", "qa", "math_reasoning", "rag")
    found = measures(judged(pair(worse_in(1, *families), env=ELSEWHERE)), "ptp")
    assert {found[f"quality.{family}"].verdict for family in families} == {Regression.passed}
    assert found["quality"].verdict is Regression.regressed
    assert found["quality"].tolerance == pytest.approx(1 / 4 / 6)


def test_on_the_same_machine_one_worse_answer_regresses(pair: Pair) -> None:
    found = measures(judged(pair(worse_in(1, "qa"))), "ptp")["quality.qa"]
    assert (found.tolerance, found.verdict) == (0, Regression.regressed)


def test_a_tolerance_is_at_least_one_answer_on_another_machine_unless_the_gate_sets_it() -> None:
    hard = Gate().hard
    assert hard.of("quality", exact=False, step=1 / 8) == 1 / 8
    assert hard.of("quality", exact=False, step=1 / 400) == hard.tolerance_elsewhere
    assert hard.of("quality", exact=True, step=1 / 8) == 0
    own = hard.model_copy(update={"quality": 0.01})
    assert own.of("quality", exact=False, step=1 / 8) == 0.01


# ---------------------------------------------------------------- errors


def test_new_errors_regress_and_are_in_no_counter(pair: Pair) -> None:
    base, head = pair(fail, env=ELSEWHERE)
    comparison = judged((base, head))
    found = measures(comparison, "spec")
    assert found["errors"].verdict is Regression.regressed
    assert found["errors"].head == pytest.approx(1 / 26)
    assert found["calls"].change == 0
    assert comparison.exit_code == Exit.REGRESSION
    assert of(comparison, "ptp").verdict is Regression.passed


def test_a_decoder_that_fails_throughout_regresses(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec":
            measured = ("tokens", "text", "stop", "steps", "ttft_s", "total_s", "scores")
            record.update(dict.fromkeys(measured), error="ValueError: no")

    comparison = judged(pair(change))
    assert measures(comparison, "spec")["errors"].head == 1
    assert comparison.exit_code == Exit.REGRESSION


def test_errors_and_wrong_answers_have_no_tolerance_even_on_another_machine() -> None:
    assert Gate().hard.of("errors", exact=False) == 0
    assert Gate().hard.of("wrong_answers", exact=False) == 0
