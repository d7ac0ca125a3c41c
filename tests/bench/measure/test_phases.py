"""The second pass: its phases add up, it disturbs nothing, what is read off it is worked out."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench import runs as bench_run
from bench.errors import BenchError
from bench.extras.cost.explain import explain, print_explanation
from bench.extras.sections.durations import (
    Split,
    decompositions,
    instrument_bias_note,
    split,
    splits,
)
from bench.measure.phases import PhaseClock, chosen_blocks, measure_phases, phased_scheduler
from bench.plan.make import make_plan, order_blocks
from bench.plan.select import choose_decoders
from bench.records.plan import Plan, PlannedPrompt, select_part
from bench.records.record import SampleRecord
from bench.records.run_folder import load_run
from bench.records.samples import PHASES, PHASES_FILE, PhasedAnswer, read_phases
from bench.report.findings import Findings
from bench.report.write import write_report
from bench.stats.counters import timed_again
from decoders.core.decoder import SelfDriven
from decoders.core.engine.forward import forward
from decoders.core.engine.reads import readouts, token_reads
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.outputs import Chain
from decoders.core.sampling import Uniforms
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.idlm import Refinement
from tests.bench.conftest import tables_of
from tests.core.hf.test_chains import opened
from tests.tiny_models import fresh

pytestmark = pytest.mark.usefixtures("quick")
Make = Callable[..., SampleRecord]
Write = Callable[..., Path]


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks that tick alike give speed-ups of exactly 1, of which no figure is drawn."""


class Ticks:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


def test_time_is_charged_to_the_phase_it_passes_in() -> None:
    now = Ticks()
    clock = PhaseClock(now)
    clock.start()
    now.time_s = 1.0
    with clock.within("verify"):
        now.time_s = 3.0
        with clock.within("sampling"):
            now.time_s = 3.5
    now.time_s = 5.0
    clock.switch("scheduler")
    spent = {phase: s for phase, s in clock.seconds.items() if s}
    assert spent == {"scheduler": 2.5, "verify": 2.0, "sampling": 0.5}


def test_time_before_the_clock_starts_is_in_no_phase() -> None:
    now = Ticks()
    now.time_s = 100.0
    clock = PhaseClock(now)
    with clock.within("verify"):
        now.time_s = 107.0
    clock.start()
    now.time_s = 108.0
    clock.switch("scheduler")
    assert sum(clock.seconds.values()) == clock.seconds["scheduler"] == 1.0


def test_all_time_before_the_first_token_counts_as_prefill() -> None:
    now = Ticks()
    clock = PhaseClock(now)
    clock.start()
    now.time_s = 1.0
    clock.switch("verify")
    now.time_s = 3.0
    clock.emitted()
    now.time_s = 7.0
    clock.switch("scheduler")
    assert clock.seconds["prefill"] == 3.0
    assert clock.seconds["verify"] == 4.0


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("cell", ["ar", "spec"])
def test_the_scheduler_that_measures_phases_gives_the_same_answers_as_the_plain_one(
    small: Any, opener: Any, progress: Any, cell: str, batch_size: int
) -> None:
    setup = opener(choose_decoders(small(), progress().note))
    _, prompts = make_plan(setup, "test", progress())
    ids = [prompt.ids for prompt in prompts.values()]
    arm, clock = setup.arm(cell), PhaseClock(setup.clock.now)
    plain = Scheduler(arm.decoder, arm.models, setup.sampling, batch_size).run(ids)
    clock.start()
    assert phased_scheduler(arm, setup.sampling, batch_size, clock).run(ids) == plain
    assert clock.seconds["verify"] > 0
    assert (clock.seconds["draft"] > 0) == (cell == "spec")
    assert clock.seconds["other"] > 0
    assert clock.seconds["prefill"] > 0
    assert clock.seconds["sampling"] > 0


def test_every_refinement_pass_is_timed_as_prefill_verification_or_drafting(
    small: Any, opener: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refinement pass that feeds no token only proposes; one that commits tokens verifies."""
    setup = opener(choose_decoders(small(decoders="ar"), progress().note))
    _, prompts = make_plan(setup, "test", progress())
    setup.models.target.attach("refine", 0.3, "refine")
    decoder = Refinement(block=5, commit="quota", max_passes=3, prefix="block")
    arm = dataclasses.replace(setup.arm("ar"), decoder=decoder)
    now, fed = Ticks(), {"prefill": 0, "verify": 0, "draft": 0}
    forward = TableModel.forward

    def running(model: TableModel, calls: Any) -> Any:
        """A pass of 10 s for a prompt, of 100 s for tokens, of 1 s for slots alone."""
        (call,) = calls
        kind = "draft" if not call.tokens else "verify" if call.session.length else "prefill"
        fed[kind] += 1
        now.time_s += {"prefill": 10.0, "verify": 100.0, "draft": 1.0}[kind]
        return forward(model, calls)

    monkeypatch.setattr(TableModel, "forward", running)
    clock = PhaseClock(now)
    clock.start()
    phased_scheduler(arm, setup.sampling, 1, clock).run([next(iter(prompts.values())).ids])
    clock.switch("scheduler")
    assert min(fed.values()) > 0
    assert clock.seconds["draft"] == fed["draft"]
    assert clock.seconds["verify"] == 100 * fed["verify"]
    assert clock.seconds["prefill"] == 10 * fed["prefill"]


def test_padding_rows_of_merged_calls_are_counted_separately() -> None:
    model, clock = HFModel(fresh("gpt2")), PhaseClock(Ticks())
    model.reserve(3, 20)
    sessions = [model.open() for _ in range(3)]
    for tokens in ([[5, 6, 7, 8], [9], [10, 11]], [[12], [13], [14]]):
        calls = [session.call(each) for session, each in zip(sessions, tokens, strict=True)]
        with clock.counting(calls):
            model.forward(calls)
    assert (clock.rows, clock.padded_rows) == (7 + 3, 3 + 2)


def test_a_chain_of_calls_in_one_graph_counts_the_rows_of_every_call() -> None:
    _, sessions = opened("llama-gqa", (5, 6, 7), (8, 9))
    clock, before = PhaseClock(Ticks()), sum(session.rows for session in sessions)
    calls = [session.call([3], output="draws", chain=Chain(3, 3)) for session in sessions]
    parts = [part for call in calls for part in readouts(call, Uniforms(7, [1]), 0)]
    with clock.counting(calls):
        forward(calls, token_reads(parts, Sampling()))
    assert clock.rows == sum(session.rows for session in sessions) - before == 2 * 4


def test_the_table_has_a_column_of_padding_where_answers_ran_in_groups() -> None:
    shares = dict.fromkeys(PHASES, 1 / len(PHASES))

    def answer(decoder: str, prompts: tuple[str, ...], rows: int, padded: int) -> PhasedAnswer:
        counts = {"emitted": 4, "later_emitted": 3, "later_steps": 3}
        return PhasedAnswer(
            decoder=decoder,
            prompts=prompts,
            seconds=shares,
            repeat=0,
            rows=rows,
            padded_rows=padded,
            **counts,
        )

    alone = splits([answer("ar", ("a#0",), 9, 0)], [], ["ar"])
    assert alone[0].padding is None
    table = split(alone)
    assert table is not None
    assert "padding %" not in table.headings
    pair = ("a#0", "b#0")
    groups = [answer("ar", pair, 30, 10), answer("ar", pair, 60, 0), answer("ptp", pair, 0, 0)]
    made = splits(groups, [], ["ar", "ptp"])
    assert [item.padding for item in made] == [0.1, None]
    table = split(made)
    assert table is not None
    column = table.headings.index("padding %")
    assert [row[column].text for row in table.rows] == ["10.0", "-"]


def test_a_decoder_that_drives_a_loop_by_itself_has_no_phases(
    small: Any, opener: Any, progress: Any
) -> None:
    setup = opener(choose_decoders(small(decoders="ar"), progress().note))
    plan, prompts = make_plan(setup, "test", progress())
    loop = dataclasses.replace(setup.arm("ar"), decoder=SelfDriven())
    setup = dataclasses.replace(setup, arms={**setup.arms, "loop": loop})
    (answer,) = measure_phases(setup, prompts, plan.blocks[0], ())
    assert answer.decoder == "ar"


def test_only_the_code_of_the_decoder_itself_is_charged_to_the_phase_other(
    small: Any, opener: Any, progress: Any, decoder_file: Callable[[str], str]
) -> None:
    now = Ticks()
    spec = decoder_file(
        "result = yield request.target.call(request.prompt_ids)\n"
        "while True:\n"
        "    request.uniforms.now.time_s += 1.0\n"
        "    yield Emit(tokens=result.picks)\n"
        "    request.uniforms.now.time_s += 2.0\n"
        "    result = yield request.target.call(result.picks)"
    )
    config = small(decoders=spec, max_new_tokens=3, fixed_length=True)
    setup = opener(choose_decoders(config, progress().note))
    _, prompts = make_plan(setup, "test", progress())
    arm = setup.arm(next(cell for cell in setup.arms if cell != "ar"))
    clock = PhaseClock(now)
    clock.start()

    class Timed(Uniforms):
        """Uniforms through which the decoder lets time pass."""

    Timed.now = now  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoders.core.engine.sequence.Uniforms", Timed)
        scheduler = phased_scheduler(arm, setup.sampling, 2, clock)  # in batches: no first token
        (answer,) = scheduler.run([next(iter(prompts.values())).ids])
    clock.switch("scheduler")
    assert isinstance(answer, Generation)
    assert len(answer.tokens) == 3
    assert {phase: s for phase, s in clock.seconds.items() if s} == {"other": 3 * 1.0 + 2 * 2.0}


def test_in_a_batch_passes_over_prompts_are_prefill_and_later_passes_are_verification(
    small: Any, opener: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = opener(choose_decoders(small(decoders="ar"), progress().note))
    _, prompts = make_plan(setup, "test", progress())
    now, passes = Ticks(), {True: 0, False: 0}
    forward = TableModel.forward

    def running(model: TableModel, calls: Any) -> Any:
        passes[calls[0].session.length == 0] += 1
        now.time_s += 1.0
        return forward(model, calls)

    monkeypatch.setattr(TableModel, "forward", running)
    clock = PhaseClock(now)
    clock.start()
    phased_scheduler(setup.arm("ar"), setup.sampling, 3, clock).run(
        [prompt.ids for prompt in prompts.values()]
    )
    clock.switch("scheduler")
    assert clock.seconds["prefill"] == passes[True] > 0
    assert clock.seconds["verify"] == passes[False] > 0


def test_a_failing_decoder_also_fails_in_the_second_pass(
    small: Any, opener: Any, progress: Any, decoder_file: Callable[[str], str]
) -> None:
    spec = decoder_file('raise RuntimeError("boom")\nyield')
    setup = opener(choose_decoders(small(decoders=spec), progress().note))
    _, prompts = make_plan(setup, "test", progress())
    arm = setup.arm(next(cell for cell in setup.arms if cell != "ar"))
    clock = PhaseClock(setup.clock.now)
    scheduler = phased_scheduler(arm, setup.sampling, 1, clock)
    (outcome,) = scheduler.run([next(iter(prompts.values())).ids])
    assert isinstance(outcome, RuntimeError)


@pytest.mark.usefixtures("no_report")
def test_a_run_stores_the_phases_of_a_few_prompts_and_adds_no_record(
    tmp_path: Path, small: Any, opener: Any, progress: Any
) -> None:
    with_pass = bench_run.run(
        small(phase_limit=2), tmp_path / "a", progress(), opener, report=None
    ).run_dir
    without = bench_run.run(
        small(phase_limit=0), tmp_path / "b", progress(), opener, report=None
    ).run_dir
    answers = read_phases(with_pass)
    assert {answer.decoder for answer in answers} == {"ar", "spec"}
    assert len({answer.prompts for answer in answers}) == 2
    assert all(set(answer.seconds) == set(PHASES) for answer in answers)
    for answer in answers:  # the first step gives one token
        assert answer.later_emitted == answer.emitted - 1
        assert answer.decoder != "ar" or answer.later_steps == answer.later_emitted
    assert not (without / PHASES_FILE).exists()
    records = [load_run(folder).records for folder in (with_pass, without)]
    assert [dataclasses.replace(r, total_s=None, ttft_s=None) for r in records[0]] == [
        dataclasses.replace(r, total_s=None, ttft_s=None) for r in records[1]
    ]


@pytest.mark.usefixtures("no_report")
def test_the_second_pass_repeats_an_answer_with_the_same_seed(
    tmp_path: Path, small: Any, opener: Any, progress: Any
) -> None:
    config = small(decoders="spec:verify=coupled", temperature=1.0, phase_limit=4)
    run = load_run(bench_run.run(config, tmp_path, progress(), opener, report=None).run_dir)
    pairs = [*timed_again(read_phases(run.path), run.records)]
    assert {answer.repeat for answer, _ in pairs} == {0, 1}
    for answer, (steps,) in pairs:
        assert (answer.emitted, answer.later_steps) == (sum(steps.emitted), len(steps.emitted) - 1)
    assert run.status.verdict == "VALID"


def test_an_arm_that_fails_in_the_second_pass_has_no_phases(
    small: Any, opener: Any, progress: Any, decoder_file: Callable[[str], str]
) -> None:
    """Not even those of the prompts of its block that it answered."""
    spec = decoder_file(
        "if sum(request.prompt_ids) % 2:\n"
        "    raise RuntimeError('odd')\n"
        "result = yield request.target.call(request.prompt_ids)\n"
        "while True:\n"
        "    yield Emit(tokens=result.picks)\n"
        "    result = yield request.target.call(result.picks)"
    )
    config = small(decoders=spec, batch_size=2, limit=10)
    setup = opener(choose_decoders(config, progress().note))
    plan, prompts = make_plan(setup, "test", progress())
    (block, *_) = plan.blocks
    assert {sum(prompts[name].ids) % 2 for name in block.prompts} == {0, 1}
    assert [each.decoder for each in measure_phases(setup, prompts, block, ())] == ["ar"]
    assert measure_phases(setup, prompts, block, {"ar", *setup.arms}) == [], "none is asked again"


def test_in_a_batch_no_first_token_ends_the_prefill(
    small: Any, opener: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(decoders="ar", batch_size=2, limit=10)
    clock, passes, forward = Drifting(), {True: 0, False: 0}, TableModel.forward
    setup = dataclasses.replace(opener(choose_decoders(config, progress().note)), clock=clock)
    plan, prompts = make_plan(setup, "test", progress())

    def running(model: TableModel, calls: Any) -> Any:
        passes[calls[0].session.length == 0] += 1
        clock.time_s += 1.0
        return forward(model, calls)

    monkeypatch.setattr(TableModel, "forward", running)
    (answer,) = measure_phases(setup, prompts, plan.blocks[0], ())
    assert len(answer.prompts) == 8
    assert (answer.seconds["prefill"], answer.seconds["verify"]) == (passes[True], passes[False])
    assert passes[True] > 1


class Drifting:
    """The clock of a machine on which a call takes a second at first, and ever longer."""

    def __init__(self) -> None:
        self.time_s, self.call_s = 0.0, 1.0

    def now(self) -> float:
        return self.time_s

    glance = now

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A model's `forward` that takes its time."""

        def slower(*args: Any, **named: Any) -> Any:
            self.time_s += self.call_s
            self.call_s *= 1.0005
            return forward(*args, **named)

        return slower


@pytest.mark.usefixtures("no_report")
def test_a_machine_that_gets_slower_does_not_make_the_second_pass_seem_slow(
    tmp_path: Path, small: Any, opener: Any, progress: Any
) -> None:
    clock = Drifting()

    def drifting(config: Any) -> Any:
        setup = opener(config)
        for model in (setup.models.target, setup.models.draft):
            model.forward = clock.wrap(model.forward)
        return dataclasses.replace(setup, clock=clock)

    config = small(limit=6, repeats=3, phase_limit=6, quality_limit=0, max_new_tokens=24)
    run = load_run(bench_run.run(config, tmp_path, progress(), drifting, report=None).run_dir)
    assert clock.call_s > 2  # by then every call takes twice as long and more
    found = splits(read_phases(run.path), run.records, ["ar", "spec"])
    assert [item.against_timed for item in found] == pytest.approx([1.0, 1.0], abs=0.06)
    repeats = {(answer.prompts, answer.repeat) for answer in read_phases(run.path)}
    assert sorted(repeat for _, repeat in repeats if repeat is not None) == [0, 0, 1, 1, 2, 2]


def test_blocks_for_the_second_pass_are_chosen_from_all_families_in_turn(
    small: Any, opener: Any, progress: Any
) -> None:
    setup = opener(choose_decoders(small(limit=6), progress().note))
    plan, _ = make_plan(setup, "test", progress())
    families = {prompt.prompt: prompt.family for prompt in plan.prompts}
    chosen = [families[block.prompts[0]] for block in chosen_blocks(plan, 4)]
    assert sorted(chosen) == ["math_reasoning"] * 2 + ["qa"] * 2
    assert chosen_blocks(plan, 0) == []
    assert len(chosen_blocks(plan, 100)) == 6


@pytest.mark.parametrize(("limit", "num"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (99, 3)])
def test_chosen_blocks_stay_within_the_prompt_limit_except_for_the_first_block(
    limit: int, num: int
) -> None:
    names = [(f"a{n}", f"b{n}") for n in range(3)]
    blocks = [SimpleNamespace(repeat=0, prompts=group) for group in names]
    prompts = [SimpleNamespace(prompt=name, family="qa") for group in names for name in group]
    plan: Any = SimpleNamespace(blocks=blocks, prompts=prompts)
    assert chosen_blocks(plan, limit) == blocks[:num]


def test_a_part_of_a_plan_splits_the_time_of_as_many_prompts_as_the_whole_plan() -> None:
    names = [f"a{n}#1" for n in range(8)]
    facts: Any = {"turn": 1, "family": "qa", "hash": "", "num_tokens": 1, "passes": ("timing",)}
    prompts = tuple(PlannedPrompt(prompt=name, conversation=name[:2], **facts) for name in names)
    blocks = order_blocks(names, ["ar"], repeats=3, batch_size=1, seed=0)
    plan = Plan(prompts=prompts, blocks=blocks)
    chosen = [chosen_blocks(select_part(plan, part), 2) for part in ("1/2", "2/2")]
    assert [len(each) for each in chosen] == [2, 2]
    assert len({block.prompts for each in chosen for block in each}) == 4, "no prompt twice"


def test_a_damaged_phases_file_is_reported_as_damaged(tmp_path: Path) -> None:
    assert read_phases(tmp_path) == ()
    (tmp_path / PHASES_FILE).write_text('{"answers": [{"decoder": "ar"}]}', encoding="utf-8")
    with pytest.raises(BenchError, match="is damaged"):
        read_phases(tmp_path)


# ---------------------------------------------------------------- worked out by hand


def phased(decoder: str, steps: int, emitted: int, **seconds: float) -> PhasedAnswer:
    return PhasedAnswer(
        decoder=decoder,
        prompts=("c0#1",),
        seconds=dict.fromkeys(PHASES, 0.0) | seconds,
        emitted=emitted + 1,
        later_emitted=emitted,
        later_steps=steps,
        repeat=0,
        rows=0,
        padded_rows=0,
    )


ANSWERS = (
    phased("ar", 12, 12, prefill=1.0, verify=10.0, sampling=1.0, scheduler=1.0),
    phased("spec", 4, 12, prefill=1.0, verify=4.8, draft=2.4, sampling=0.4, other=0.4),
)


def timed_records(record: Make) -> list[SampleRecord]:
    """Twelve tokens after the first: ar at 1 s each, spec at a half."""
    spec = record("spec", (1, 3, 3, 3, 3), drafted=(0, 4, 4, 4, 4), total_s=7.0, ttft_s=1.0)
    return [record("ar", (1,) * 13, total_s=13.0, ttft_s=1.0), spec]


def test_a_speedup_is_tokens_per_step_over_the_cost_of_a_step(record: Make) -> None:
    (found,) = decompositions(ANSWERS, timed_records(record), ["ar", "spec"])
    assert found.acceptance_length == 3.0
    assert (found.verify, found.draft, found.overhead) == pytest.approx((1.2, 0.6, 0.2))
    assert found.predicted == pytest.approx(3.0 / 2.0)
    assert found.measured == pytest.approx(2.0)
    assert found.residual == pytest.approx(2.0 / 1.5 - 1)


def test_shares_add_up_to_one_and_the_second_pass_is_compared_with_the_timed_answers(
    record: Make,
) -> None:
    base, spec = splits(ANSWERS, timed_records(record), ["ar", "spec"])
    assert sum(spec.shares.values()) == pytest.approx(1.0)
    assert spec.shares["draft"] == pytest.approx(2.4 / 9.0)
    assert base.against_timed == pytest.approx(1.0)
    assert spec.against_timed == pytest.approx(9.0 / 7.0)


def test_the_second_pass_is_compared_with_the_same_repeat_and_not_with_other_repeats(
    record: Make,
) -> None:
    again = [dataclasses.replace(r, repeat=1, total_s=99.0) for r in timed_records(record)]
    _, spec = splits(ANSWERS, [*timed_records(record), *again], ["ar", "spec"])
    assert spec.against_timed == pytest.approx(9.0 / 7.0)
    (found,) = decompositions(ANSWERS, [*timed_records(record), *again], ["ar", "spec"])
    assert found.measured == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("against", "said"),
    [
        ((0.74, 0.67), "was faster than the timed one for every decoder (0.67x to 0.74x)"),
        ((1.08, 1.20), "was slower than the timed one for every decoder (1.08x to 1.20x)"),
        ((1.01, 1.04), "(1.01x to 1.04x): reading the clock costs a few per cent"),
        ((1.06, 1.20), "(1.06x to 1.20x): the machine's speed changed in between"),
        ((0.90, 1.01), None),
        ((0.74,), None),
    ],
)
def test_a_second_pass_that_is_faster_or_slower_for_every_decoder_is_reported(
    against: tuple[float, ...], said: str | None
) -> None:
    shares = dict.fromkeys(PHASES, 1 / len(PHASES))
    found = [
        Split(decoder=f"d{i}", prompts=6, time_per_token_s=0.1, shares=shares, against_timed=ratio)
        for i, ratio in enumerate(against)
    ]
    lines = instrument_bias_note(found)
    assert len(lines) == (said is not None)
    table = split(found)
    assert table is not None
    assert table.headings[-1] == "time against the timed pass"
    assert said is None or said in lines[0]
    assert said is None or said in table.note


def test_times_of_prompts_that_the_pass_did_not_ask_are_left_out(record: Make) -> None:
    asked, decoders = timed_records(record), ["ar", "spec"]
    others = [dataclasses.replace(r, conversation="c9", total_s=900.0) for r in asked]
    for part in (splits, decompositions):
        assert part(ANSWERS, [*others, *asked], decoders) == part(ANSWERS, asked, decoders)


def test_without_phases_of_the_baseline_no_speedup_is_decomposed(record: Make) -> None:
    assert decompositions(ANSWERS[1:], timed_records(record), ["ar", "spec"]) == []
    assert decompositions((), [], ["ar", "spec"]) == []
    group = [dataclasses.replace(a, prompts=("c0#1", "c1#1")) for a in ANSWERS]
    assert decompositions(group, timed_records(record), ["ar", "spec"]) == []


# ---------------------------------------------------------------- in words


def explained(path: Path) -> str:
    return "\n".join(explain(Findings(load_run(path))))


def test_an_explanation_breaks_between_words_on_a_terminal_and_not_at_all_in_a_pipe(
    tmp_path: Path, record: Make
) -> None:
    findings = Findings(load_run(hand_made(tmp_path / "run", record)))
    lines = explain(findings)

    def printed(**console: Any) -> str:
        out = Console(file=io.StringIO(), width=40, color_system=None, **console)
        print_explanation(findings, out)
        return out.file.getvalue()  # type: ignore[attr-defined]

    assert printed() == "\n".join(lines) + "\n"
    shown = printed(force_terminal=True)
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.split() == " ".join(lines).split()


def test_an_explanation_has_three_short_lines_for_every_decoder(
    tmp_path: Path, record: Make
) -> None:
    out = Console(file=io.StringIO(), width=80, color_system=None, force_terminal=True)
    print_explanation(Findings(load_run(hand_made(tmp_path / "run", record))), out)
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    start = lines.index("spec: 1.86x, same tokens")
    assert lines[start + 1].startswith("  step: 3.00 tokens, costs 2.00: verifying ")
    assert [line for line in lines[start + 1 :] if line.startswith("  help: ")] == [
        "  help: all drafts accepted 2.88x, free drafting 2.53x"
    ]


def hand_made(path: Path, record: Make) -> Path:
    """A run folder of `timed_records`, one block, with `ANSWERS` as its second pass."""
    rows = [*timed_records(record)]
    rows.append(dataclasses.replace(rows[0], decoder="ar@aa"))
    promise = {"lossless": True, "comparable_to_ar": True}
    cells = [{"cell": row.decoder, **promise} for row in rows]
    block = {"block": 0, "repeat": 0, "prompts": ["c0#1"], "order": [c["cell"] for c in cells]}
    manifest = {"schema": 1, "cells": cells, "prompts": [], "blocks": [block], "skipped": []}
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (path / "run.json").write_text('{"status": "complete", "verdict": "VALID"}', encoding="utf-8")
    lines = "".join(row.to_json() + "\n" for row in rows)
    (path / "samples.jsonl").write_text(lines, encoding="utf-8")
    data = {"answers": [dataclasses.asdict(answer) for answer in ANSWERS]}
    (path / PHASES_FILE).write_text(json.dumps(data), encoding="utf-8")
    return path


def test_explain_shows_where_the_time_went_and_which_change_would_help_most(
    tmp_path: Path, record: Make
) -> None:
    text = explained(hand_made(tmp_path / "run", record))
    assert "ar: 1000.00 ms a token: 76.9 % model calls after the first" in text
    assert "step: 3.00 tokens, costs 2.00: verifying 1.20, drafting 0.60, overhead 0.20" in text
    assert "; predicts 1.50x, off by +33.3 %: noise" in text
    # 13/7 as fast; if all 4 drafts stood, 3/5 of the steps would do: 13/7 / (1 - 8/9 * 2/5)
    assert "help: all drafts accepted 2.88x, free drafting 2.53x\n" in text
    tables = tables_of(Findings(load_run(tmp_path / "run")))["time"]
    assert [table.title for table in tables] == [
        "Where the time goes",
        "What the speed-up is made of",
    ]
    (row,) = tables[1].rows
    assert [cell.text for cell in row][1:5] == ["3.00", "1.20", "0.60", "0.20"]
    assert row[-1].bold


def test_a_decoder_that_verifies_no_drafts_has_time_for_predicting_and_not_verifying(
    tmp_path: Path, record: Make
) -> None:
    path = hand_made(tmp_path / "run", record)
    rows = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    for row in rows:
        nothing = [0] * len(row["steps"]["emitted"])
        row["steps"] |= {"drafted": nothing, "accepted": nothing}
    (path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = json.loads((path / "manifest.json").read_text())
    for cell in manifest["cells"]:
        cell["lossless"] = cell["cell"].startswith("ar")
    (path / "manifest.json").write_text(json.dumps(manifest))
    text = explained(path)
    assert "spec: 1.86x, lossy\n" in text
    assert "predicting 1.20, drafting 0.60" in text
    assert "verifying" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_a_second_pass_is_explained_and_the_missing_file_is_named(
    synthetic_run: Write,
) -> None:
    path = synthetic_run(quality=0)
    text = explained(path)
    assert "This run has no second pass (phases.json)" in text
    assert "spec: " in text
    assert "  help: " not in text
    write_report(path)
    assert "What the speed-up is made of" not in (path / "report.md").read_text(encoding="utf-8")


def test_explain_says_that_a_run_without_answers_is_not_measured_yet(synthetic_run: Write) -> None:
    path = synthetic_run()
    (path / "samples.jsonl").unlink()
    assert explained(path) == "Nothing is measured yet."


def test_refilling_the_cache_of_the_previous_turn_is_in_no_phase(
    small: Any, opener: Any, progress: Any
) -> None:
    setup = opener(choose_decoders(small(), progress().note))
    _, prompts = make_plan(setup, "test", progress())
    ids, now = next(iter(prompts.values())).ids, Ticks()
    now.time_s = 1000.0
    clock = PhaseClock(now)
    scheduler = phased_scheduler(setup.arm("spec"), setup.sampling, 1, clock)
    scheduler.prefill_prefix(ids, len(ids) // 2)
    clock.start()
    now.time_s += 1.0
    scheduler.run([ids], on_emit=clock.emitted)
    clock.switch("scheduler")
    assert sum(clock.seconds.values()) == 1.0


def test_an_explanation_names_failures_and_prints_no_empty_values(
    tmp_path: Path, record: Make
) -> None:
    path = hand_made(tmp_path / "run", record)
    failed = record("dead", error="ValueError: no")
    with (path / "samples.jsonl").open("a", encoding="utf-8") as file:
        file.write(failed.to_json() + "\n")
    text = explained(path)
    assert "dead: not compared with ar, " in text
    assert ", failed on 1 answer\n" in text
    assert "-x" not in text
    findings = Findings(load_run(path))
    assert "dead failed on 1 answer and is not ranked." in findings.conclusion
