"""The timing pass: what is written for an answer, what is timed, what failures leave behind."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.errors import BenchError
from bench.machine.gpu import EnergyMeter
from bench.machine.usage import Load, PeakMemory
from bench.measure import timing as runner_module
from bench.measure.timing import Runner
from bench.plan.make import make_plan
from bench.plan.select import build_decoder, choose_decoders
from bench.plan.setup import Setup
from bench.progress import Progress
from bench.records.files import write_json
from bench.records.invariants import broken_invariants
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.records.run_folder import load_run
from bench.records.samples import SampleWriter
from bench.settings.config import load_config
from bench.stats.times import answer_unit, ttft_s
from bench.stats.validity import judge
from decoders.core.engine.deadline import MAX_TIMEOUTS
from decoders.core.engine.models import Models
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Outcome, Sampling, StepEvent
from decoders.spec import Speculative
from tests.conftest import STOP, Characters
from tests.fake_clock import FakeClock
from tests.pretended_allocator import allocator

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def measured(
    tmp_path: Path, small: Any, opener: Any, progress: Any
) -> Callable[..., tuple[list[SampleRecord], Setup, Progress]]:
    """Runs the timing pass of a small configuration; returns records, setup and progress."""

    def measure(**values: Any) -> tuple[list[SampleRecord], Setup, Progress]:
        shown = progress()
        setup = opener(choose_decoders(small(**values), shown.note))
        plan, prompts = make_plan(setup, "test", shown)
        write_json(tmp_path / "manifest.json", plan.to_manifest())
        with SampleWriter(tmp_path) as writer:
            lap = iter(range(10_000)).__next__
            runner = Runner(
                setup, prompts, writer, shown, attempt=0, lap=lambda: Load(other_cores=float(lap()))
            )
            runner.prepare(plan.blocks)
            runner.run(plan.blocks)
        return list(load_run(tmp_path).records), setup, shown

    return measure


def test_every_cell_answers_every_prompt_in_every_repeat_once(measured: Any) -> None:
    records, _, shown = measured()
    keys = Counter((r.decoder, r.prompt, r.repeat) for r in records)
    assert set(keys.values()) == {1}
    assert len(keys) == 3 * 4 * 2
    assert ("timing", 24, 0) in shown.phases


def test_progress_of_a_resumed_run_counts_the_answers_that_exist(
    measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Runner.run
    monkeypatch.setattr(Runner, "run", lambda self, blocks: run(self, blocks[5:], num_done=15))
    _, _, shown = measured()
    assert ("timing", 24, 15) in shown.phases


def test_each_session_of_a_job_has_its_own_order_of_the_same_blocks(
    tmp_path: Path, small: Any, opener: Any, progress: Any
) -> None:
    def planned(**values: Any) -> tuple[int | None, list[tuple[Any, ...]]]:
        setup = opener(choose_decoders(small(seed=5, **values), progress().note))
        plan, _ = make_plan(setup, "test", progress())
        asked = [each.block for each in plan.blocks]
        assert asked == [*range(len(asked))]
        return plan.order_seed, [(b.repeat, b.prompts, b.order) for b in plan.blocks]

    runs = [planned(), *(planned(session=session) for session in (1, 2, 3, 3))]
    assert [seed for seed, _ in runs] == [5, 5, 6, 7, 7]
    orders = [order for _, order in runs]
    assert orders[0] == orders[1]
    assert orders[3] == orders[4]
    assert orders[1] != orders[2] != orders[3] != orders[1]
    assert len({tuple(sorted(each[:2] for each in order)) for order in orders}) == 1
    file = tmp_path / "config.toml"  # a session that ended before its plan makes it again
    file.write_text(small(session=2).to_toml(), encoding="utf-8")
    assert load_config(file, {}).session == 2


def test_records_break_no_invariant_and_state_seed_order_and_prompt_length(measured: Any) -> None:
    records, setup, _ = measured()
    for record in records:
        assert broken_invariants(record, setup.config.max_new_tokens) == ()
        assert record.error is None
        assert record.text == setup.text(record.tokens or ()).strip()
        assert record.seed == record.repeat
        assert record.num_prompt_tokens > 0
    assert {r.order for r in records} == {0, 1, 2}


def test_a_records_text_ends_with_the_answer_and_has_no_white_space_around_it(
    small: Any, opener: Any
) -> None:
    setup = opener(choose_decoders(small(), print))
    prompt = Prompt(
        conversation="c", turn=1, family="qa", ids=(1,), hash="h", reference=None, num_cut=0
    )
    answer = Generation(tokens=(32, 72, 105, 10), steps=(), stop="eos")
    where: dict[str, Any] = {"kind": "timing", "block": 0, "order": 0, "repeat": 0}
    where |= {"attempt": 1, "seed": 0, "batch_size": 1}
    record = runner_module.make_record(setup, prompt, answer, decoder="ar", **where)
    assert (record.text, record.num_behind, record.drafters) == ("Hi", None, ())
    names = ("target_calls", "target_rows", "draft_calls", "draft_rows")
    work: dict[str, Any] = dict.fromkeys(names, 1)
    tokens, sources = (72, 105, STOP, 33, 33), ("text", "layer", "text")
    step = StepEvent(tokens=tokens, drafted=3, accepted=3, sources=sources, **work)
    answer = Generation(tokens=tokens, steps=(step,), stop="length")
    record = runner_module.make_record(setup, prompt, answer, decoder="ar", **where)
    assert (record.text, record.num_behind, record.drafters) == ("Hi", 2, ("text", "layer"))


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


def test_every_step_has_an_end_time_without_waiting_for_the_device(measured: Any) -> None:
    for record in measured()[0]:
        assert record.steps is not None
        # the fake clock moves at readings that wait, and the steps' ends are none
        assert record.steps.ended_s == (record.ttft_s,) * len(record.steps.emitted)


LAST_OF_THREE = """
result = yield request.target.call(request.prompt_ids)
yield Emit()
text, length = [], request.sampling.max_new_tokens
while True:
    text.append(result.picks[0])
    if len(text) == length or text[-1] in request.sampling.stop_ids:
        yield Emit(tokens=tuple(text))
    result = yield request.target.call(text[-1:])
    yield Emit()
"""


def test_time_to_first_token_ends_at_the_first_token_and_not_at_an_earlier_empty_step(
    measured: Any, decoder_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def glance(clock: FakeClock) -> float:
        clock.advance(0.125)
        return clock.time_s

    monkeypatch.setattr(FakeClock, "glance", glance)
    records, _, _ = measured(decoders=decoder_file(LAST_OF_THREE))
    of_mine = [r for r in records if r.decoder.endswith("@mine")]
    assert {r.ttft_s for r in records if r.decoder == "ar"} == {0.5}
    assert of_mine
    for record in of_mine:
        assert record.steps is not None
        assert record.steps.emitted[:-1] == (0,) * (len(record.steps.emitted) - 1)
        assert record.ttft_s == record.steps.ended_s[-1] > 0.5
        unit = answer_unit(record)
        assert (unit.decode_tokens, unit.decode_time_per_token) == (0, None)
    assert (ttft_s(of_mine) or 0.0) > 0.5


def test_steps_of_answers_in_a_batch_have_no_ends(measured: Any) -> None:
    assert {r.steps.ended_s for r in measured(batch_size=2)[0]} == {()}


@pytest.mark.parametrize("prepared", ["Scheduler", "PeakMemory"])
def test_setting_up_the_scheduler_or_the_memory_meter_is_not_timed(
    measured: Any, monkeypatch: pytest.MonkeyPatch, prepared: str
) -> None:
    plain: Any = getattr(runner_module, prepared)
    clocks: list[FakeClock] = []

    class Slow(plain):  # type: ignore[misc]
        """Takes 100 s to make."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            for clock in clocks:
                clock.advance(100.0)

    monkeypatch.setattr(FakeClock, "__init__", _remembering(FakeClock.__init__, clocks))
    monkeypatch.setattr(runner_module, prepared, Slow)
    records, _, _ = measured()
    assert len(clocks) == 1
    assert clocks[0].time_s > 100 * len(records)
    assert {(r.ttft_s, r.total_s) for r in records} == {(0.5, 1.0)}


def _remembering(initialise: Callable[..., None], made: list[FakeClock]) -> Callable[..., None]:
    def remember(clock: FakeClock, *arguments: Any, **options: Any) -> None:
        initialise(clock, *arguments, **options)
        made.append(clock)

    return remember


@pytest.mark.parametrize("sequences", [1, 3])
def test_caches_are_reserved_before_the_first_answer_and_never_while_timed(
    sequences: int, measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is reserved is reserved once, before the first answer, for all its sequences."""
    monkeypatch.setattr(Speculative, "sequences", sequences)
    sizes: list[tuple[int, int]] = []
    forwards: list[int] = []
    reserve, forward = TableModel.reserve, TableModel.forward

    def reserving(model: TableModel, num_rows: int, capacity: int) -> None:
        sizes.append((num_rows, capacity))
        reserve(model, num_rows, capacity)

    def running(model: TableModel, calls: Any) -> Any:
        forwards.append(len(sizes))
        return forward(model, calls)

    prepare = Runner.prepare

    def forgetful(runner: Runner, *arguments: Any) -> None:
        sizes.clear()  # those of the plan's own answers
        forwards.clear()
        prepare(runner, *arguments)

    monkeypatch.setattr(TableModel, "reserve", reserving)
    monkeypatch.setattr(TableModel, "forward", running)
    monkeypatch.setattr(Runner, "prepare", forgetful)
    measured(max_new_tokens=40)
    assert [num for num, _ in sizes] == [sequences] * 2  # the target's and the draft's
    assert set(forwards) == {2}


def test_lines_are_flushed_and_garbage_is_collected_after_every_block(
    measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    names = ("collect", "freeze", "unfreeze")
    collector = SimpleNamespace(**{name: partial(calls.append, name) for name in names})
    monkeypatch.setattr(runner_module, "gc", collector)
    monkeypatch.setattr(SampleWriter, "sync", lambda _: calls.append("sync"))
    measured()
    assert calls == ["collect", "freeze", *["sync", "collect"] * 8, "unfreeze"]


def test_a_group_is_timed_as_one_makespan(measured: Any) -> None:
    records, _, _ = measured(batch_size=2, limit=10, repeats=1)
    assert Counter(r.block for r in records) == {0: 24, 1: 6}
    assert {(r.ttft_s, r.total_s, r.group_s) for r in records} == {(None, None, 0.5)}
    assert {r.batch_size for r in records} == {2}


def test_fixed_length_ignores_the_stop_token(measured: Any) -> None:
    records, setup, _ = measured(fixed_length=True)
    assert setup.sampling.stop_ids == frozenset()
    assert {len(r.tokens or ()) for r in records} == {12}


def test_the_load_is_written_once_per_block(measured: Any, tmp_path: Path) -> None:
    measured()
    events = load_run(tmp_path).events
    assert [event["block"] for event in events] == list(range(8))
    # every other reading begins a block: load between blocks is not load during a block
    assert [event["other_cores"] for event in events] == [float(i) for i in range(1, 16, 2)]


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


def test_the_second_pass_learns_which_decoders_failed_in_a_block(
    tmp_path: Path, small: Any, opener: Any, progress: Any, decoder_file: Callable[[str], str]
) -> None:
    shown, told = progress(), list[tuple[tuple[str, ...], set[str]]]()
    spec = decoder_file("raise RuntimeError('always')\nyield Emit(tokens=())")
    setup = opener(choose_decoders(small(decoders=spec), shown.note))
    plan, prompts = make_plan(setup, "test", shown)
    with SampleWriter(tmp_path) as writer:
        runner = Runner(
            setup,
            prompts,
            writer,
            shown,
            attempt=0,
            lap=lambda: Load(other_cores=0.0),
            after=lambda block, failed: told.append((block.order, set(failed))),
        )
        runner.run(plan.blocks)
    (mine,) = {cell for cell in setup.arms if cell.endswith("@mine")}
    assert len(told) == len(plan.blocks)
    assert all(failed == {mine} for _, failed in told)
    assert {order[-1] == mine for order, _ in told} == {True, False}  # others answer after it too


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


def test_every_arm_warms_up_on_prompts_of_every_length_before_the_first_timing_block(
    measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed, measure = Runner._time_answers, Runner.measure
    seen: list[tuple[str, int]] = []
    before: list[int] = []

    def timing(
        runner: Runner, arm: Any, prompts: Sequence[Prompt], sampling: Sampling, block: Any = None
    ) -> Any:
        seen.append((arm.cell.cell, len(prompts[0].ids).bit_length()))
        return timed(runner, arm, prompts, sampling, block)

    def measuring(runner: Runner, block: Any) -> None:
        before.append(len(seen))
        measure(runner, block)

    monkeypatch.setattr(Runner, "_time_answers", timing)
    monkeypatch.setattr(Runner, "measure", measuring)
    monkeypatch.setattr(Characters, "encode", _by_turns(Characters.encode))
    measured(limit=8)
    asked = set(seen[before[0] :])
    assert len({length for _, length in asked}) > 1
    assert {cell for cell, _ in asked} == {"ar", "spec"}
    assert set(seen[: before[0]]) == asked


def _by_turns(encode: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """An encoding that keeps 5 or 20 ids of a text, so that there are two buckets of lengths."""

    def shortened(tokenizer: Any, text: str, **options: Any) -> list[int]:
        ids = encode(tokenizer, text, **options)
        return ids[-5:] if len(text) % 2 else ids[-20:]

    return shortened


@pytest.fixture
def warmed(tmp_path: Path, small: Any, opener: Any, progress: Any) -> Callable[..., list[int]]:
    """Warms up on prompts of two length buckets, whose turns take `times`; returns the buckets.

    Every turn ends with `outcomes`.
    """

    def warm(times: Sequence[float], *outcomes: Outcome) -> list[int]:
        setup = opener(choose_decoders(small(decoders="ar", max_new_tokens=99), print))
        prompts = [
            Prompt(conversation=f"c{n}", turn=1, family="qa", ids=(5,) * n, hash="", reference=None)
            for n in (10, 11, 100)
        ]
        turns: list[int] = []
        with SampleWriter(tmp_path) as writer:
            runner = Runner(setup, {}, writer, progress(), attempt=0, lap=Load)  # type: ignore[arg-type]

            def timed(arm: Any, batch: Sequence[Prompt], sampling: Sampling) -> Any:
                number = turns.count(len(batch[0].ids))
                turns.append(len(batch[0].ids))
                assert sampling.max_new_tokens <= 16
                watch = SimpleNamespace(total_s=times[number % len(times)])
                for each in outcomes:
                    arm.deadline.ended(type("Job", (), {"outcome": each})())
                return SimpleNamespace(outcomes=outcomes, watch=watch)

            runner._time_answers = timed  # type: ignore[method-assign, assignment]
            runner.warm_up(prompts)
        assert not (tmp_path / "samples.jsonl").read_bytes()
        assert all(arm.deadline.refuses() is None for arm in setup.arms.values())
        return turns

    return warm


def test_warm_up_of_a_length_bucket_ends_when_times_are_stable(warmed: Any) -> None:
    assert warmed([0.1, 0.1, 0.104]) == [10, 100] * 3


def test_warm_up_repeats_turns_until_their_times_are_stable(warmed: Any) -> None:
    assert warmed([0.9, 0.1, 0.1, 0.102]) == [10, 100] * 4
    assert warmed([0.9, 0.9, 0.1, 0.1, 0.1]) == [10, 100] * 5  # a faster turn is not stable either


def test_warm_up_ends_at_its_cap_where_times_never_settle(warmed: Any) -> None:
    assert warmed([0.1, 0.2, 0.4]) == [10, 100] * runner_module.WARMUP_MAX


def test_warm_up_past_its_budget_has_one_turn_per_length_bucket(warmed: Any) -> None:
    assert warmed([runner_module.WARMUP_BUDGET_S + 1]) == [10, 100]


def test_all_turns_of_warm_up_share_one_time_budget(warmed: Any) -> None:
    assert warmed([runner_module.WARMUP_BUDGET_S * n for n in (0.2, 0.4)]) == [10, 100] * 2


def test_a_decoder_that_fails_in_warm_up_gets_no_further_turns_and_is_still_measured(
    warmed: Any,
) -> None:
    assert warmed([0.1], *[TimeoutError()] * MAX_TIMEOUTS) == [10, 100]


def test_warm_up_answers_prompts_in_batches_of_the_batch_size(
    measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, time_answers = set[int](), Runner._time_answers

    def answered(runner: Runner, arm: Any, prompts: Any, *how: Any) -> Any:
        sizes.add(len(prompts) if len(how) == 1 else 0)  # a block comes last
        return time_answers(runner, arm, prompts, *how)

    monkeypatch.setattr(Runner, "_time_answers", answered)
    measured(batch_size=2)
    assert max(sizes) == 2


@pytest.mark.parametrize("law", [None, lambda answer, logits: logits])
def test_warm_up_uses_no_measured_prompt_and_without_a_law_no_stop_ids(
    law: Any, tmp_path: Path, small: Any, opener: Any, progress: Any
) -> None:
    setup = opener(choose_decoders(small(decoders="ar"), print))
    sampling = dataclasses.replace(setup.sampling, law=law, stop_ids=frozenset({9}))
    setup = dataclasses.replace(setup, sampling=sampling)
    prompt = Prompt(
        conversation="c", turn=1, family="qa", ids=(5, 6, 7, 8), hash="", reference=None
    )
    asked: list[tuple[tuple[int, ...], Sampling]] = []
    with SampleWriter(tmp_path) as writer:
        runner = Runner(setup, {}, writer, progress(), attempt=0, lap=Load)  # type: ignore[arg-type]
        once = runner._time_once

        def noted(arm: Any, batch: Sequence[Prompt], sampling: Sampling, past: None) -> Any:
            assert past is None
            asked.extend((each.ids, sampling) for each in batch)
            return once(arm, batch, sampling, past)

        runner._time_once = noted  # type: ignore[method-assign, assignment]
        runner.warm_up([prompt])
    assert {ids for ids, _ in asked} == {(5, 8, 7, 6)}
    assert asked[0][1].stop_ids == (frozenset() if law is None else {9})


def test_spec_benchs_token_count_is_recorded_only_for_the_baseline_under_its_protocol(
    measured: Any,
) -> None:
    records, _, _ = measured(protocol="specbench", tasks="qa", repeats=1, max_new_tokens=12)
    counts = {r.decoder: r.recounted for r in records}
    assert [cell for cell, count in counts.items() if count is not None] == ["ar"]
    # a character is a token; the BOS that the tokenizer adds is none of the answer's
    assert all(r.recounted == len(r.text or "") for r in records if r.decoder == "ar")


def test_without_a_protocol_tokens_are_not_recounted(measured: Any) -> None:
    assert {r.recounted for r in measured(repeats=1)[0]} == {None}


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
        return Models(target=parts[0], draft=(*parts, None)[1])

    target, draft = Weighed(100, 10), Weighed(20, 2)
    loaded, plain = models(target, draft), build_decoder("ar", {})
    assert PeakMemory(loaded, models(target), plain).peak_bytes() == 110
    assert PeakMemory(loaded, models(target, draft), plain).peak_bytes() == 132
    assert PeakMemory(loaded, models(target), build_decoder("hf", {})).peak_bytes() is None
    adapted = Weighed(100, 10)
    adapted.adapter_bytes = {"ptp": 7, "ptp-draft": 7}.__getitem__  # type: ignore[method-assign, assignment]
    for spec, parts in (("ptp", (adapted, draft)), ("ptp_spec", (target, adapted))):
        rest = sum(each.weight_bytes + each.cache_bytes() for each in parts)
        used = models(*parts)
        assert PeakMemory(used, used, build_decoder(spec, {})).peak_bytes() == rest + 7


@pytest.mark.parametrize("batch_size", [1, 2])
def test_an_answers_record_has_the_peak_of_its_memory(
    measured: Any, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    monkeypatch.setattr(PeakMemory, "peak_bytes", lambda _: 4096)
    assert {r.peak_memory_bytes for r in measured(limit=2, batch_size=batch_size)[0]} == {4096}


def test_on_a_gpu_the_peak_memory_of_a_library_decoder_leaves_out_our_idle_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnGpu:
        device = type("Device", (), {"type": "cuda"})()
        weight_bytes, adapters = 100, ("ptp",)

        def cache_bytes(self) -> int:
            return 10

        def adapter_bytes(self, _: str) -> int:
            return 5

    allocator(monkeypatch, (900, 1000))
    models = Models(target=OnGpu())  # type: ignore[arg-type]
    assert PeakMemory(models, models, build_decoder("ar", {})).peak_bytes() == 110 + 100
    assert PeakMemory(models, models, build_decoder("hf", {})).peak_bytes() == 100 + 100


def test_the_energy_of_an_answer_is_read_before_its_peak_memory(
    measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = list[str]()
    monkeypatch.setattr(EnergyMeter, "lap", lambda _: order.append("energy"))
    monkeypatch.setattr(PeakMemory, "peak_bytes", lambda _: order.append("memory"))
    measured(limit=1)
    assert order
    assert order == ["energy", "energy", "memory"] * (len(order) // 3)


def test_energy_is_not_metered_for_a_model_on_several_devices(small: Any, opener: Any) -> None:
    setup = opener(choose_decoders(small(), print))
    meters = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_module, "EnergyMeter", meters.append)
        for device_map in (None, "auto"):
            config = setup.config.model_copy(update={"device_map": device_map})
            where: Any = dataclasses.replace(setup, config=config), {}, None, None
            Runner(*where, attempt=0, lap=lambda: None)  # type: ignore[arg-type,return-value]
    assert meters == ["cpu", ""]


def test_no_recorded_time_includes_the_compilation_of_a_graph(
    measured: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A graph is compiled for every new width of a call, here in 100 s each."""
    clocks: list[FakeClock] = []
    widths: set[int] = set()
    forward, prepare = TableModel.forward, Runner.prepare

    def compiling(model: TableModel, calls: Any) -> Any:
        width = max(call.num_rows for call in calls)
        if width not in widths:
            widths.add(width)
            clocks[-1].advance(100.0)
        return forward(model, calls)

    def unprepared(runner: Runner, blocks: Any) -> None:
        prepare(runner, blocks)
        widths.clear()  # what the warm-up compiled, too, is new to the timed pass

    monkeypatch.setattr(FakeClock, "__init__", _remembering(FakeClock.__init__, clocks))
    monkeypatch.setattr(TableModel, "forward", compiling)
    monkeypatch.setattr(TableModel, "num_graphs", property(lambda _: len(widths)), raising=False)
    monkeypatch.setattr(Runner, "prepare", unprepared)
    records, setup, _ = measured()
    assert {(r.ttft_s, r.total_s) for r in records} == {(0.5, 1.0)}
    assert len({(r.decoder, r.prompt, r.repeat) for r in records}) == len(records)
    run = load_run(tmp_path)
    told = judge(run)
    timed = [line for line in run.events if line["event"] == "compiled"]
    assert {line["cell"] for line in timed} <= set(setup.arms)
    assert sum(line["seconds"] >= 100.0 for line in timed) == len(timed) > 0
    # the target and the draft of spec count the same widths here
    assert told.num_graphs is not None
    assert told.num_graphs >= len(widths)


def test_answers_that_keep_needing_new_graphs_end_the_run_with_one_line(
    measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU keeps a limited number of graphs, so that an answer may need more than there can be."""
    made = iter(range(10**9))
    counted = property(lambda _: next(made))
    monkeypatch.setattr(TableModel, "num_graphs", counted, raising=False)
    with pytest.raises(BenchError, match="needs more graphs than a GPU keeps; lower --b") as raised:
        measured()
    assert raised.value.exit_code == 1


def test_a_run_without_compilation_has_no_number_of_graphs_and_no_compile_time(
    measured: Any, tmp_path: Path
) -> None:
    measured()
    told = judge(load_run(tmp_path))
    assert (told.num_graphs, told.compile_s) == (None, None)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("joules", [3.0, None])
def test_energy_is_read_around_every_timed_region_and_split_evenly_within_a_group(
    measured: Any, monkeypatch: pytest.MonkeyPatch, joules: float | None, batch_size: int
) -> None:
    class Meter:
        """A device that takes some joules in a timed region, and 100 before it."""

        laps = 0

        def __init__(self, device: str) -> None:
            assert device == "cpu"

        def lap(self) -> float | None:
            self.laps += 1
            return joules if self.laps % 2 == 0 else 100.0

    monkeypatch.setattr("bench.measure.timing.EnergyMeter", Meter)
    records = measured(batch_size=batch_size)[0]
    groups = Counter((r.block, r.decoder) for r in records)
    for record in records:
        size = groups[record.block, record.decoder]
        assert record.energy_j == (joules and joules / size)
    assert max(groups.values()) == (1 if batch_size == 1 else 4)
