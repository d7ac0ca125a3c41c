"""Shapes with random weights: counters of scripted runs, lines that survive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.extras.cost import bare
from bench.extras.cost.scripted import Scripted
from bench.extras.gpu_summary import read_lines
from bench.records.invariants import broken_invariants
from decoders.core.device import Switches, switches
from decoders.core.engine.forward import forward
from decoders.core.types import Generation, StepEvent
from tests.answer_records import record_of
from tests.fake_clock import FakeClock

ROOT = Path(__file__).parents[4]
CONTEXT, TOKENS = 8, 24


@pytest.fixture(scope="module")
def bench() -> bare.Bench:
    made = bare.Bench(
        shape="zoo",
        device=torch.device("cpu"),
        dtype=torch.float32,
        contexts=(CONTEXT,),
        batches=(1, 2),
        ks=(4,),
        chances=(1.0,),
        num_tokens=TOKENS,
        compile=False,
    )
    made.attach()
    return made


def test_a_gpu_is_made_ready_as_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ready(Exception):
        """What follows needs the GPU."""

    def opened(_: str) -> None:
        raise Ready

    device, seen = torch.device("cuda", 1), list[Any]()
    monkeypatch.setattr(torch.cuda, "set_device", lambda each: seen.append(("current", each)))
    monkeypatch.setattr(bare, "leave_out_cudnn", lambda each: seen.append(("cudnn", each)))
    monkeypatch.setattr("bench.machine.clock.Clock.for_device", opened)
    with pytest.raises(Ready):
        bare.Bench(
            shape="zoo",
            device=device,
            dtype=torch.bfloat16,
            contexts=(8,),
            batches=(1,),
            ks=(4,),
            chances=(0.8,),
            num_tokens=4,
            compile=True,
        )
    assert seen == [("current", device), ("cudnn", device)]


@pytest.mark.slow
@pytest.mark.parametrize("name", bare.SPECS)
def test_a_scripted_decoder_makes_the_calls_of_its_drafts(bench: bare.Bench, name: str) -> None:
    spec = bare.SPECS[name].format(k=4, slots=5)
    for chance, stand in ((1.0, 4), (0.0, 0)):
        timing = bench.time(spec, CONTEXT, 1, reading=Scripted([chance]))
        (answer,) = timing.answers
        for step in answer.steps[2:4]:  # as the first has the slots of the prompt
            own = 1 + (name == "ptp")  # the call that proposes gives a token too
            assert (step.drafted, step.accepted) == (4, stand)
            assert (len(step.tokens), step.target_calls) == (stand + own, own)
            assert step.draft_calls == {"spec": 4, "ptp": 0, "eagle": 4}[name]
        assert timing.tokens == TOKENS
        record = record_of(name, answer, num_prompt_tokens=CONTEXT, ttft_s=1.0, total_s=2.0)
        assert broken_invariants(record, TOKENS + 1) == ()


@pytest.mark.slow
def test_every_decoder_k_and_chance_has_a_line_with_its_speed_up(bench: bare.Bench) -> None:
    lines = [line for line in bare.time_scripted(bench) if line["sequences"] == 1]
    assert [(line["decoder"], line["k"], line["chance"]) for line in lines] == [
        (name, 4, 1.0) for name in bare.SPECS
    ]
    for line in lines:
        assert line["speedup"] > 0
        assert line["tokens_per_step"] >= 4
        assert line["energy_per_token_j"] != 0


def answers(*emitted: tuple[int, ...]) -> list[Generation]:
    work: dict[str, Any] = {
        "drafted": 0,
        "accepted": 0,
        "draft_calls": 0,
        "draft_rows": 0,
        "target_calls": 1,
    }
    return [
        Generation(
            tokens=(1,) * sum(each),
            steps=tuple(StepEvent(tokens=(1,) * num, target_rows=num, **work) for num in each),
            stop="length",
        )
        for each in emitted
    ]


def test_a_timing_has_the_steps_of_its_longest_answer_and_the_tokens_of_all_answers() -> None:
    timing = bare.Timing(answers((1, 2, 2), (1, 1, 1, 1, 1)), 8.0, None)
    assert (timing.num_steps, timing.tokens, timing.token_s) == (4, 8, 1.0)


def test_timing_starts_after_every_sequence_of_a_batch_has_its_first_token(
    bench: bare.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(bench, "clock", clock)

    def passes(calls: Any) -> Any:
        clock.advance(1.0)
        return forward(calls)

    def glance() -> float:
        clock.advance(100.0)
        return clock.time_s

    def lap() -> None:
        clock.advance(10.0)

    monkeypatch.setattr(bench, "forward", passes)
    monkeypatch.setattr(clock, "glance", glance)
    monkeypatch.setattr(bench, "meter", SimpleNamespace(lap=lap))
    for batch in (1, 3):
        timing = bench.once("ar", bench.models, CONTEXT, batch)
        assert timing.seconds == TOKENS, "one pass for each token of all sequences at once"


def test_the_numbers_of_a_line_are_computed_from_its_timings(
    bench: bare.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = {
        "ar": bare.Timing(answers((1, 1, 1, 1, 1)), 8.0, None),
        "spec": bare.Timing(answers((1, 3, 1), (1, 2, 2)), 4.0, 16.0),
    }
    monkeypatch.setattr(bench, "attach", lambda: None)
    monkeypatch.setattr(
        bench, "time", lambda spec, *_, **__: mixed["ar" if spec == "ar" else "spec"]
    )
    line = next(iter(bare.time_scripted(bench)))
    assert (line["tokens_per_step"], line["target_calls"]) == (2.0, 4)
    assert (line["speedup"], line["tokens_per_s"]) == (4.0, 2.0)
    assert line["energy_per_token_j"] == 2.0


def test_numerics_are_compared_with_answers_of_the_same_numerics(
    bench: bare.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, other = answers((1, 1))[0], answers((1, 1, 1))[0]
    plain = bench.models

    def timed(spec: str, _: int, batch: int, *, models: Any = None) -> bare.Timing:
        fast = models in (None, plain)
        first = other if fast and (batch > 1 or spec != "ar") else same
        return bare.Timing([first, other], 3.0 if fast else 6.0, None)

    monkeypatch.setattr(bench, "time", timed)
    fast, tiled = bare.time_invariant(bench)
    assert [*fast["identical"].values()] == [False, False]
    assert [*tiled["identical"].values()] == [True, True]
    assert (fast["relative_time"], tiled["relative_time"]) == (1.0, 2.0)


@pytest.mark.slow
def test_a_profile_lists_the_kernels_of_a_token_slowest_first(bench: bare.Bench) -> None:
    lines = list(bare.profile_ar(bench))
    times = [line["us_per_token"] for line in lines]
    assert times == sorted(times, reverse=True)
    layers = bench.models.target.module.config.num_hidden_layers  # type: ignore[attr-defined]
    of_mlps = next(line for line in lines if line["kernel"] == "aten::silu")
    assert of_mlps["per_token"] == pytest.approx(layers, rel=0.01)  # one call a token


@pytest.mark.slow
def test_each_way_to_compute_calls_is_timed_with_its_own_graphs() -> None:
    sizes: dict[str, Any] = {"contexts": (CONTEXT,), "batches": (1, 2), "ks": (), "chances": ()}
    on_cpu: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
    bench = bare.Bench(shape="zoo", **on_cpu, **sizes, num_tokens=4, compile=True)
    lines = list(bare.time_ways(bench))
    names = [(way, batch) for way in bare.WAYS for batch in (1, 2)]
    assert [(line["way"], line["sequences"]) for line in lines] == names
    assert all(line["same_answers"] and line["step_s"] > 0 < line["replay_s"] for line in lines)
    assert switches == Switches()


@pytest.mark.slow
def test_a_part_that_is_killed_at_any_second_keeps_its_whole_lines(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from bench.extras.cost.bare import write_lines\n"
        "def lines():\n    n = 0\n    while 1:\n        n += 1; yield {'n': n, 'x': 'y' * 5000}\n"
        "write_lines(lines(), Path(sys.argv[1]))"
    )
    for seconds in (0.0, 0.05, 0.13):
        path = tmp_path / f"{seconds}.jsonl"
        command = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            while not path.exists() or not path.stat().st_size:
                time.sleep(0.01)
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGKILL)
        found = read_lines(path)
        assert [line["n"] for line in found] == list(range(1, len(found) + 1))
        assert found
    with path.open("a", encoding="utf-8") as file:
        file.write('{"n": ')  # torn
    assert read_lines(path) == found


@pytest.mark.slow
def test_row_invariant_numerics_give_equal_answers(bench: bare.Bench) -> None:
    fast, tiled = bare.time_invariant(bench)
    assert (fast["numerics"], tiled["numerics"]) == ("fast", "invariant")
    assert all(tiled["identical"].values())
    assert tiled["relative_time"] > 0


def test_the_command_shows_and_keeps_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "this GPU runs torch's kernels"
    monkeypatch.setattr(bare, "Bench", lambda **_: SimpleNamespace(notes=[note]))
    monkeypatch.setitem(bare.PARTS, "ar", lambda _: iter([{"context": 1}]))
    path = tmp_path / "ar.jsonl"
    assert bare.main(["ar", "--small", "--output", str(path)]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert read_lines(path) == shown
    assert shown[0]["machine"]["torch"] == torch.__version__
    assert shown[0]["machine"]["notes"] == note
    assert shown[1] == {"context": 1}
