"""The verdict: broken invariants condemn a run; noise is said and never condemns it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.records.environment import Environment
from bench.records.files import parse
from bench.records.plan import Block, Cell, Plan, PlannedPrompt, RunStatus
from bench.records.record import SampleRecord
from bench.records.run_folder import Run
from bench.stats.validity import EXIT_CODES, judge

Make = Callable[..., SampleRecord]


def run_of(
    records: Sequence[SampleRecord],
    events: Sequence[Mapping[str, Any]] = (),
    plan: Plan | None = None,
    **status: Any,
) -> Run:
    return Run(
        path=Path("run"),
        plan=plan or Plan(),
        config={"max_new_tokens": 8},
        env=Environment(),
        status=parse(RunStatus, {"status": "complete", **status}, "run.json"),
        records=tuple(records),
        events=tuple(events),
    )


def baseline(record: Make, times: Sequence[float], prompts: int = 3) -> list[SampleRecord]:
    """Both arms of the baseline, one block per prompt and repeat, at `times` a repeat."""
    return [
        record(
            cell,
            conversation=f"c{prompt}",
            block=repeat * prompts + prompt,
            repeat=repeat,
            total_s=time_s * (prompt + 1),
        )
        for repeat, time_s in enumerate(times)
        for prompt in range(prompts)
        for cell in ("ar", "ar@aa")
    ]


def load(block: int, cores: float | None, attempt: int = 0, throttled: str | None = None) -> Any:
    return {
        "event": "load",
        "block": block,
        "attempt": attempt,
        "other_cores": cores,
        "throttled": throttled,
    }


def test_a_sound_run_on_a_quiet_machine_is_valid_without_warnings(record: Make) -> None:
    records = baseline(record, [1.0, 1.01, 0.99])
    validity = judge(run_of(records, [load(b, 0.1) for b in range(9)]))
    assert validity.verdict == "VALID"
    assert (validity.reasons, validity.warnings) == ((), ())


def test_a_baseline_without_an_answer_makes_a_complete_run_invalid(record: Make) -> None:
    failed = [record("ar", tokens=None, error="IndexError: 7"), record("ar@aa"), record("spec")]
    validity = judge(run_of(failed))
    assert validity.verdict == "INVALID"
    (reason,) = validity.reasons
    assert reason.startswith("ar answered none of its prompts, e.g. c0#1: IndexError: 7")
    one = [*failed, record("ar", conversation="d")]
    assert judge(run_of(one)).verdict == "VALID"
    assert judge(run_of(failed, status="interrupted")).verdict == "INCOMPLETE"


def test_a_decoder_without_an_answer_makes_a_complete_run_incomplete(record: Make) -> None:
    plan = Plan(cells=(Cell(cell="ar", lossless=True), Cell(cell="spec", lossless=True)))
    failed = [record("ar"), record("spec", error="IndexError: 7")]
    validity = judge(run_of(failed, plan=plan))
    assert validity.verdict == "INCOMPLETE"
    assert validity.reasons == ("spec answered none of its prompts, e.g. c0#1: IndexError: 7",)
    assert validity.warnings == ()  # the reason says it
    assert judge(run_of(failed, plan=plan, num_records=9)).warnings[0].startswith("spec failed on")
    one = [*failed, record("spec", conversation="d")]
    assert judge(run_of(one, plan=plan)).verdict == "VALID"


def test_reasons_of_the_stored_status_are_not_repeated(record: Make) -> None:
    failed = run_of([record("ar", error="IndexError: 7")])
    judged = judge(failed)
    assert judge(dataclasses.replace(failed, status=judged)).reasons == judged.reasons


def test_a_broken_invariant_makes_a_run_invalid_and_the_reason_names_a_prompt(record: Make) -> None:
    bad = [record("ar", calls=(1, 1, 2)), record("spec", drafted=(0, 1, 1), accepted=(0, 2, 0))]
    validity = judge(run_of([*bad, record("ptp")]))
    assert validity.verdict == "INVALID"
    assert len(validity.reasons) == 2
    assert "ar made 4 calls for 3 tokens (prompt c0#1)" in validity.reasons[0]


@pytest.mark.parametrize("cheat", [{"rows": (10, 3)}, {"rows": (10, 3), "drafted": (0, 4)}])
def test_more_tokens_or_drafts_than_rows_fed_make_a_run_invalid(
    record: Make, cheat: dict[str, Any]
) -> None:
    """A decoder that replays an answer, or invents drafts, feeds the target too few rows."""
    emitted = (1, 3) if "drafted" in cheat else (1, 4)
    mine = record("memo", emitted=emitted, **cheat)
    (reason,) = judge(run_of([mine])).reasons
    assert "fed the target 3 rows, fewer than tokens or drafts" in reason


def test_an_answer_longer_than_the_token_budget_makes_a_run_invalid(record: Make) -> None:
    assert judge(run_of([record("ptp", emitted=(1, 8))])).verdict == "INVALID"
    assert judge(run_of([record("ptp", emitted=(1, 7))])).verdict == "VALID"


@pytest.mark.parametrize("num_tokens", [2, 4])
def test_steps_that_emit_more_or_fewer_tokens_than_the_answer_make_a_run_invalid(
    record: Make, num_tokens: int
) -> None:
    validity = judge(run_of([record("ptp", tokens=(7,) * num_tokens)]))
    assert validity.verdict == "INVALID"
    assert f"steps emit 3 tokens, the answer has {num_tokens}" in validity.reasons[0]


def test_more_than_one_call_per_token_in_either_baseline_arm_makes_a_run_invalid(
    record: Make,
) -> None:
    for arm in ("ar", "ar@aa"):
        assert judge(run_of([record(arm, calls=(1, 1, 2))])).verdict == "INVALID"


def test_blocks_during_which_other_processes_used_the_cores_are_counted(record: Make) -> None:
    events = [load(0, 0.5), load(1, 0.51), load(2, 1.9), load(3, None)]
    validity = judge(run_of(baseline(record, [1.0] * 3), events))
    assert validity.verdict == "VALID"
    assert "during 2 of 4 blocks (up to 1.9)" in validity.warnings[0]


def test_the_load_of_a_superseded_attempt_does_not_count(record: Make) -> None:
    records = [dataclasses.replace(r, attempt=1) for r in baseline(record, [1.0])]
    validity = judge(run_of(records, [load(0, 9.0, attempt=0), load(0, 0.1, attempt=1)]))
    assert validity.warnings == ()


def test_throttling_is_a_warning(record: Make) -> None:
    validity = judge(run_of(baseline(record, [1.0]), [load(0, 0.0, throttled="CPU thermal")]))
    assert validity.warnings == ("the processor was slowed down during 1 of 1 block (CPU thermal)",)


@pytest.mark.parametrize(
    ("times", "drift"), [([1.0, 1.0, 1.2], 0.2), ([1.0, 5.0, 1.0], 0.0), ([1.0, 1.0, 0.8], -0.2)]
)
def test_drift_compares_the_last_third_with_the_first(
    record: Make, times: list[float], drift: float
) -> None:
    records = baseline(record, times)
    assert judge(run_of(records)).drift == pytest.approx(drift)
    said = " ".join(judge(run_of(records)).warnings)
    assert ("more time" in said) is (drift > 0)
    assert ("less time" in said) is (drift < 0)


def test_drift_compares_full_thirds_of_the_blocks(record: Make) -> None:
    """A quarter of the blocks would compare the first repeat with the last alone: 0.2."""
    records = baseline(record, [1.0, 1.4, 9.0, 9.0, 1.2, 1.2])
    assert judge(run_of(records)).drift == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("ends", [(1.1, 0.6), (0.9, 1.5)])
def test_the_drift_of_workers_is_that_of_the_worker_that_changed_most(
    record: Make, ends: tuple[float, float]
) -> None:
    made = []
    for number, end in enumerate(ends):
        for r in baseline(record, [1.0, 1.0, end]):
            block = 9 * number + r.block
            made.append(dataclasses.replace(r, worker=f"w{number}", block=block, node="n"))
    drift = judge(run_of(made)).drift
    assert drift is not None
    assert (drift < -0.2) if ends[1] < 1 else (drift > 0.2)


def test_compilation_of_several_attempts_is_summed(record: Make) -> None:
    events = [
        {"event": "compiled", "graphs": graphs, "seconds": seconds}
        for graphs, seconds in ((2, 3.0), (5, 4.5))
    ]
    validity = judge(run_of(baseline(record, [1.0]), events))
    assert (validity.num_graphs, validity.compile_s) == (7, 7.5)
    assert judge(run_of(baseline(record, [1.0]))).compile_s is None


def test_drift_is_per_token(record: Make) -> None:
    records = baseline(record, [1.0, 1.0, 1.0])
    for index, r in enumerate(records):
        if r.repeat == 2 and r.steps is not None:
            steps = dataclasses.replace(r.steps, emitted=tuple(2 * n for n in r.steps.emitted))
            total_s, tokens = (r.total_s or 0) * 2, (r.tokens or ()) * 2
            records[index] = dataclasses.replace(r, steps=steps, total_s=total_s, tokens=tokens)
    assert judge(run_of(records)).drift == pytest.approx(0)


def test_drift_averages_both_arms_of_the_baseline(record: Make) -> None:
    records = [
        dataclasses.replace(r, total_s=(r.total_s or 0) * 1.5)
        if (r.decoder, r.repeat) == ("ar@aa", 2)
        else r
        for r in baseline(record, [1.0, 1.0, 1.0])
    ]
    assert judge(run_of(records)).drift == pytest.approx(1.5**0.5 - 1, abs=1e-3)


def test_drift_needs_enough_prompts_and_blocks(record: Make) -> None:
    assert judge(run_of(baseline(record, [1.0, 1.0, 1.2], prompts=2))).drift is None
    assert judge(run_of(baseline(record, [1.0], prompts=2))).drift is None
    assert judge(run_of([])).drift is None


def once(record: Make, end: float, seed: int = 0) -> list[SampleRecord]:
    """30 prompts of 2 to 8 tokens, each timed once, that take `end` times as long at the end."""
    rng = np.random.default_rng(seed)
    made = []
    for block in range(30):
        slow = end ** (block / 29) * math.exp(rng.normal(0, 0.05))
        tokens = int(rng.integers(2, 9))
        for arm in ("ar", "ar@aa"):
            place = {"conversation": f"c{block}", "block": block, "emitted": (1,) * tokens}
            made.append(
                record(arm, **place, ttft_s=0.03, total_s=0.03 + 0.01 * slow * (tokens - 1))
            )
    return made


@pytest.mark.parametrize("end", [3.31, 1.5, 0.5])
def test_with_one_repeat_drift_is_a_trend_over_the_blocks(record: Make, end: float) -> None:
    validity = judge(run_of(once(record, end)))
    assert validity.drift == pytest.approx(end ** (2 / 3) - 1, rel=0.2)
    assert "the machine's speed drifted" in validity.warnings[0]


@pytest.mark.slow
def test_prompts_of_different_lengths_on_a_steady_machine_show_no_trend(record: Make) -> None:
    alarms = [bool(judge(run_of(once(record, 1.0, seed))).drift) for seed in range(200)]
    assert sum(alarms) <= 6  # 1 % are expected


def test_drift_of_groups_uses_their_makespan(record: Make) -> None:
    records = [
        dataclasses.replace(r, total_s=None, ttft_s=None, group_s=r.total_s, batch_size=2)
        for r in baseline(record, [1.0, 1.0, 1.5])
    ]
    assert judge(run_of(records)).drift == pytest.approx(0.5)


def test_errors_are_counted_and_reported_per_cell(record: Make) -> None:
    failed = [record("mine", error="ValueError: no", conversation=f"c{i}") for i in range(3)]
    validity = judge(run_of(failed))
    assert (validity.verdict, validity.num_errors) == ("VALID", 3)
    assert validity.warnings == ("mine failed on 3 answers, e.g. c0#1: ValueError: no",)


def test_two_baselines_that_disagree_are_a_warning(record: Make) -> None:
    records = baseline(record, [1.0])
    records[1] = dataclasses.replace(records[1], tokens=(9, 9, 9))
    assert "different tokens for 1 of 3 answers" in judge(run_of(records)).warnings[0]


# ---------------------------------------------------------------- wrong, damaged, incomplete

LEFT = {"cell": "spec", "num_answers": 3, "num_compared": 8, "num_wrong": 2, "example": "c0#1"}
PLAN = Plan(
    cells=(Cell(cell="ar", lossless=True), Cell(cell="spec", lossless=True)),
    blocks=tuple(Block(block=block, repeat=0, prompts=(), order=()) for block in range(3)),
    prompts=tuple(
        PlannedPrompt(
            prompt=f"q{i}#1",
            conversation=f"q{i}",
            turn=1,
            family="qa",
            hash="h",
            num_tokens=2,
            passes=("quality",),
        )
        for i in range(2)
    ),
)


def test_a_decoder_that_claims_to_be_lossless_and_is_not_makes_the_run_wrong(record: Make) -> None:
    validity = judge(run_of([record()], differences=[LEFT]))
    assert validity.verdict == "WRONG"
    assert validity.reasons == (
        "spec is WRONG: it claims to be lossless and gave other tokens than ar on 3 of 8 answers, "
        "2 of them beyond rounding, e.g. c0#1",
    )
    assert validity.warnings == ()
    assert EXIT_CODES["WRONG"] == 3


@pytest.mark.parametrize("num_wrong", [0, None])
def test_near_ties_and_differences_that_were_not_judged_are_a_warning(
    record: Make, num_wrong: int | None
) -> None:
    validity = judge(run_of([record()], differences=[LEFT | {"num_wrong": num_wrong}]))
    assert (validity.verdict, validity.reasons) == ("VALID", ())
    assert validity.warnings[0].startswith("spec claims to be lossless and gave other tokens than")
    assert ("near-ties" in validity.warnings[0]) == (num_wrong == 0)


def test_a_warning_states_identical_shares_positions_and_distances_from_a_tie(record: Make) -> None:
    parted = LEFT | {"num_wrong": None, "num_tokens": 800, "num_equal": 600, "places": [5, 20, 90]}
    parted |= {"gaps": [0.01, 0.125, 0.125]}
    floor = parted | {"cell": "ar@rows5", "num_answers": 2}
    warnings = judge(run_of([record()], differences=[parted, floor])).warnings
    assert warnings[0] == (
        "spec is identical to ar on 62% of 8 answers (75% of their tokens precede the first "
        "difference; its median position is token 20); distances from a tie in 3 checked "
        "differences: 1 below 0.03, 1 below 0.06, 1 below 0.125, 3 below 0.25, at most 0.125: "
        "not verified, as the run measured no rounding of its own to compare with. ar itself, as "
        "ar@rows5, is identical on 75% of 8 answers; e.g. c0#1"
    )
    assert "ar itself" not in warnings[1]
    almost = parted | {"num_answers": 1, "num_compared": 480}
    (line,) = judge(run_of([record()], differences=[almost])).warnings
    assert line.startswith("spec is identical to ar on 99% of 480 answers")


def test_a_warning_compares_with_the_runs_own_rounding(record: Make) -> None:
    parted = LEFT | {"num_wrong": 0, "num_tokens": 800, "num_equal": 600, "places": [5, 20, 90]}
    floor = {"rows": 5, "num_answers": 8, "num_same": 6, "num_tokens": 800, "num_flips": 2}
    given: dict[str, Any] = {
        "differences": [parted | {"places_off": 2.0}],
        "floor": floor | {"moved": 1.25},
    }
    (line,) = judge(run_of([record()], **given)).warnings
    assert (
        ". The run's own rounding moves ar's logits by up to 1.2 units of the last place, its "
        "farthest at 2; in calls of 5 rows, 75% of 8 answers of ar stay the same: near-ties; e.g. "
    ) in line
    given["differences"][0] |= {"num_wrong": None}
    (line,) = judge(run_of([record()], **given)).warnings
    assert "not verified, as it leaves ar's tokens more often than rounding does" in line


def test_a_decoder_that_is_not_verified_loses_its_guarantee(record: Make) -> None:
    parted = [LEFT | {"cell": name, "num_wrong": num} for name, num in (("a", 0), ("b", None))]
    plan = Plan(cells=tuple(Cell(cell=c, lossless=True, comparable_to_ar=True) for c in "ab"))
    run = run_of([record()], plan=plan, differences=[*parted, LEFT])
    assert run.status.guarantees == {"b": "not verified", "spec": "WRONG"}
    assert run.guarantees == {
        "a": "same tokens", "b": "not verified", "spec": "WRONG",
    }  # fmt: skip


def test_a_speed_difference_between_the_two_baseline_arms_is_a_warning(record: Make) -> None:
    def arms(second: float) -> list[SampleRecord]:
        return [
            record(cell, conversation=f"c{n}", block=n, total_s=pace * (1 + n / 500))
            for n in range(9)
            for cell, pace in (("ar", 1.0), ("ar@aa", second * (1 + n % 2 / 100)))
        ]

    (line,) = judge(run_of(arms(1.2))).warnings
    assert line.startswith("the machine is not steady: ar against itself gave 0.83x [0.8")
    assert not judge(run_of(arms(1.01))).warnings
    run = run_of(
        [dataclasses.replace(r, decoder=r.decoder.replace("ar", "spec")) for r in arms(1.2)]
    )
    blocks = (Block(block=0, repeat=0, prompts=("c0#1",), order=("spec", "spec@aa")),)
    warnings = judge(
        dataclasses.replace(run, plan=dataclasses.replace(run.plan, blocks=blocks))
    ).warnings
    assert any("not steady: spec against itself gave 0.83x" in line for line in warnings)


def test_warnings_name_the_baseline_and_use_the_singular_for_one_block(record: Make) -> None:
    records = [
        record(cell, conversation=f"c{n}", block=n, total_s=pace * (1 + n / 500))
        for n in range(9)
        for cell, pace in (("spec", 1.0), ("spec@aa", 1.2 * (1 + n % 2 / 100)))
    ]
    plan = Plan(blocks=(Block(block=0, repeat=0, prompts=(), order=("spec", "spec@aa")),))
    busy, unsteady = judge(run_of(records, [load(0, 1.9)], plan)).warnings
    assert busy.endswith("during 1 of 1 block (up to 1.9): times are noisy")
    assert unsteady.startswith("the machine is not steady: spec against itself gave 0.8")


def test_a_run_with_fewer_records_than_run_json_counts_is_damaged(record: Make) -> None:
    validity = judge(run_of([record()], num_records=2028))
    assert validity.verdict == "DAMAGED"
    assert "samples.jsonl holds 1 of the 2,028 records that run.json counts" in validity.reasons[0]
    assert judge(run_of([record()], num_records=1)).verdict == "VALID"


def test_a_complete_run_that_lacks_planned_measurements_is_damaged(record: Make) -> None:
    validity = judge(run_of([record()], plan=PLAN))
    assert validity.verdict == "DAMAGED"
    assert "2 of 3 timing blocks and 4 of 4 answers of the quality pass" in validity.reasons[0]
    assert "`bench resume run` (in the folder that holds the run) measures" in validity.reasons[0]
    assert "resume" not in judge(run_of([record()], plan=PLAN, ab="x")).reasons[0]


def test_each_failing_decoder_has_one_warning_line(record: Make) -> None:
    failed = [record(f"d{i}", error="ValueError: no") for i in (0, 1, 2, 2)]
    assert judge(run_of([record(), *failed])).warnings == (
        "d0 failed on 1 answer, e.g. c0#1: ValueError: no",
        "d1 failed on 1 answer, e.g. c0#1: ValueError: no",
        "d2 failed on 2 answers, e.g. c0#1: ValueError: no",
    )


def test_a_single_failure_is_reported_in_the_singular(record: Make) -> None:
    assert (
        judge(run_of([record(error="ValueError: no"), record(conversation="d")]))
        .warnings[0]
        .startswith("ar failed on 1 answer, e.g.")
    )


@pytest.mark.parametrize("how", ["interrupted", "error", "started"])
def test_a_run_that_did_not_end_is_incomplete_and_lists_its_missing_measurements(
    record: Make, how: str
) -> None:
    validity = judge(run_of([record()], plan=PLAN, status=how))
    assert validity.verdict == "INCOMPLETE"
    assert f"did not end (status: {how}): 2 of 3 timing blocks" in validity.reasons[0]
    assert " were not measured" in validity.reasons[0]
    all_there = judge(run_of([record()], status=how))
    assert all_there.verdict == "INCOMPLETE"
    assert "it was stopped after its last answer" in all_there.reasons[0]
    assert EXIT_CODES["INCOMPLETE"] == EXIT_CODES["DAMAGED"] == 4


def test_the_worst_verdict_counts_and_all_reasons_are_listed(record: Make) -> None:
    bad = [record("ar", calls=(1, 1, 2))]
    found: dict[str, Any] = {"differences": [LEFT], "status": "interrupted"}
    assert judge(run_of([record()], **found)).verdict == "WRONG"
    assert judge(run_of(bad, **found)).verdict == "INVALID"
    damaged = judge(run_of(bad, **found, num_records=9))
    assert damaged.verdict == "DAMAGED"
    assert len(damaged.reasons) == 3


def test_a_run_with_a_stored_verdict_of_invalid_stays_invalid(record: Make) -> None:
    validity = judge(run_of([record()], verdict="INVALID", reasons=["as it was"]))
    assert (validity.verdict, validity.reasons) == ("INVALID", ("as it was",))


def test_tokens_may_differ_between_repeats_but_not_between_arms_of_one_repeat(record: Make) -> None:
    """Repeats have other seeds: sampled, they give other tokens, and both arms the same."""
    records = [
        dataclasses.replace(r, tokens=tuple(token + r.repeat for token in r.tokens or ()))
        for r in baseline(record, [1.0, 1.0])
    ]
    assert not any("different tokens" in line for line in judge(run_of(records)).warnings)
    one = records.index(next(r for r in records if (r.decoder, r.repeat) == ("ar@aa", 1)))
    # the tokens of the other repeat, which are wrong in this one
    records[one] = dataclasses.replace(records[one], tokens=records[1].tokens)
    assert any(
        "different tokens for 1 of 6 answers" in line for line in judge(run_of(records)).warnings
    )
