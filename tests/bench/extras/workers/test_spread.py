"""A run spread over workers is the run of one process, whoever dies meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.extras.workers import spread as spreading
from bench.extras.workers.crew import Hello, ScorePrompts, TimeBlock
from bench.extras.workers.spread import SharedAttempt, open_executor, slot_cores
from bench.machine.usage import Load
from bench.records.plan import write_status
from bench.records.run_folder import Run, load_run
from bench.records.samples import ERRORS, SAMPLES, read_phases
from bench.settings.config import load_config
from bench.settings.setting import Kind, WorkerConfig, parse_workers
from bench.stats.validity import VALID
from tests.bench.extras.workers.in_process import InProcess
from tests.conftest import RecordedProgress
from tests.worker_tables import open_here, open_slowly

pytestmark = pytest.mark.usefixtures("quick")
TWO = WorkerConfig(workers=2)
Key = tuple[str, str, str, int]


def config(**values: Any) -> Any:
    plain = {"model": "t", "draft": "t", "decoders": "spec", "tasks": "qa,math_reasoning"}
    sizes = {"limit": 4, "quality_limit": 3, "repeats": 2, "max_new_tokens": 12, "threads": 1}
    return load_config(None, plain | sizes | values)


def answers(run: Run) -> dict[Key, Any]:
    """What was answered and counted, by what was asked; nothing is there twice."""
    found: dict[Key, Any] = {
        (r.kind, r.decoder, r.prompt, r.repeat): (r.tokens, r.text, r.seed, r.scores, r.order)
        for r in run.records
    }
    assert len(found) == len(run.records)
    return found


@pytest.fixture
def alone(tmp_path: Path) -> Run:
    ended = bench_run.run(config(), tmp_path / "alone", RecordedProgress(), open_here, report=None)
    return load_run(ended.run_dir)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the next runs use an `InProcess` executor."""

    def use(*arguments: Any, **values: Any) -> InProcess:
        executor = InProcess(*arguments, **values)
        monkeypatch.setattr(spreading, "open_executor", lambda *_: executor)
        return executor

    return use


def test_two_workers_give_the_answers_of_one_process(
    alone: Run, in_process: Any, tmp_path: Path
) -> None:
    executor, shown = in_process(), RecordedProgress()
    ended = bench_run.run(config(), tmp_path / "two", shown, open_here, spread=TWO, report=None)
    run = load_run(ended.run_dir)
    assert ended.exit_code == Exit.DONE
    assert run.status.verdict == VALID
    assert answers(run) == answers(alone)
    assert [b.order for b in run.plan.blocks] == [b.order for b in alone.plan.blocks]
    assert {r.worker for r in run.records} == {"w0", "w1"}
    assert {r.worker for r in alone.records} == {None}
    assert all(r.node for r in run.records)
    assert executor.stopped == 1
    steps = [r.steps and (r.steps.emitted, r.steps.accepted) for r in alone.records]
    assert Counter(steps) == Counter(
        r.steps and (r.steps.emitted, r.steps.accepted) for r in run.records
    )
    asked = {(a.decoder, a.prompts, a.repeat) for a in read_phases(run.path)}
    assert asked == {(a.decoder, a.prompts, a.repeat) for a in read_phases(alone.path)}


def test_each_block_is_measured_by_one_worker_and_its_peers_do_not_count_as_load(
    in_process: Any, tmp_path: Path
) -> None:
    executor = in_process()
    ended = bench_run.run(
        config(), tmp_path, RecordedProgress(), open_here, spread=TWO, report=None
    )
    run = load_run(ended.run_dir)
    for block in run.plan.blocks:
        assert len({r.worker for r in run.records if r.block == block.block}) == 1
    assert all(work.peers == (os.getpid(), os.getpid()) for work in executor.works[2:])
    loads = [event for event in run.events if event["event"] == "load"]
    assert {event["worker"] for event in loads} == {"w0", "w1"}
    joined = [event for event in run.events if event["event"] == "worker"]
    assert [event["worker"] for event in joined] == ["w0", "w1"]
    kinds = [type(work.job) for work in executor.works]
    assert kinds == sorted(kinds, key=[TimeBlock, ScorePrompts].index), "scoring beside timing"


@pytest.mark.parametrize(("device", "gpus"), [("cuda", [0, 1]), ("cuda:1", [None, None])])
def test_workers_share_out_gpus_unless_the_run_names_one(
    device: str, gpus: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model placed on several GPUs names the first one, and each worker needs all of them."""
    key = SimpleNamespace(comparability_key=None)
    monkeypatch.setattr(spreading, "read_environment", lambda _: key)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    setup = SimpleNamespace(config=config(device=device), on_gpu=True)
    attempt: Any = SimpleNamespace(setup=setup, plan=SimpleNamespace(identity=None))
    vars(attempt).update(run_dir=None, opener=None, prompts={}, left=(), number=0)
    hello = Hello(node="n", pid=1, cores=())
    openings = [SharedAttempt._opening(attempt, 2, "w", hello, slot) for slot in range(2)]
    assert [opening.gpu for opening in openings] == gpus


@pytest.mark.slow
@pytest.mark.parametrize("num_runs", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_runs_whose_workers_die_are_complete_without_lost_or_duplicate_answers(
    alone: Run, in_process: Any, tmp_path: Path, num_runs: int
) -> None:
    whole, num_dead = answers(alone), 0
    for trial in range(num_runs):
        draw = random.Random(trial)
        dead: list[str] = []

        def dies(worker: str, _: int, draw: Any = draw, dead: list[str] = dead) -> bool:
            if len(dead) < 2 and draw.randrange(4) == 0:
                dead.append(worker)
                return True
            return False

        in_process(dies)
        shown = RecordedProgress()
        spread = WorkerConfig(workers=draw.choice([2, 3]))
        ended = bench_run.run(
            config(), tmp_path / str(trial), shown, open_here, spread=spread, report=None
        )
        run = load_run(ended.run_dir)
        assert answers(run) == whole
        assert run.status.verdict == VALID
        lost = [event["worker"] for event in run.events if event["event"] == "lost"]
        assert lost == dead
        assert sum("is gone" in note for note in shown.notes) == len(dead)
        num_dead += len(dead)
    assert num_dead > num_runs


def test_a_dead_worker_is_named_with_its_block_and_another_worker_measures_that_block(
    in_process: Any, tmp_path: Path
) -> None:
    in_process(lambda worker, number: (worker, number) == ("w1", 2))
    shown = RecordedProgress()
    ended = bench_run.run(config(), tmp_path, shown, open_here, spread=TWO, report=None)
    run = load_run(ended.run_dir)
    (lost,) = [event for event in run.events if event["event"] == "lost"]
    assert (lost["worker"], lost["attempt"]) == ("w1", 0)
    assert f"worker w1 is gone; block {lost['block']} runs again elsewhere" in shown.notes
    measured = {r.worker for r in run.records if r.block == lost["block"]}
    assert len(measured) == 1
    assert "w1" not in measured
    assert run.status.verdict == VALID


def test_a_block_that_kills_every_worker_ends_the_run_and_is_named(
    in_process: Any, tmp_path: Path
) -> None:
    in_process(lambda worker, number: True)
    one = WorkerConfig(workers=1, kind="ray")
    with pytest.raises(
        BenchError, match="3 workers died during block 0, most recently w"
    ) as raised:
        bench_run.run(config(), tmp_path, RecordedProgress(), open_here, spread=one, report=None)
    assert raised.value.exit_code == Exit.FAILED


@pytest.mark.slow
def test_an_interrupted_run_resumes_with_more_workers_and_then_without_workers(
    alone: Run, in_process: Any, tmp_path: Path
) -> None:
    stopping = RecordedProgress(stop_at=14)
    ended = bench_run.run(config(), tmp_path / "run", stopping, open_here, report=None)
    assert ended.exit_code == Exit.INTERRUPTED
    in_process()
    shown = RecordedProgress(stop_at=4)
    ended = bench_run.resume(
        ended.run_dir, shown, open_here, spread=WorkerConfig(workers=3), report=None
    )
    assert ended.exit_code == Exit.INTERRUPTED
    assert (
        bench_run.resume(ended.run_dir, RecordedProgress(), open_here, report=None).exit_code
        == Exit.DONE
    )
    run = load_run(ended.run_dir)
    assert answers(run) == answers(alone)
    assert len({r.worker for r in run.records}) > 2
    assert {r.attempt for r in run.records} == {0, 1, 2}


def test_a_failing_decoder_leaves_its_errors_and_tracebacks(
    in_process: Any, tmp_path: Path, decoder_file: Any
) -> None:
    in_process()
    spec = decoder_file("raise ValueError('no')\nyield")
    chosen = config(decoders=spec, draft=None)
    ended = bench_run.run(
        chosen, tmp_path / "r", RecordedProgress(), open_here, spread=TWO, report=None
    )
    run = load_run(ended.run_dir)
    assert ended.exit_code == Exit.FAILED
    failed = [r for r in run.records if r.error]
    assert {r.decoder.rpartition(":")[2] for r in failed} == {"Mine@mine"}
    assert {r.error_at for r in failed} == {"mine.py:11"}
    assert "ValueError: no" in (run.path / ERRORS).read_text()


FAILS_AT_TIMES = """
result = yield request.target.call(request.prompt_ids)
if sum(request.prompt_ids) % 2:
    raise ValueError("no")
while True:
    yield Emit(tokens=result.picks)
    result = yield request.target.call(result.picks)
"""


def phases_of(run: Run) -> set[tuple[str, tuple[str, ...], int | None]]:
    return {(a.decoder, a.prompts, a.repeat) for a in read_phases(run.path)}


def test_a_decoder_that_failed_on_one_prompt_has_its_phases_on_others(
    in_process: Any, tmp_path: Path, decoder_file: Any
) -> None:
    """One worker does all blocks."""
    spec = decoder_file(FAILS_AT_TIMES)
    chosen = config(decoders=spec, draft=None)
    alone = bench_run.run(chosen, tmp_path / "alone", RecordedProgress(), open_here, report=None)
    expected = phases_of(load_run(alone.run_dir))
    asked = {decoder for decoder, *_ in expected}
    mine = [decoder for decoder in asked if "mine" in decoder]
    assert len(mine) == 1
    assert 0 < sum(d == mine[0] for d, *_ in expected) < sum(d == "ar" for d, *_ in expected)
    in_process()
    one = WorkerConfig(workers=1, kind="ray")
    ended = bench_run.run(
        chosen, tmp_path / "one", RecordedProgress(), open_here, spread=one, report=None
    )
    assert phases_of(load_run(ended.run_dir)) == expected


def test_a_resumed_run_scores_only_the_missing_decoders_of_a_partly_scored_prompt(
    alone: Run, in_process: Any
) -> None:
    whole = answers(alone)
    lines = (alone.path / SAMPLES).read_text(encoding="utf-8").splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if '"kind":"quality"' in line)
    (alone.path / SAMPLES).write_text("".join(lines[:last] + lines[last + 1 :]), encoding="utf-8")
    write_status(alone.path, replace(alone.status, status="interrupted"))
    in_process()
    shown = RecordedProgress()
    ended = bench_run.resume(alone.path, shown, open_here, spread=TWO, report=None)
    assert ended.exit_code == Exit.DONE
    num = sum(kind == "quality" for kind, *_ in whole)
    assert ("quality", num, num - 1) in shown.phases
    assert "1 worker(s) open the models" in shown.notes, "as there is one job"
    resumed = load_run(alone.path)
    assert answers(resumed) == whole
    assert {r.worker for r in resumed.records if r.attempt == 1} == {"r1w0"}, "no name of before"


def test_a_workers_activity_before_a_block_is_not_counted_as_load_of_the_block(
    in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core is busy whenever a worker is told of its job, and at no other time."""

    class Watch:
        def __init__(self, _: object) -> None:
            self.busy = 0.0

        def ignore(self, _: object) -> None:
            self.busy += 1

        def lap(self) -> Load:
            load = Load(other_cores=self.busy)
            self.busy = 0.0
            return load

    monkeypatch.setattr("bench.machine.usage.LoadWatch", Watch)
    in_process()
    ended = bench_run.run(
        config(), tmp_path, RecordedProgress(), open_here, spread=TWO, report=None
    )
    events = [e for e in load_run(ended.run_dir).events if e["event"] == "load"]
    assert events
    assert {event["other_cores"] for event in events} == {0.0}


def test_a_worker_on_another_machine_is_refused_with_a_hint_at_bench_merge(
    in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process()
    monkeypatch.setattr("bench.machine.env._cpu_model", iter(["one", "another"]).__next__)
    with pytest.raises(BenchError, match=r"worker w0: node .* differs from .*bench merge") as r:
        bench_run.run(config(), tmp_path, RecordedProgress(), open_here, spread=TWO, report=None)
    assert r.value.exit_code == Exit.UNAVAILABLE


def test_worker_slots_of_one_node_have_separate_cores() -> None:
    assert [slot_cores(place, 2, [3, 4, 5, 6, 9]) for place in range(3)] == [(3, 4), (5, 6), (3, 4)]
    assert slot_cores(0, 1, ()) == ()
    with pytest.raises(BenchError, match="needs 4 cores and its node has 2"):
        slot_cores(0, 4, [0, 1])


@pytest.mark.parametrize(
    ("spread", "says"),
    [
        (lambda: parse_workers("local", 0, None), "--workers 0 is not allowed; use 1 or more"),
        (lambda: parse_workers("ray", 1, ["address"]), "'address' is not KEY=VALUE"),
        (lambda: parse_workers("local", 2, ["a=b"]), "--executor local takes no options"),
        (lambda: open_executor(WorkerConfig(workers=99), 1), "at most --workers"),
    ],
)
def test_invalid_worker_options_are_refused_in_one_line(spread: Any, says: str) -> None:
    with pytest.raises(BenchError, match=says) as raised:
        spread()
    assert raised.value.exit_code == Exit.USAGE


@pytest.mark.parametrize("kind", ["ray", "submitit"])
def test_a_missing_executor_package_is_reported_with_the_command_that_installs_it(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(BenchError, match=rf"pip install 'decoding-bench\[{kind}\]'") as raised:
        open_executor(WorkerConfig(kind=kind, workers=2), 1)
    assert raised.value.exit_code == Exit.UNAVAILABLE


# ---------------------------------------------------------------- processes

needs_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two workers are pinned to a core each"
)


def local_workers() -> list[psutil.Process]:
    """The workers that this process started; one that has ended says nothing of itself."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "bench.extras.workers.local" in child.cmdline():
                found.append(child)
    return found


class Killing(RecordedProgress):
    """Kills one worker, with SIGKILL, when two have answered."""

    killed = 0

    def step(self, detail: str = "", num: int = 1) -> None:
        super().step(detail, num)
        workers = local_workers()
        if len(set(self.details)) > 1 and not self.killed:
            self.killed = workers[0].pid
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.slow
@needs_cores
def test_a_worker_killed_during_a_block_loses_only_that_block(tmp_path: Path) -> None:
    alone = bench_run.run(
        config(repeats=6), tmp_path / "alone", RecordedProgress(), open_here, report=None
    )
    shown = Killing()
    ended = bench_run.run(
        config(repeats=6), tmp_path / "killed", shown, open_slowly, spread=TWO, report=None
    )
    run = load_run(ended.run_dir)
    assert shown.killed
    assert answers(run) == answers(load_run(alone.run_dir))
    assert run.status.verdict == VALID
    assert len([event for event in run.events if event["event"] == "lost"]) == 1
    joined = {e["worker"]: e["cores"] for e in run.events if e["event"] == "worker"}
    assert {"w0", "w1"} <= set(joined)
    assert sorted(joined["w0"] + joined["w1"]) == sorted(os.sched_getaffinity(0))[:2]
    assert not local_workers()
