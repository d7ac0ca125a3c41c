"""`bench compare`: what regressed is found, what cannot be judged is said, noise passes."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.compare.compare import _relative_units, compare
from bench.compare.gate import Gate, Hard, load_gate
from bench.compare.judge import Comparison, Measure, Regression
from bench.errors import BenchError, Exit
from bench.stats.side import load_side
from bench.stats.times import Unit
from tests.bench.compare.conftest import alter

Pair = Callable[..., tuple[Path, Path]]
Change = Callable[[dict[str, Any]], object]


def judged(runs: tuple[Path, Path], gate: Gate | None = None) -> Comparison:
    base, head = (load_side(str(run), run.parent) for run in runs)
    return compare(base, head, gate or Gate())


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {cell.cell: str(cell.verdict) for cell in comparison.cells}


def measure(comparison: Comparison, cell: str, name: str) -> Measure:
    (found,) = [c for c in comparison.cells if c.cell == cell]
    return next(m for m in found.measures if m.name == name)


def slower(factor: float, cell: str = "spec") -> Change:
    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == cell and record["total_s"]:
            record["total_s"] *= factor

    return change


def fewer_accepted(share: float, cell: str = "spec") -> Change:
    """The same answers with `share` of the accepted drafts lost, every so many steps one."""
    lost = [0.0]

    def change(record: dict[str, Any]) -> None:
        if record["decoder"] != cell or not record["steps"]:
            return
        accepted = record["steps"]["accepted"]
        for i, count in enumerate(accepted):
            lost[0] += share * count
            if lost[0] >= 1 and accepted[i]:
                accepted[i] -= 1
                lost[0] -= 1

    return change


# ---------------------------------------------------------------- what regressed


def test_the_same_run_twice_passes(pair: Pair) -> None:
    comparison = judged(pair())
    assert set(verdicts(comparison).values()) == {"pass"}
    assert comparison.exit_code == Exit.DONE
    assert all(m.change == 0 for cell in comparison.cells for m in cell.measures)


@pytest.mark.parametrize("repeats", [1, 2])
def test_two_per_cent_fewer_accepted_drafts_regress_without_any_timing(
    pair: Pair, repeats: int
) -> None:
    other = {"comparability_key": "another machine", "dtype": "float32"}
    for env in (None, other):
        runs = pair(fewer_accepted(0.02), env=env, repeats=repeats)
        comparison = judged(runs)
        assert verdicts(comparison) == {"ar": "pass", "spec": "regressed", "ptp": "pass"}
        assert measure(comparison, "spec", "accepted").change == pytest.approx(-0.02, abs=4e-3)
        assert comparison.exit_code == Exit.REGRESSION
        for run in runs:
            run.rename(run.with_name(f"{run.name}-{env is None}"))


def test_one_more_call_regresses_on_the_same_machine_and_is_tolerated_on_another(
    pair: Pair,
) -> None:
    once = iter([True])

    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "ptp" and next(once, False):
            record["steps"]["target_calls"][-1] += 1

    runs = pair(change)
    assert verdicts(judged(runs))["ptp"] == "regressed"
    (runs[1] / "env.json").write_text('{"comparability_key": "elsewhere"}')
    assert verdicts(judged(runs))["ptp"] == "pass"


def test_fewer_calls_improve_and_nothing_else_changes(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "ptp" and record["steps"]:
            record["steps"]["target_calls"][0] = 0

    comparison = judged(pair(change))
    assert verdicts(comparison) == {"ar": "pass", "spec": "pass", "ptp": "improved"}
    assert comparison.exit_code == Exit.DONE


def test_a_changed_token_of_a_lossless_decoder_regresses(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["prompt_hash"] == "hqa-3#1":
            record["tokens"][-1] = 79

    comparison = judged(pair(change))
    assert verdicts(comparison) == {"ar": "pass", "spec": "regressed", "ptp": "pass"}
    assert measure(comparison, "spec", "changed_answers").verdict is Regression.regressed


def test_a_changed_token_of_a_lossy_decoder_is_counted_and_does_not_regress(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "nar" and record["tokens"]:
            record["tokens"][-1] = 79

    comparison = judged(pair(change, cells={"nar": 4.0}))
    assert verdicts(comparison)["nar"] == "pass"
    assert comparison.cells[1].num_changed


def test_answers_that_depart_from_ars_tokens_regress_exactness(
    pair: Pair, altered: Callable[[Path, Change], None]
) -> None:
    def agree(record: dict[str, Any]) -> None:
        record["tokens"] = [1] * 100

    def leave(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec":
            record["tokens"][0] = 2

    base, head = pair(agree, env={"comparability_key": "elsewhere"})
    altered(base, agree)
    assert measure(judged((base, head)), "spec", "identical_to_ar").verdict is Regression.passed
    altered(head, leave)
    exact = measure(judged((base, head)), "spec", "identical_to_ar")
    assert (exact.base, exact.head, exact.verdict) == (1, 0, Regression.regressed)


def test_near_ties_on_another_machine_do_not_regress_exactness(
    pair: Pair, altered: Callable[[Path, Change], None]
) -> None:
    base, head = pair(env={"comparability_key": "elsewhere"})
    for run, cells in ((base, ()), (head, ("spec",))):

        def other_tokens(r: dict[str, Any], cells: Sequence[str] = cells) -> None:
            r["tokens"] = [1 + (r["decoder"] in cells)] * 9

        altered(run, other_tokens)
    status = json.loads((head / "run.json").read_text())
    ties = [{"cell": "spec", "num_wrong": 0, "num_answers": 3}]
    (head / "run.json").write_text(json.dumps(status | {"differences": ties}))
    exact = measure(judged((base, head)), "spec", "identical_to_ar")
    assert (exact.head, exact.verdict) == (0, Regression.passed)
    assert "near-ties" in exact.note
    for num_wrong in (1, None):
        ties[0]["num_wrong"] = num_wrong
        (head / "run.json").write_text(json.dumps(status | {"differences": ties}))
        exact = measure(judged((base, head)), "spec", "identical_to_ar")
        assert (exact.verdict, exact.note) == (Regression.regressed, "")


def spoil(run: Path, cell: str = "spec") -> None:
    """Let run.json say that a decoder is not lossless as it claims."""
    status = json.loads((run / "run.json").read_text())
    wrong = [{"cell": cell, "num_wrong": 1, "num_answers": 3}]
    (run / "run.json").write_text(json.dumps(status | {"differences": wrong}))


def test_a_decoder_that_is_wrong_in_head_fails_on_any_machine_even_if_base_is_wrong_too(
    pair: Pair,
) -> None:
    base, head = pair(env={"comparability_key": "elsewhere"})
    spoil(head)
    alone = judged((base, head))
    assert (verdicts(alone)["spec"], verdicts(alone)["ptp"]) == ("WRONG", "pass")
    assert measure(alone, "spec", "wrong_answers").verdict is Regression.regressed
    assert (str(alone.verdict), alone.exit_code) == ("WRONG", Exit.REGRESSION)
    spoil(base)
    both = judged((base, head))
    assert (verdicts(both)["spec"], both.exit_code) == ("WRONG", Exit.REGRESSION)


def test_a_new_decoder_that_is_wrong_does_not_pass_as_new(
    synthetic_run: Callable[..., Path],
) -> None:
    base = synthetic_run({"ptp": 3.0}, name="base")
    head = synthetic_run({"ptp": 3.0, "spec": 3.0}, name="head")
    assert judged((base, head)).exit_code == Exit.DONE
    spoil(head)
    assert verdicts(judged((base, head)))["spec"] == "WRONG"
    assert judged((base, head)).exit_code == Exit.REGRESSION


def test_a_decoder_that_is_wrong_in_base_and_fixed_in_head_passes_with_a_note(pair: Pair) -> None:
    base, head = pair()
    spoil(base)
    comparison = judged((base, head))
    (spec,) = [cell for cell in comparison.cells if cell.cell == "spec"]
    assert spec.notes[0].startswith("base is WRONG: it claims to be lossless")
    assert comparison.exit_code == Exit.DONE


def test_a_side_with_lost_records_never_passes(pair: Pair) -> None:
    base, head = pair()
    lines = (head / "samples.jsonl").read_text().splitlines(keepends=True)
    (head / "samples.jsonl").write_text("".join(lines[:-4]))
    comparison = judged((base, head))
    assert comparison.invalid[0].startswith("head is DAMAGED: run.json says that the run is comp")
    assert comparison.exit_code == Exit.INVALID


def test_a_lower_score_of_one_family_regresses_quality(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "ptp" and record["kind"] == "quality" and record["family"] == "qa":
            record["scores"] = {"contains_answer": 0.0}

    comparison = judged(pair(change))
    assert verdicts(comparison)["ptp"] == "regressed"
    assert measure(comparison, "ptp", "quality.qa").verdict is Regression.regressed
    assert measure(comparison, "ptp", "quality.rag").verdict is Regression.passed


def test_new_errors_regress_and_their_prompts_leave_the_counters(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["prompt_hash"] == "hqa-3#1":
            measured = ("tokens", "text", "stop", "steps", "ttft_s", "total_s")
            record.update(dict.fromkeys(measured), error="ValueError: no")

    comparison = judged(pair(change))
    assert measure(comparison, "spec", "errors").verdict is Regression.regressed
    assert measure(comparison, "spec", "calls").change == 0


# ---------------------------------------------------------------- time


def test_a_slow_down_beyond_the_margin_regresses(pair: Pair) -> None:
    comparison = judged(pair(slower(1.3)))
    assert verdicts(comparison) == {"ar": "pass", "spec": "regressed", "ptp": "pass"}
    assert measure(comparison, "spec", "time").change == pytest.approx(0.3)


@pytest.mark.parametrize(("factor", "verdict"), [(1.15, "pass"), (0.7, "improved")])
def test_time_within_the_margin_passes_and_a_speed_up_beyond_it_improves(
    pair: Pair, factor: float, verdict: str
) -> None:
    assert verdicts(judged(pair(slower(factor))))["spec"] == verdict


@pytest.mark.parametrize(("factor", "verdict"), [(1.5, "inconclusive"), (0.6, "pass")])
def test_a_change_of_time_that_ar_shares_is_attributed_to_the_machine(
    pair: Pair, factor: float, verdict: str
) -> None:
    def loaded(record: dict[str, Any]) -> None:
        for cell in ("ar", "spec", "ptp"):
            slower(factor, cell)(record)

    comparison = judged(pair(loaded))
    assert set(verdicts(comparison).values()) == {verdict}
    assert "as ar was; use `bench ab`" in measure(comparison, "spec", "time").note
    assert comparison.exit_code == Exit.DONE


def test_a_slow_down_of_ar_itself_is_inconclusive_in_separate_runs(pair: Pair) -> None:
    comparison = judged(pair(slower(1.5, "ar")))
    assert verdicts(comparison) == {"ar": "inconclusive", "spec": "pass", "ptp": "pass"}


@pytest.mark.parametrize("control", ["ar", "dllm"])  # a diffusion model has no ar
def test_load_during_a_whole_run_cancels_in_times_relative_to_the_baseline(
    pair: Pair, control: str
) -> None:
    def loaded(record: dict[str, Any]) -> None:
        for cell in ("ar", "spec", "ptp"):
            slower(1.5, cell)(record)
        slower(1.1, "ptp")(record)

    runs = pair(loaded)
    for file in (run / name for run in runs for name in ("manifest.json", "samples.jsonl")):
        text = file.read_text().replace('"ar"', f'"{control}"')
        file.write_text(text.replace('"ar@aa"', f'"{control}@aa"'))
    comparison = judged(runs)
    assert measure(comparison, "spec", "time").change == pytest.approx(0.5)
    assert measure(comparison, "spec", "time_over_ar").change == pytest.approx(0, abs=1e-9)
    own = measure(comparison, "ptp", "time_over_ar")
    assert own.change == pytest.approx(0.1)
    assert own.head == pytest.approx(1.1 * (own.base or 0))
    assert own.verdict is Regression.passed, "it is shown and not judged"
    assert "time_over_ar" not in {m.name for m in comparison.cells[0].measures}


def test_interleaved_runs_are_held_to_the_narrow_margin(pair: Pair) -> None:
    runs = pair(slower(1.08))
    assert verdicts(judged(runs))["spec"] == "pass"
    for run in runs:
        status = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(status | {"ab": "one"}))
    assert verdicts(judged(runs))["spec"] == "regressed"


def own_repository(*runs: Path, benchmark: str = "b") -> None:
    """Make runs those of one `bench ab` in the repository of decoders."""
    for run in runs:
        status = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(status | {"ab": "one"}))
        env = json.loads((run / "env.json").read_text())
        env |= {"git": {"commit": benchmark * 40}, "repository": {"commit": run.name[0] * 40}}
        (run / "env.json").write_text(json.dumps(env))


def test_ar_is_the_control_of_interleaved_runs_in_a_repository_of_decoders(pair: Pair) -> None:
    def loaded(record: dict[str, Any]) -> None:
        for cell in ("ar", "spec", "ptp"):
            slower(1.08, cell)(record)
        slower(1.08, "ptp")(record)

    runs = pair(loaded)
    own_repository(*runs)
    comparison = judged(runs)
    assert verdicts(comparison) == {"ar": "pass", "spec": "inconclusive", "ptp": "regressed"}
    note = measure(comparison, "spec", "time").note
    assert note == "the machine may have been slower, as ar was"
    assert comparison.control
    own_repository(runs[1], benchmark="c")
    other = judged(runs)
    assert verdicts(other)["spec"] == "regressed", "ar's code may have changed as well"
    assert not other.control


def test_noise_of_ar_does_not_hide_a_slow_down_of_interleaved_runs(pair: Pair) -> None:
    rng = np.random.default_rng(1)

    def change(record: dict[str, Any]) -> None:
        slower(1.08, "spec")(record)
        slower(float(np.exp(rng.normal(0, 0.2))), "ar")(record)

    runs = pair(change)
    own_repository(*runs)
    control = measure(judged(runs), "spec", "time_over_ar")
    assert control.low is not None
    assert control.low < 0.03 < (control.change or 0)
    assert verdicts(judged(runs))["spec"] == "regressed"


def test_a_comparison_names_the_commits_of_the_decoders_and_their_code(pair: Pair) -> None:
    runs = pair()
    own_repository(*runs)
    for run, code in zip(runs, ("1" * 64, "2" * 64), strict=True):
        manifest = json.loads((run / "manifest.json").read_text())
        for cell in manifest["cells"]:
            cell["code"] = "0" * 64 if cell["cell"] != "spec" else code
        (run / "manifest.json").write_text(json.dumps(manifest))
    comparison = judged(runs)
    assert (comparison.base_code, comparison.head_code) == ("b" * 9, "h" * 9)
    assert comparison.benchmark == "b" * 9
    codes = {cell.cell: (cell.base_code, cell.head_code) for cell in comparison.cells}
    assert codes["spec"] == ("1" * 9, "2" * 9)
    assert codes["ptp"] == ("0" * 9, "0" * 9)


def test_tokens_per_step_are_always_shown_and_judged_only_if_the_gate_sets_a_tolerance(
    pair: Pair,
) -> None:
    def shorter(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["kind"] == "timing":
            steps = record["steps"]
            steps["emitted"] = [1, 1, sum(steps["emitted"]) - 2]
            for name in {name for name in steps if steps[name]} - {"emitted"}:
                steps[name] = [*steps[name][:2], sum(steps[name][2:])]

    runs = pair(shorter)
    found = measure(judged(runs), "spec", "tokens_per_step")
    assert found.base == pytest.approx(3, rel=0.2)
    assert found.head is not None
    assert found.head > (found.base or 0)
    assert found.verdict is Regression.passed
    strict = Gate(hard=Hard(tokens_per_step=0.0))
    assert measure(judged(runs[::-1], strict), "spec", "tokens_per_step").verdict == "regressed"


def test_interleaved_runs_are_compared_repeat_by_repeat_and_separate_runs_by_medians(
    pair: Pair,
) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["total_s"] and record["repeat"] == 0:
            record["total_s"] *= 2

    runs = pair(change, repeats=3)
    apart = measure(judged(runs), "spec", "time").change
    assert apart == pytest.approx(0, abs=0.05)
    for run in runs:
        status = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(status | {"ab": "one"}))
    assert measure(judged(runs), "spec", "time").change == pytest.approx(2 ** (1 / 3) - 1)


def test_a_speed_up_beyond_the_margin_improves(pair: Pair) -> None:
    assert verdicts(judged(pair(slower(0.8))))["spec"] == "improved"


def test_time_is_not_judged_on_another_machine(pair: Pair) -> None:
    comparison = judged(pair(slower(3), env={"comparability_key": "elsewhere"}))
    assert set(verdicts(comparison).values()) == {"pass"}
    assert any("different machines" in line for line in comparison.unjudged)
    assert comparison.how == "measured separately, another machine or setup"


def test_noise_around_the_margin_is_inconclusive_and_fails_only_under_a_strict_gate(
    pair: Pair,
) -> None:
    rng = np.random.default_rng(0)

    def change(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec" and record["total_s"]:
            record["total_s"] *= float(np.exp(rng.normal(0.18, 0.15)))

    runs = pair(change, conversations=6)
    comparison = judged(runs)
    assert verdicts(comparison)["spec"] == "inconclusive"
    assert "more conversations" in measure(comparison, "spec", "time").note
    untimed = judged(runs, Gate(strict=True, time={"fail": False}))  # type: ignore[arg-type]
    assert verdicts(untimed)["spec"] == "pass"
    assert (untimed.exit_code, measure(untimed, "spec", "time").note) == (Exit.DONE, "")
    assert comparison.exit_code == Exit.DONE
    assert judged(runs, Gate(strict=True)).exit_code == Exit.INVALID


@pytest.mark.slow
def test_noise_alone_never_regresses(pair: Pair) -> None:
    rng = np.random.default_rng(1)
    runs = pair(conversations=6, quality=0)
    gate = Gate(time={"margin_apart": 0.03})  # type: ignore[arg-type]
    lines = (runs[0] / "samples.jsonl").read_text().splitlines()
    for _ in range(20):
        records = [json.loads(line) for line in lines]
        for record in records:
            if record["total_s"]:
                record["total_s"] *= float(np.exp(rng.normal(0, 0.08)))
        (runs[1] / "samples.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        assert "regressed" not in verdicts(judged(runs, gate)).values()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("factor", "drift", "verdict"),
    [
        (1.25, 0.16, "inconclusive"),
        (1.25, -0.16, "inconclusive"),
        (1.25, 0.04, "regressed"),
        (1.5, 0.16, "regressed"),
    ],
)
def test_a_slow_down_must_exceed_the_drift_of_a_machine_unless_interleaved(
    pair: Pair, factor: float, drift: float, verdict: str, side: int
) -> None:
    runs = pair(slower(factor))
    status = json.loads((runs[side] / "run.json").read_text()) | {"drift": drift}
    (runs[side] / "run.json").write_text(json.dumps(status))
    assert verdicts(judged(runs))["spec"] == verdict
    for run in runs:
        (run / "run.json").write_text(json.dumps(status | {"ab": "one"}))
    assert verdicts(judged(runs))["spec"] == "regressed"


@pytest.mark.parametrize("side", [0, 1])
def test_the_larger_drift_of_the_two_runs_counts(pair: Pair, side: int) -> None:
    runs = pair(slower(1.3))
    for run, drift in ((runs[side], 0.16), (runs[1 - side], 0.06)):
        status = json.loads((run / "run.json").read_text()) | {"drift": drift}
        (run / "run.json").write_text(json.dumps(status))
    assert verdicts(judged(runs))["spec"] == "inconclusive"


def test_a_gate_may_report_time_without_failing(pair: Pair) -> None:
    gate = Gate(time={"fail": False})  # type: ignore[arg-type]
    comparison = judged(pair(slower(2)), gate)
    assert comparison.exit_code == Exit.DONE
    assert verdicts(comparison)["spec"] == "pass"
    assert "only reports" in measure(comparison, "spec", "time").note


# ---------------------------------------------------------------- comparability


def test_runs_of_different_prompts_are_not_comparable(pair: Pair) -> None:
    comparison = judged(pair(lambda record: record.update(prompt_hash="other")))
    assert set(verdicts(comparison).values()) == {"not comparable"}
    assert comparison.exit_code == Exit.UNAVAILABLE


def test_shared_prompts_are_compared_even_if_some_prompts_differ(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["family"] == "qa":
            record["prompt_hash"] += "-new"

    comparison = judged(pair(change))
    assert set(verdicts(comparison).values()) == {"pass"}
    cell = comparison.cells[0]
    assert cell.num_pairs is not None
    assert cell.num_base is not None
    assert 0 < cell.num_pairs < cell.num_base


def test_renamed_prompts_still_join_by_their_hash(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        record["conversation"] = "renamed-" + record["conversation"]

    comparison = judged(pair(change))
    assert set(verdicts(comparison).values()) == {"pass"}
    assert measure(comparison, "ar", "time").change == 0


def test_changed_options_are_reported_and_not_refused(pair: Pair) -> None:
    base, head = pair()
    manifest = json.loads((head / "manifest.json").read_text())
    for cell in manifest["cells"]:
        cell["options"] = {"k": 5, "draft": None}
    (head / "manifest.json").write_text(json.dumps(manifest))
    comparison = judged((base, head))
    assert comparison.cells[1].options == ("k: unset -> 5",)
    assert comparison.exit_code == Exit.DONE


def test_runs_of_different_temperatures_are_not_comparable(pair: Pair) -> None:
    base, head = pair()
    for run, temperature in ((base, 0.0), (head, 0.7)):
        (run / "config.toml").write_text(f"temperature = {temperature}\n")
    comparison = judged((base, head))
    assert comparison.exit_code == Exit.UNAVAILABLE
    assert comparison.unlike == ("temperature is 0.0 in base and 0.7 in head",)


def test_runs_of_different_seeds_are_comparable_only_if_greedy(pair: Pair) -> None:
    base, head = pair()
    for temperature, refused in ((0.0, ()), (0.7, ("seed is 0 in base and 1 in head",))):
        for seed, run in enumerate((base, head)):
            (run / "config.toml").write_text(f"temperature = {temperature}\nseed = {seed}\n")
        assert judged((base, head)).unlike == refused


def test_runs_of_different_batch_sizes_compare_counters_and_not_time(pair: Pair) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["kind"] == "timing":
            record |= {"batch_size": 4, "group_s": record["total_s"], "total_s": None}

    comparison = judged(pair(change))
    assert set(verdicts(comparison).values()) == {"pass"}
    assert "time" not in {m.name for cell in comparison.cells for m in cell.measures}
    assert "batch sizes differ" in comparison.cells[0].notes[0]


def test_time_is_not_judged_if_the_groups_of_a_batch_differ_in_their_prompts(pair: Pair) -> None:
    """Its seconds are also those of the prompts that the other side lacks."""

    def change(record: dict[str, Any], other: str = "") -> None:
        if record["kind"] != "timing":
            return
        seconds = 12.0 if record["repeat"] else 10.0
        record |= {"batch_size": 4, "group_s": seconds, "total_s": None, "ttft_s": None}
        record["block"] = record["repeat"]  # one group in each repeat
        record["prompt_hash"] += other if record["family"] == "qa" else ""

    base, head = pair(change)
    assert "time" not in {m.name for cell in judged((head, base)).cells for m in cell.measures}
    alter(base, change)
    assert {measure(judged((base, head)), c, "time").change for c in ("ar", "spec")} == {0}
    alter(head, lambda record: change(record, "-new"))
    comparison = judged((base, head))
    assert set(verdicts(comparison).values()) == {"pass"}
    assert "time" not in {m.name for cell in comparison.cells for m in cell.measures}
    notes = [note for cell in comparison.cells for note in cell.notes]
    assert notes.count("time is not judged: the groups of prompts differ") == len(comparison.cells)


def test_a_removed_decoder_is_not_comparable_and_an_added_decoder_is_new(
    synthetic_run: Callable[..., Path],
) -> None:
    base = synthetic_run({"spec": 3.0}, name="base")
    head = synthetic_run({"ptp": 3.0}, name="head")
    assert verdicts(judged((base, head))) == {
        "ar": "pass",
        "spec": "not comparable",
        "ptp": "new",
    }
    assert judged((base, head)).exit_code == Exit.UNAVAILABLE


def test_an_invalid_run_never_passes(pair: Pair) -> None:
    base, head = pair()
    status = {"status": "complete", "verdict": "INVALID", "reasons": ["broken"]}
    (head / "run.json").write_text(json.dumps(status))
    assert judged((base, head)).exit_code == Exit.INVALID


# ---------------------------------------------------------------- stored references


def test_a_stored_reference_compares_like_the_original_run(
    synthetic_run: Callable[..., Path], stored: Callable[[Path], Path]
) -> None:
    env = {"device": "cpu", "dtype": "float32", "comparability_key": "one-machine"}
    run, base = (synthetic_run(name=name, env=env) for name in ("run", "base"))
    comparison = judged((stored(base), run))
    assert set(verdicts(comparison).values()) == {"pass"}
    assert measure(comparison, "spec", "time").change == 0
    assert measure(comparison, "spec", "changed_answers").head == 0
    alone = dataclasses.replace(judged((run, run)), base="base", head="run")
    assert alone == comparison


def test_a_stored_reference_without_answers_is_refused_with_one_line(
    pair: Pair, stored: Callable[[Path], Path]
) -> None:
    base, head = pair()
    stored(base)
    for name in ("manifest.json", "samples.parquet"):
        (base / name).unlink()
    with pytest.raises(BenchError, match=r"damaged: manifest\.json is missing") as refused:
        judged((base, head))
    assert refused.value.exit_code == Exit.INVALID
    assert "\n" not in refused.value.message


def test_a_different_split_is_reported(pair: Pair) -> None:
    base, head = pair()
    with (head / "config.toml").open("a") as config:
        config.write('split = "test"\n')
    assert "split: none -> test" in judged((base, head)).changes


@pytest.mark.slow
def test_the_committed_reference_can_be_read() -> None:
    folder = Path(__file__).parents[3] / "results" / "reference" / "cpu-zoo"
    comparison = judged((folder, folder))
    assert comparison.exit_code == Exit.DONE


# ---------------------------------------------------------------- gates


def test_a_tolerance_in_a_gate_file_replaces_the_default(tmp_path: Path, pair: Pair) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("[hard]\naccepted = 0.05\n")
    runs = pair(fewer_accepted(0.02))
    assert verdicts(judged(runs, load_gate(file)))["spec"] == "pass"
    file.write_text("[hard]\naccepted = inf\n")
    assert verdicts(judged(runs, load_gate(file)))["spec"] == "pass"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hard]\ncals = 0.1\n", "did you mean 'calls'"),
        ("[hard]\ncalls = -1\n", r"it must be 0 or more \(got -1\)"),
        ("[hard]\ncalls = nan\n", r"it must be 0 or more \(got nan\)"),
        ("[time]\nmargin = inf\n", r"it must be a finite number \(got inf\)"),
        ("[time]\nmargn = 0.1\n", "did you mean 'margin'"),
        ("[time]\nmargin = 0\n", "time.margin"),
        ("[tim]\n", "did you mean 'time'"),
        ('"a.b" = 1\n', "a.b: unknown key; available: hard, strict, time"),
        ('[verdict]\ninconclusive = "fail"\n', "verdict: unknown key; "),
        ("nonsense", "is not TOML"),
    ],
)
def test_an_invalid_gate_file_is_a_usage_error(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "gate.toml"
    file.write_text(text)
    with pytest.raises(BenchError, match=said) as refused:
        load_gate(file)
    assert refused.value.exit_code == Exit.USAGE


def test_the_gate_in_the_documentation_is_the_built_in_one() -> None:
    page = Path(__file__).parents[3] / "docs" / "ci.md"
    text = page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    shown = Gate(**tomllib.loads(text))
    assert shown.hard.rows == 0.05
    assert shown.model_copy(update={"hard": shown.hard.model_copy(update={"rows": None})}) == Gate()


def test_a_decoder_that_failed_on_every_answer_of_both_runs_is_not_comparable(pair: Pair) -> None:
    def fail(record: dict[str, Any]) -> None:
        if record["decoder"] == "spec":
            measured = ("tokens", "text", "stop", "steps", "ttft_s", "total_s")
            record.update(dict.fromkeys(measured), error="ValueError: no")

    base, head = pair(fail)
    assert verdicts(judged((head, head))) == {"ar": "pass", "spec": "not comparable", "ptp": "pass"}
    comparison = judged((head, head))
    assert comparison.exit_code == Exit.UNAVAILABLE
    (spec,) = [cell for cell in comparison.cells if cell.cell == "spec"]
    assert spec.notes == ("no answer was finished on both sides, so nothing was compared",)
    assert judged((base, head)).exit_code == Exit.REGRESSION, "new failures regress as before"


def test_an_empty_option_is_shown_as_none_and_an_empty_setting_equals_a_missing_setting(
    pair: Pair,
) -> None:
    base, head = pair()
    for side, cascade in ((base, ""), (head, "tiny")):
        manifest = json.loads((side / "manifest.json").read_text())
        for cell in manifest["cells"]:
            cell["options"] = {"cascade": cascade} if cell["cell"] == "spec" else {}
        (side / "manifest.json").write_text(json.dumps(manifest))
    with (head / "config.toml").open("a") as config:
        config.write("models = {}\n")
    comparison = judged((base, head))
    (spec,) = (cell for cell in comparison.cells if cell.cell == "spec")
    assert "cascade: none -> tiny" in spec.options
    assert not any(change.startswith("models") for change in comparison.changes)


def test_an_answer_whose_baseline_failed_has_no_relative_time() -> None:
    def units(*oks: bool) -> list[Unit]:
        facts: dict[str, Any] = {"cluster": "c", "family": "qa", "repeat": 0, "tokens": 2}
        return [Unit(key=f"p{i}", ok=ok, seconds=4.0, **facts) for i, ok in enumerate(oks)]

    over_ar = _relative_units(units(True, False), units(True, True))
    assert [(unit.key, unit.seconds) for unit in over_ar] == [("p0", 2.0)]
