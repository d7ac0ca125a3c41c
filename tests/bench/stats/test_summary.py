"""The summary against hand-made runs: columns, families, pairs, errors, unfinished runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from bench.extras.sections.drafts import acceptance_table
from bench.extras.sections.estimators import prompt_table
from bench.plan.select import build_decoder
from bench.records.environment import Environment, ModelFacts
from bench.records.plan import Cell, Plan
from bench.records.record import SampleRecord
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.stats import quality, summary
from bench.stats.intervals import ratio_of_sums
from bench.stats.workers import noise_floor
from decoders.core.types import Sampling
from tests.answer_records import run_of
from tests.bench.conftest import PRIMARY

Make = Callable[..., SampleRecord]
BINDING_COLUMNS = [
    "decoder",
    "family",
    "prompts",
    "repeats",
    "quality_prompts",
    "tokens_per_call",
    "tpf",
    "acceptance_length",
    "acceptance_rate",
    "rows_per_token",
    "ttft_s",
    "time_per_token_s",
    "tokens_per_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "speedup_decode",
    "peak_memory_bytes",
    "quality",
    "quality_metric",
    "identical_to_ar",
    "errors",
]
PLAN = Plan(
    cells=(
        Cell(cell="ar", lossless=True, comparable_to_ar=True),
        Cell(cell="spec", lossless=True, comparable_to_ar=True),
        Cell(cell="nar", lossless=False, comparable_to_ar=False),
    )
)


def summarise(records: Iterable[SampleRecord], plan: Plan, **facts: Any) -> pd.DataFrame:
    return summary.summarise(run_of(records, plan, **facts))


def two_prompts(record: Make, decoder: str, times: tuple[float, float], **more: Any) -> list[Any]:
    """Two prompts of two families, ten tokens each, with the given total seconds."""
    places = (("a", "qa"), ("b", "rag"))
    return [
        record(decoder, (1,) * 10, conversation=c, family=f, total_s=t, ttft_s=0.1, **more)
        for (c, f), t in zip(places, times, strict=True)
    ]


def row(frame: pd.DataFrame, decoder: str, family: str = "all") -> Any:
    chosen = frame[(frame["decoder"] == decoder) & (frame["family"] == family)]
    assert len(chosen) == 1
    return chosen.iloc[0]


def test_binding_columns_come_first(record: Make) -> None:
    frame = summarise([record()], PLAN)
    assert list(frame.columns)[: len(BINDING_COLUMNS)] == BINDING_COLUMNS


def test_a_hand_made_run_gives_the_numbers_worked_out_by_hand(record: Make) -> None:
    rows = two_prompts(record, "ar", (4.1, 1.1)) + two_prompts(record, "spec", (1.1, 1.1))
    frame = summarise(rows, PLAN)
    spec = row(frame, "spec")
    assert spec["speedup"] == pytest.approx(math.sqrt(4.1 / 1.1))
    assert spec["speedup_decode"] == pytest.approx(2.0)  # sqrt((4/1) x (1/1))
    assert spec["time_per_token_s"] == pytest.approx(2.2 / 20)
    assert spec["tokens_per_s"] == pytest.approx(20 / 2.2)
    assert spec["decode_time_per_token_s"] == pytest.approx(2.0 / 18)
    assert spec["ttft_s"] == pytest.approx(0.1)
    assert (spec["prompts"], spec["repeats"], spec["pairs"], spec["clusters"]) == (2, 1, 2, 2)
    assert row(frame, "spec", "qa")["speedup"] == pytest.approx(4.1 / 1.1)
    assert pd.isna(row(frame, "spec", "qa")["speedup_low"])
    assert spec["identical_to_ar"] == 1.0


def test_the_baseline_has_a_speed_up_of_1_with_an_interval_of_1(record: Make) -> None:
    frame = summarise(two_prompts(record, "ar", (4.0, 1.0)), PLAN)
    for name in ("speedup", "speedup_low", "speedup_high", "speedup_decode", "tokens_per_call"):
        assert row(frame, "ar")[name] == 1.0


def test_rows_follow_the_plan_with_the_baseline_first_and_the_family_all_last(record: Make) -> None:
    rows = [r for d in ("nar", "spec", "ar") for r in two_prompts(record, d, (1.0, 1.0))]
    frame = summarise(rows, PLAN)
    assert list(frame["decoder"].unique()) == ["ar", "spec", "nar"]
    assert list(frame["family"][:3]) == ["qa", "rag", "all"]


def test_the_second_arm_of_the_baseline_gives_the_noise_floor_and_no_row(record: Make) -> None:
    rows = two_prompts(record, "ar", (4.0, 1.0)) + two_prompts(record, "ar@aa", (2.0, 2.0))
    frame = summarise(rows, PLAN)
    assert set(frame["decoder"]) == {"ar"}
    assert noise_floor(rows).value == pytest.approx(1.0)
    assert row(frame, "ar", "qa")["aa_speedup"] == pytest.approx(2.0)
    assert noise_floor([]).value is None


def test_identical_to_ar_is_unknown_for_a_decoder_that_is_not_comparable_to_ar(
    record: Make,
) -> None:
    rows = two_prompts(record, "ar", (1.0, 1.0)) + two_prompts(record, "nar", (1.0, 1.0))
    assert pd.isna(row(summarise(rows, PLAN), "nar")["identical_to_ar"])


def test_an_error_is_counted_and_its_pair_is_dropped(record: Make) -> None:
    rows = two_prompts(record, "ar", (4.0, 1.0)) + two_prompts(record, "spec", (1.0, 1.0))
    rows[3] = record("spec", conversation="b", family="rag", error="CUDA out of memory")
    spec = row(summarise(rows, PLAN), "spec")
    assert (spec["errors"], spec["pairs"], spec["pairs_dropped"], spec["prompts"]) == (1, 1, 1, 1)
    assert spec["speedup"] == pytest.approx(4.0)


def answers(record: Make, decoder: str, **scores: float | None) -> list[SampleRecord]:
    """One quality answer in each of the families given; None: it failed."""
    rows = []
    for family, score in scores.items():
        found = {"error": "late"} if score is None else {"scores": {PRIMARY[family]: score}}
        rows.append(record(decoder, kind="quality", family=family, conversation=family, **found))
    return rows


def test_a_decoder_that_fails_in_a_whole_family_has_no_quality_over_all(record: Make) -> None:
    rows = answers(record, "ar", summarization=0.9, mt_bench=0.1)
    rows += answers(record, "spec", summarization=0.9, mt_bench=None)
    rows += answers(record, "nar", summarization=0.5, mt_bench=0.1)
    frame = summarise(rows, PLAN)
    assert row(frame, "ar")["quality"] == pytest.approx(0.5)
    assert row(frame, "nar")["quality"] == pytest.approx(0.3)
    assert row(frame, "spec", "summarization")["quality"] == pytest.approx(0.9)
    for name in ("quality", "quality_low", "quality_high", "quality_metric"):
        assert pd.isna(row(frame, "spec")[name])


def test_a_family_in_which_ar_alone_failed_leaves_only_ar_without_quality_over_all(
    record: Make,
) -> None:
    rows = answers(record, "ar", summarization=0.9, mt_bench=None)
    rows += answers(record, "spec", summarization=0.9, mt_bench=0.1)
    frame = summarise(rows, PLAN)
    assert pd.isna(row(frame, "ar")["quality"])
    assert row(frame, "spec")["quality"] == pytest.approx(0.5)


def test_a_family_in_which_no_decoder_is_scored_does_not_change_quality_over_all(
    record: Make,
) -> None:
    rows = answers(record, "ar", summarization=0.9, mt_bench=None)
    rows += answers(record, "spec", summarization=0.7, mt_bench=None)
    rows += [record(decoder, family="rag") for decoder in ("ar", "spec")]  # timed, never scored
    frame = summarise(rows, PLAN)
    for decoder, score in (("ar", 0.9), ("spec", 0.7)):
        assert row(frame, decoder)["quality"] == pytest.approx(score)
        assert row(frame, decoder)["quality_metric"] == "1 family"
        assert pd.isna(row(frame, decoder, "mt_bench")["quality"])


def test_errors_of_both_passes_are_counted_and_prompts_that_failed_are_not(record: Make) -> None:
    rows = two_prompts(record, "ar", (4.0, 1.0))
    rows += [record("ar", conversation="c", family="qa", error="late")]
    rows += answers(record, "ar", qa=None)
    found = row(summarise(rows, PLAN), "ar")
    assert (found["prompts"], found["errors"]) == (2, 2)


def test_accepted_tokens_per_step_have_an_interval_over_conversations(record: Make) -> None:
    """Of a conversation all later steps count as one; the prefill's tokens and step do not."""
    answered = {"a": ((4, 3, 1), (1, 2)), "b": ((1, 5, 5),), "c": ((2, 1, 1, 2),)}
    rows = [
        record("spec", steps, conversation=name, turn=turn)
        for name, turns in answered.items()
        for turn, steps in enumerate(turns, 1)
    ]
    found = row(summarise([*two_prompts(record, "ar", (1.0, 1.0)), *rows], PLAN), "spec")
    expected = ratio_of_sums({"a": (3 + 1 + 2, 3), "b": (10, 2), "c": (4, 3)})
    assert found["acceptance_length"] == pytest.approx(expected.value)
    assert expected.low is not None
    assert expected.low < 1  # but a step emits a token at least
    assert found["acceptance_length_low"] == 1
    assert found["acceptance_length_high"] == pytest.approx(expected.high)


def test_tokens_per_step_may_be_below_one_if_steps_emit_nothing(record: Make) -> None:
    later = {"a": (0, 0, 1), "b": (0, 4), "c": (0, 2, 0)}
    rows = [record("nar", (1, *steps), conversation=name) for name, steps in later.items()]
    found = row(summarise([*two_prompts(record, "ar", (1.0, 1.0)), *rows], PLAN), "nar")
    assert found["acceptance_length"] == pytest.approx(7 / 8)
    assert 0 < found["acceptance_length_low"] < found["acceptance_length"]


def test_the_table_of_prompts_lists_only_prompts_that_both_arms_finished(record: Make) -> None:
    def answered(decoder: str, **failed: bool) -> list[SampleRecord]:
        return [
            record(decoder, conversation=name, **({"error": "late"} if failed.get(name) else {}))
            for name in "abc"
        ]

    rows = answered("ar", a=True) + answered("spec", b=True) + answered("ar@aa", c=True)
    table = prompt_table(rows, ["ar", "spec"])
    shown = list(zip(table["decoder"], table["conversation"], strict=True))
    assert shown == [("spec", "c"), ("ar@aa", "b")]


def test_the_noise_floor_of_every_row_is_the_speed_up_between_the_two_baselines(
    record: Make,
) -> None:
    rows = two_prompts(record, "ar", (4.0, 1.0)) + two_prompts(record, "ar@aa", (2.0, 1.0))
    rows += two_prompts(record, "spec", (1.0, 1.0))
    frame = summarise(rows, PLAN)
    for decoder in ("ar", "spec"):
        assert row(frame, decoder)["aa_speedup"] == pytest.approx(math.sqrt(2.0))


def test_a_decoder_that_always_fails_keeps_its_rows_with_unknown_values(record: Make) -> None:
    rows = [*two_prompts(record, "ar", (1.0, 1.0)), record("spec", conversation="a", error="boom")]
    spec = row(summarise(rows, PLAN), "spec")
    assert spec["errors"] == 1
    for name in ("tokens_per_call", "speedup", "ttft_s", "peak_memory_bytes", "quality"):
        assert pd.isna(spec[name])


def test_answers_that_end_in_their_first_step_are_in_no_decode_speedup(record: Make) -> None:
    rows = two_prompts(record, "ar", (4.1, 1.1)) + two_prompts(record, "nar", (1.1, 1.1))
    rows[3] = record("nar", (10,), conversation="b", family="rag", total_s=1.1, ttft_s=1.1)
    nar = row(summarise(rows, PLAN), "nar")
    assert (nar["pairs"], nar["pairs_decode"]) == (2, 1)
    assert nar["speedup_decode"] == pytest.approx(4.0)


def test_without_records_there_are_no_rows_but_all_columns() -> None:
    frame = summarise([], PLAN)
    assert frame.empty
    assert list(frame.columns)[: len(BINDING_COLUMNS)] == BINDING_COLUMNS
    assert acceptance_table(Findings(run_of([], PLAN))).empty


def test_in_batches_groups_are_paired_and_mixed_groups_count_only_in_the_family_all(
    record: Make,
) -> None:
    def group(decoder: str, block: int, seconds: float, families: tuple[str, str]) -> list[Any]:
        batch = {"batch_size": 2, "block": block, "ttft_s": None, "total_s": None}
        return [
            record(decoder, conversation=f"{block}-{i}", family=f, group_s=seconds, **batch)
            for i, f in enumerate(families)
        ]

    rows = [
        *group("ar", 0, 8.0, ("qa", "qa")),
        *group("ar", 1, 2.0, ("qa", "rag")),
        *group("spec", 0, 2.0, ("qa", "qa")),
        *group("spec", 1, 2.0, ("qa", "rag")),
    ]
    frame = summarise(rows, PLAN)
    whole = row(frame, "spec")
    assert whole["speedup"] == pytest.approx(2.0)
    assert whole["time_per_token_s"] == pytest.approx(4.0 / 12)
    assert (whole["pairs"], whole["batch_size"]) == (2, 2)
    assert pd.isna(whole["speedup_decode"])
    assert pd.isna(whole["ttft_s"])
    assert row(frame, "spec", "qa")["speedup"] == pytest.approx(4.0)
    assert pd.isna(row(frame, "spec", "rag")["speedup"])


def test_the_faster_decoder_of_a_synthetic_run_has_the_higher_speed_up(
    synthetic_run: Callable[..., Any],
) -> None:
    run = load_run(synthetic_run({"spec": 3.0, "spec@slow": 1.2}, conversations=18))
    frame = summary.summarise(run)
    assert row(frame, "spec")["speedup_low"] > row(frame, "spec@slow")["speedup_high"]
    assert row(frame, "spec")["tokens_per_call"] == pytest.approx(3.0, abs=0.4)
    floor = noise_floor(run.records)
    assert floor.low is not None
    assert floor.high is not None
    assert floor.low < 1.02
    assert floor.high > 0.98


# ---------------------------------------------------------------- guarantees


@pytest.mark.parametrize(
    ("facts", "promise"),
    [
        ({"lossless": True, "comparable_to_ar": True}, "same tokens"),
        ({"lossless": True, "comparable_to_ar": False}, "same distribution"),
        ({"lossless": False, "comparable_to_ar": True}, "none"),
    ],
)
def test_a_guarantee_follows_from_the_claims_of_a_cell_and_the_temperature(
    record: Make, facts: dict[str, Any], promise: str
) -> None:
    plan = Plan(cells=(Cell(cell="spec", **facts),))
    assert row(summarise([record(), record("spec")], plan), "spec")["guarantee"] == promise


def test_guarantees_of_built_in_decoders_follow_from_their_options_and_the_temperature() -> None:
    def promise(name: str, temperature: float, **options: str) -> str:
        decoder = build_decoder(name, options)
        comparable = decoder.comparable_to_ar(Sampling(temperature=temperature))
        return Cell(cell="x", lossless=decoder.lossless, comparable_to_ar=comparable).guarantee

    assert [promise("spec", t) for t in (0.0, 0.7)] == ["same tokens", "same distribution"]
    assert promise("spec", 0.7, verify="coupled") == "same tokens"
    assert [promise("ptp", t) for t in (0.0, 0.7)] == ["same tokens"] * 2
    assert [promise("nar", t) for t in (0.0, 0.7)] == ["none"] * 2
    assert [promise("idlm", 0.0), promise("idlm", 0.7, mode="isd")] == ["none", "same distribution"]
    assert promise("idlm", 0.0, mode="isd", verify="relaxed") == "none"


def test_telling_quality_leaves_out_families_where_ar_scores_at_the_floor(record: Make) -> None:
    """The contract's column does not: its lossy 0.55 is above ar's 0.5."""

    def scored(decoder: str, qa: float, rag: float) -> list[SampleRecord]:
        of = {"kind": "quality", "total_s": None}
        return [
            record(decoder, family=f, conversation=f"{f}{n}", scores={"contains_answer": s}, **of)
            for f, s in (("qa", qa), ("rag", rag))
            for n in range(3)
        ]

    rows = [*scored("ar", 0.0, 1.0), *scored("nar", 0.2, 0.9), record(), record("nar")]
    frame = summarise(rows, PLAN)
    assert [row(frame, "nar", f)["quality_tells"] for f in ("qa", "rag", "all")] == [
        False, True, True,
    ]  # fmt: skip
    assert row(frame, "nar")["quality"] == pytest.approx(0.55)
    assert row(frame, "nar")["telling_quality"] == pytest.approx(0.9)
    assert row(frame, "ar")["telling_quality"] == 1
    assert pd.isna(row(frame, "nar", "qa")["telling_quality"])
    judged = quality.with_telling_quality(frame)
    assert row(judged, "nar")["quality"] == pytest.approx(0.9)
    assert row(judged, "nar", "qa")["quality"] == pytest.approx(0.2)
    untold = summarise(scored("nar", 0.2, 0.9), PLAN)
    assert pd.isna(row(untold, "nar")["quality_tells"])  # no ar: nobody knows its floor


def test_calls_per_step_are_target_calls_after_the_prefill_over_steps(record: Make) -> None:
    rows = [
        record(),
        record("ptp", (1, 8, 8), calls=(1, 2, 2)),
        record("spec", (1, 4), calls=(3, 1)),
    ]
    frame = summarise(rows, PLAN)
    assert [row(frame, name)["calls_per_step"] for name in ("ar", "ptp", "spec")] == [1, 2, 1]
    ptp = row(frame, "ptp")
    assert ptp["calls_per_step"] == ptp["acceptance_length"] / ptp["tpf"]


DRAFTING = Plan(cells=(PLAN.cells[0], Cell(cell="spec", lossless=True, drafts=True), PLAN.cells[2]))
RATIOS = ("speedup", "speedup_decode", "speedup_total", "specbench_compat")


def answers_of(record: Make, decoder: str, *steps: tuple[int, ...], **more: Any) -> list[Any]:
    """An answer per sequence of steps, each to a conversation of its own."""
    more = {"ttft_s": 0.1, "total_s": 0.5} | more
    return [record(decoder, s, conversation=f"c{i}", **more) for i, s in enumerate(steps)]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (((8,), (8,), (8, 8)), "most answers end in the first step"),
        (((8,), (8, 8), (8, 8)), None),  # as SmolLM2's `nar`: a few answers
        (((0, 8), (0, 8), (0, 8, 8)), "most answers end in the first step"),  # empty steps
        (((8,), (8, 8)), None),  # just half
    ],
)
def test_a_decoder_whose_answers_end_in_the_first_step_has_no_speed_up(
    record: Make, steps: tuple[tuple[int, ...], ...], reason: str | None
) -> None:
    rows = answers_of(record, "ar", *[(1,) * 8] * 3) + answers_of(record, "nar", *steps)
    nar = row(summarise(rows, PLAN), "nar")
    assert (nar["no_speedup"] if reason else pd.isna(nar["no_speedup"])) in (reason, True)
    assert [pd.isna(nar[name]) for name in RATIOS] == [reason is not None] * 4
    assert nar["tokens_per_s"] > 0  # what was measured stays
    assert nar["pairs"] == len(steps)


def test_a_loop_that_reports_its_tokens_at_the_end_has_a_speed_up(record: Make) -> None:
    """As a custom loop of transformers: one step, and the calls of all tokens."""
    rows = answers_of(record, "ar", (1,) * 8) + answers_of(record, "nar", (8,), calls=(8,))
    assert row(summarise(rows, PLAN), "nar")["speedup"] == pytest.approx(1.0)


def test_a_decoder_that_drafts_nothing_has_no_speed_up(record: Make) -> None:
    ar, idle = (answers_of(record, name, *[(1,) * 4] * 2) for name in ("ar", "spec"))
    once = answers_of(record, "spec", (1,) * 4, drafted=(0, 0, 3, 0))
    frame = summarise([*ar, *idle], DRAFTING)
    assert row(frame, "spec")["no_speedup"] == "it drafts nothing"
    assert pd.isna(row(frame, "spec")["speedup"])
    assert row(frame, "ar")["speedup"] == 1.0
    assert pd.isna(row(frame, "ar")["no_speedup"])
    lossy = Plan(cells=(PLAN.cells[0], Cell(cell="spec", lossless=False, drafts=True)))
    for rows, plan in (
        ([*ar, *once, idle[1]], DRAFTING),
        ([*ar, *idle], PLAN),  # no drafts
        ([*ar, *idle], lossy),  # as `nar`, which never drafts
    ):
        assert row(summarise(rows, plan), "spec")["speedup"] == pytest.approx(1.0)


def test_reasons_against_a_speed_up_are_judged_separately_for_each_family(record: Make) -> None:
    ar = answers_of(record, "ar", *[(1,) * 8] * 3)
    nar = answers_of(record, "nar", (8, 8), (8, 8), (8,))
    rows = [replace(each, family="rag") for each in (ar.pop(), nar.pop())]
    frame = summarise([*ar, *nar, *rows], PLAN)
    assert not pd.isna(row(frame, "nar")["speedup"])
    assert pd.isna(row(frame, "nar", "rag")["speedup"])


def test_the_rate_of_reading_weights_is_the_median_over_answers_after_their_first_token(
    record: Make,
) -> None:
    def rate(rows: list[Any], read_bytes: int | None = 1000) -> Any:
        env = Environment(models=ModelFacts(target={"read_bytes": read_bytes}))
        return row(summarise(rows, PLAN, env=env), "ar")["weights_per_s"]

    answers = [
        record("ar", (1,) * 5, conversation=f"c{i}", ttft_s=1.0, total_s=1.0 + seconds)
        for i, seconds in enumerate((2.0, 4.0, 8.0))
    ]
    assert rate(answers) == pytest.approx(1000 * 4 / 4.0)
    twice = record("ar", (1, 3), calls=(1, 2), ttft_s=1.0, total_s=2.0)
    assert rate([twice]) == pytest.approx(1000 * 2 / 1.0)
    grouped = replace(twice, batch_size=2, ttft_s=None, total_s=None, group_s=2.0)
    assert pd.isna(rate([grouped]))
    assert pd.isna(rate(answers, None))
    assert pd.isna(rate([answers[0], replace(answers[1], machine="other")]))
