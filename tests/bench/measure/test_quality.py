"""The quality pass: untimed, batched, scored, and resumable by decoder and prompt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.measure import quality
from bench.measure.quality import score_quality, target_scores
from bench.plan.make import baseline_answers, batch_size, make_plan, quality_batch_size
from bench.plan.select import choose_decoders
from bench.records.environment import ModelFacts
from bench.records.record import SampleRecord
from bench.records.samples import SampleWriter
from decoders.core.engine.scheduler import generate
from decoders.core.testing.table_model import TableModel
from tests.lines import read_lines


@pytest.fixture
def scored(tmp_path: Path, small: Any, opener: Any, progress: Any) -> Any:
    """Scores a small configuration; returns records, setup, prompts and progress."""

    def run(done: Any = (), shown: Any = None, **values: Any) -> Any:
        shown = shown or progress()
        setup = opener(choose_decoders(small(**values), shown.note))
        plan, prompts = make_plan(setup, "test", shown)
        asked = [prompts[planned.prompt] for planned in plan.in_pass("quality")]
        with SampleWriter(tmp_path) as writer:
            score_quality(setup, asked, writer, shown, attempt=0, done=done)
        lines, _ = read_lines(tmp_path / "samples.jsonl")
        return [SampleRecord.from_dict(line) for line in lines], setup, asked, shown

    return run


def test_every_arm_but_the_second_baseline_answers_every_held_out_prompt(scored: Any) -> None:
    records, _, asked, shown = scored()
    assert {(r.decoder, r.prompt) for r in records} == {
        (cell, prompt.name) for cell in ("ar", "spec") for prompt in asked
    }
    assert len(asked) == 4
    assert shown.phases == [("quality", 8, 0)]


@pytest.mark.parametrize(
    ("device", "dtype", "compiled", "num_weights", "size"),
    [
        ("cpu", "bfloat16", True, 10**8, 1),  # else a row's bits would depend on the batch
        ("cuda", "bfloat16", True, 10**8, 32),
        ("cpu", "float32", True, 10**8, 8),
        ("cpu", "bfloat16", False, None, 8),
        ("cpu", "float32", True, 10**6, 32),
    ],
)
def test_quality_answers_are_batched_unless_the_bits_of_a_row_would_depend_on_the_batch(
    small: Any, opener: Any, device: str, dtype: str, compiled: bool, num_weights: Any, size: int
) -> None:
    setup = opener(choose_decoders(small(), print))
    models = dataclasses.replace(setup.models, target=SimpleNamespace(device=device))
    config, facts = setup.config.with_values(dtype=dtype), {"compiled": compiled}
    facts |= {"parameters": num_weights}
    of_models = ModelFacts(target=facts)
    setup = dataclasses.replace(setup, config=config, models=models, facts=of_models)
    assert quality_batch_size(setup) == size


def test_a_quality_record_has_scores_and_no_times(scored: Any) -> None:
    records, setup, _, _ = scored()
    for record in records:
        assert record.kind == "quality"
        assert record.block == -1
        assert (record.ttft_s, record.total_s, record.group_s) == (None, None, None)
        assert record.text == setup.text(record.tokens)
        metric = {"qa": "contains_answer", "math_reasoning": "exact_number"}[record.family]
        assert 0 <= record.scores[metric] <= 1
        assert record.batch_size == 8


def test_held_out_prompts_are_not_those_that_are_timed(
    small: Any, opener: Any, progress: Any
) -> None:
    setup = opener(choose_decoders(small(), print))
    plan, _ = make_plan(setup, "test", progress())
    assert not {p.prompt for p in plan.in_pass("timing")} & {
        p.prompt for p in plan.in_pass("quality")
    }


def test_prompts_that_are_already_answered_are_not_repeated(scored: Any) -> None:
    first, _, _, _ = scored()
    done = {(r.decoder, r.prompt) for r in first[:3]}
    again, _, _, shown = scored(done=done)
    fresh = again[len(first) :]
    assert {(r.decoder, r.prompt) for r in fresh} == {(r.decoder, r.prompt) for r in first[3:]}
    assert shown.phases == [("quality", 8, 3)]


def test_answers_given_before_an_interrupt_are_kept(
    scored: Any, progress: Any, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        scored(shown=progress(stop_at=3))
    assert len(read_lines(tmp_path / "samples.jsonl")[0]) == 3


def test_an_answer_of_a_failing_decoder_is_recorded_with_its_error(
    scored: Any, decoder_file: Any
) -> None:
    records, _, _, _ = scored(decoders=decoder_file("raise ValueError('no')\nyield"))
    errors = [r for r in records if r.error]
    assert {r.error for r in errors} == {"ValueError: no"}
    assert {r.scores for r in errors} == {None}
    assert len(errors) == 4


def test_the_target_scores_an_identical_answer_of_several_decoders_only_once(
    scored: Any, decoder_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spec` gives ar's answers; one that says the same whatever it is asked gives others."""
    read: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def reading(target: Any, prompt: Any, tokens: Any, **_: Any) -> quality.TargetScores:
        read.append((tuple(prompt), tuple(tokens)))
        return target_scores(target, prompt, tokens)

    monkeypatch.setattr(quality, "target_scores", reading)
    same = decoder_file(
        "yield request.target.call(request.prompt_ids)\nwhile True:\n    yield Emit(tokens=(70,))"
    )
    records, setup, asked, _ = scored(decoders=f"spec,{same}")
    assert not [r.error for r in records if r.error]
    answers = {(r.prompt, r.tokens) for r in records}
    assert len(answers) == 2 * len(asked)
    assert len({r.tokens for r in records if r.decoder not in ("ar", "spec")}) == 1
    assert len(records) == 3 * len(asked)
    assert len(read) == len(set(read)) == len(answers)
    prompts = {prompt.name: prompt.ids for prompt in asked}
    for r in records:
        alone = target_scores(setup.models.target, prompts[r.prompt], r.tokens)
        assert (r.nll, r.agreement, r.entropy) == alone


@pytest.mark.parametrize(
    ("num_weights", "expected"), [(None, 8), (2_200_000, 32), (50_000_000, 32), (50_000_001, 8)]
)
def test_small_models_answer_more_prompts_at_a_time_on_a_cpu(
    scored: Any, num_weights: int | None, expected: int
) -> None:
    _, setup, _, _ = scored()
    facts = ModelFacts(target={"parameters": num_weights})
    assert batch_size(dataclasses.replace(setup, facts=facts)) == expected


def test_a_limit_of_zero_skips_the_pass(scored: Any) -> None:
    records, _, asked, shown = scored(quality_limit=0)
    assert (records, asked, shown.phases) == ([], [], [])


def test_histories_are_the_baselines_own_answers(scored: Any) -> None:
    records, setup, asked, _ = scored()
    expected = {r.prompt: r.text for r in records if r.decoder == "ar"}
    assert baseline_answers(setup, asked) == [expected[prompt.name] for prompt in asked]


def test_histories_are_sampled_where_the_run_samples(scored: Any) -> None:
    records, setup, asked, _ = scored(temperature=1.5, decoders="spec:verify=coupled")
    expected = {r.prompt: r.text for r in records if r.decoder == "ar"}
    sampled = [expected[prompt.name] for prompt in asked]
    assert baseline_answers(setup, asked) == sampled
    greedy = dataclasses.replace(setup.sampling, temperature=0.0)
    plain = dataclasses.replace(setup, sampling=greedy)
    assert baseline_answers(plain, asked) != sampled


def test_scored_answers_are_sampled_like_timed_answers(scored: Any) -> None:
    records, setup, asked, _ = scored(temperature=1.5, decoders="spec:verify=coupled")
    arm = setup.arms["ar"]
    for prompt in asked:
        expected = generate(arm.decoder, prompt.ids, setup.sampling, arm.models)
        found = {r.tokens for r in records if r.prompt == prompt.name}
        assert found == {expected.tokens}


def test_the_stop_token_is_not_part_of_the_scored_text(
    scored: Any, opener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer is the right word and a stop token that can be read."""
    stop = ord(".")
    told: list[str] = []

    def answer(context: Any) -> torch.Tensor:
        return torch.zeros(128).index_fill(0, torch.tensor([stop]), 9.0)

    def hear(_family: str, text: str, _reference: Any) -> dict[str, float]:
        told.append(text)
        return {"exact_number": 1.0, "contains_answer": 1.0}

    monkeypatch.setattr("tests.conftest.STOP", stop)
    monkeypatch.setattr(TableModel, "logits", lambda _model, context: answer(context))
    monkeypatch.setattr(quality, "score", hear)
    records, _, _, _ = scored()
    assert {(r.tokens, r.stop, r.text) for r in records} == {((stop,), "eos", "")}
    assert set(told) == {""}


def test_where_the_baseline_cannot_answer_there_is_no_history(
    scored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, setup, asked, _ = scored()

    class Failing:
        def __init__(self, *_: Any) -> None:
            pass

        def run(self, *_: Any) -> list[Exception]:
            return [ValueError("no answer")]

    monkeypatch.setattr("bench.plan.make.Scheduler", Failing)
    assert baseline_answers(setup, asked) == [None]
