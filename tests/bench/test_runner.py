"""The timing pass: what is written for an answer, what is timed, what failures leave behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import runner as runner_module
from bench.choice import build_decoder, choose_decoders
from bench.files import SampleWriter, write_json
from bench.load import Load
from bench.memory import PeakMemory
from bench.planning import make_plan
from bench.progress import Progress
from bench.prompts import Prompt
from bench.records import SampleRecord, broken_invariants
from bench.rundir import load_run
from bench.runner import Runner
from bench.workbench import Workbench
from decoders.core.types import Sampling

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def measured(
    tmp_path: Path, small: Any, opener: Any, progress: Any
) -> Callable[..., tuple[list[SampleRecord], Workbench, Progress]]:
    """Runs the timing pass of a small configuration; returns records, workbench and progress."""

    def measure(**values: Any) -> tuple[list[SampleRecord], Workbench, Progress]:
        shown = progress()
        bench = opener(choose_decoders(small(**values), shown.note))
        plan, prompts = make_plan(bench, "test", shown)
        write_json(tmp_path / "manifest.json", plan.to_manifest())
        with SampleWriter(tmp_path) as writer:
            lap = iter(range(10_000)).__next__
            runner = Runner(
                bench, prompts, writer, shown, attempt=0, lap=lambda: Load(other_cores=float(lap()))
            )
            runner.run(plan.blocks)
        return list(load_run(tmp_path).records), bench, shown

    return measure


def test_every_cell_answers_every_prompt_in_every_repeat_once(measured: Any) -> None:
    records, _, shown = measured()
    keys = Counter((r.decoder, r.prompt, r.repeat) for r in records)
    assert set(keys.values()) == {1}
    assert len(keys) == 3 * 4 * 2
    assert ("timing", 24, 0) in shown.phases


def test_records_are_sound_and_say_how_the_work_was_done(measured: Any) -> None:
    records, bench, _ = measured()
    for record in records:
        assert broken_invariants(record, bench.config.max_new_tokens) == ()
        assert record.error is None
        assert record.text == bench.text(record.tokens or ())
        assert record.seed == record.repeat
        assert record.num_prompt_tokens > 0
    assert {r.order for r in records} == {0, 1, 2}


def test_the_two_arms_of_the_baseline_and_a_lossless_decoder_agree(measured: Any) -> None:
    records, _, _ = measured()
    answers: dict[tuple[str, int], set[object]] = {}
    for record in records:
        answers.setdefault((record.prompt, record.repeat), set()).add(record.tokens)
    assert all(len(tokens) == 1 for tokens in answers.values())


def test_repeats_use_their_own_seed(measured: Any) -> None:
    records, _, _ = measured(temperature=1.0, decoders="spec:verify=coupled")
    by_prompt: dict[str, set[object]] = {}
    for record in records:
        by_prompt.setdefault(record.prompt, set()).add(record.tokens)
    assert any(len(tokens) == 2 for tokens in by_prompt.values())


def test_only_start_first_token_and_end_are_read(measured: Any) -> None:
    records, _, _ = measured()  # the fake clock moves half a second at each reading
    assert {(r.ttft_s, r.total_s, r.group_s) for r in records} == {(0.5, 1.0, None)}


def test_a_group_is_timed_as_one_makespan(measured: Any) -> None:
    records, _, _ = measured(batch_size=2, limit=10, repeats=1)
    assert Counter(r.block for r in records) == {0: 24, 1: 6}
    assert {(r.ttft_s, r.total_s, r.group_s) for r in records} == {(None, None, 0.5)}
    assert {r.batch_size for r in records} == {2}


def test_fixed_length_ignores_the_stop_token(measured: Any) -> None:
    records, bench, _ = measured(fixed_length=True)
    assert bench.sampling.stop_ids == frozenset()
    assert {len(r.tokens or ()) for r in records} == {12}


def test_the_load_is_written_once_per_block(measured: Any, tmp_path: Path) -> None:
    measured()
    events = load_run(tmp_path).events
    assert [event["block"] for event in events] == list(range(8))
    assert [event["other_cores"] for event in events] == [float(i) for i in range(1, 9)]


def test_a_decoder_that_raises_on_one_prompt_leaves_a_row_and_the_run_goes_on(
    measured: Any, decoder_file: Callable[[str], str]
) -> None:
    spec = decoder_file(
        "if sum(request.prompt_ids) % 2:\n"
        "    raise RuntimeError('odd\\nprompt')\n"
        "result = yield request.target.call(request.prompt_ids)\n"
        "while True:\n"
        "    yield Emit(tokens=result.picks)\n"
        "    result = yield request.target.call(result.picks)"
    )
    records, _, _ = measured(decoders=spec, limit=12, repeats=1)
    mine = [r for r in records if r.decoder.endswith("@mine")]
    failed = [r for r in mine if r.error]
    assert 0 < len(failed) < len(mine) == 12
    assert {r.error for r in failed} == {"RuntimeError: odd prompt"}
    assert all((r.tokens, r.total_s, r.steps, r.peak_memory_bytes) == (None,) * 4 for r in failed)
    assert not [r for r in records if r.error and not r.decoder.endswith("@mine")]


def test_other_prompts_of_a_group_survive_a_failure(
    measured: Any, decoder_file: Callable[[str], str]
) -> None:
    spec = decoder_file(
        "result = yield request.target.call(request.prompt_ids)\n"
        "yield Emit(tokens=result.picks)\n"
        "assert sum(request.prompt_ids) % 2, 'even'\n"
        "while True:\n"
        "    result = yield request.target.call(result.picks)\n"
        "    yield Emit(tokens=result.picks)"
    )
    records, _, _ = measured(decoders=spec, limit=12, repeats=1, batch_size=4)
    mine = [r for r in records if r.decoder.endswith("@mine")]
    assert {bool(r.error) for r in mine} == {True, False}
    assert {r.group_s for r in mine if not r.error} == {0.5}


@pytest.fixture
def warmed(tmp_path: Path, small: Any, opener: Any, progress: Any) -> Callable[..., list[int]]:
    """Warms up on prompts of two length buckets; returns how many turns each got."""

    def warm(times: Sequence[float]) -> list[int]:
        bench = opener(choose_decoders(small(decoders="ar"), print))
        prompts = [
            Prompt(conversation=f"c{n}", turn=1, family="qa", ids=(5,) * n, hash="", reference=None)
            for n in (10, 11, 100)
        ]
        turns: list[int] = []
        with SampleWriter(tmp_path) as writer:
            runner = Runner(bench, {}, writer, progress(), attempt=0, lap=Load)  # type: ignore[arg-type]

            def timed(_arm: Any, batch: Sequence[Prompt], sampling: Sampling) -> Any:
                turns.append(len(batch[0].ids))
                assert sampling.max_new_tokens <= 16
                return [], SimpleNamespace(total_s=times[(len(turns) - 1) % len(times)]), 0

            runner._timed = timed  # type: ignore[method-assign]
            runner.warm_up(prompts)
        assert not (tmp_path / "samples.jsonl").read_bytes()
        return list(Counter(turns).values())

    return warm


def test_warm_up_of_a_length_bucket_ends_when_times_are_stable(warmed: Any) -> None:
    assert warmed([0.1, 0.1, 0.104]) == [3, 3]


def test_warm_up_ends_at_its_cap_where_times_never_settle(warmed: Any) -> None:
    assert warmed([0.1, 0.2, 0.4]) == [runner_module.WARMUP_MAX] * 2


def test_warm_up_past_its_budget_is_one_turn_each(warmed: Any) -> None:
    assert warmed([runner_module.WARMUP_BUDGET_S + 1]) == [1, 1]


def test_progress_says_how_fast_each_cell_is(measured: Any) -> None:
    _, _, shown = measured()
    assert "ar " in shown.details[-1]
    assert "spec " in shown.details[-1]
    assert "tok/s" in shown.details[-1]


def test_peak_memory_counts_the_models_a_decoder_uses_and_no_others(measured: Any) -> None:
    class Weighed:
        device = type("Device", (), {"type": "cpu"})()

        def __init__(self, weights: int, cache: int) -> None:
            self.weight_bytes, self._cache = weights, cache

        def cache_bytes(self) -> int:
            return self._cache

        def adapter_bytes(self, name: str) -> int:
            raise AssertionError(f"{name} is none of its adapters")

    def models(*parts: Any) -> Any:
        return type("M", (), {"target": parts[0], "draft": (*parts, None)[1]})()

    target, draft = Weighed(100, 10), Weighed(20, 2)
    loaded, plain = models(target, draft), build_decoder("ar", {})
    assert PeakMemory(loaded, models(target), plain).peak_bytes() == 110
    assert PeakMemory(loaded, models(target, draft), plain).peak_bytes() == 132
