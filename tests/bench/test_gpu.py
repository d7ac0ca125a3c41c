"""`make gpu`: a step that goes wrong loses no other, budgets keep the time, a rehearsal passes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import gpu
from bench.errors import Exit, UnavailableError
from bench.gpu_summary import Step
from tests.bench.test_main import HEARD

ROOT = Path(__file__).parents[2]


def step(name, statement, *, budget_s=20.0, kind="tests", left_out=None):
    words = ("timeit", "-n", "1", "-r", "1", statement)
    return Step(name=name, kind=kind, words=words, budget_s=budget_s, left_out=left_out)


def measured(steps, folder, **more):
    said: list[str] = []
    code = gpu.measure(steps, folder, rehearsal=True, say=said.append, **more)
    written = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return code, {each["name"]: each for each in written["steps"]}, said


@pytest.fixture
def no_model(monkeypatch):
    def missing(name):
        raise UnavailableError(f"model {name!r} is not here")

    monkeypatch.setattr(gpu, "fetch", missing)


def test_without_a_gpu_it_is_one_line_and_exit_code_5(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--output", str(tmp_path)]) == 5
    assert "--rehearse" in capsys.readouterr().err.rstrip("\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_model")
def test_budgets_leave_room_in_nine_minutes(tmp_path):
    steps = gpu.make_steps(tmp_path, rehearse=False)
    assert sum(each.budget_s for each in steps) < gpu.TOTAL_S == 540
    assert all(each.budget_s > gpu._GRACE_S for each in steps)


@pytest.mark.usefixtures("no_model")
def test_a_rehearsal_has_the_same_steps_on_the_cpu(tmp_path):
    real = gpu.make_steps(tmp_path, rehearse=False)
    small = gpu.make_steps(tmp_path, rehearse=True)
    assert [(each.name, each.kind) for each in real] == [(each.name, each.kind) for each in small]
    for steps, device in ((real, "cuda"), (small, "cpu")):
        for each in steps[1:]:
            assert each.words[each.words.index("--device") + 1] == device
    assert {each.name: each.aim for each in real if each.aim} == {"llama-1b": 0.65, "qwen3-8b": 0.8}


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("rehearse", [False, True])
def test_every_command_has_options_that_exist(tmp_path, rehearse):
    from typer.main import get_command

    import cli

    commands = get_command(cli.app).commands  # type: ignore[attr-defined]
    for each in gpu.make_steps(tmp_path, rehearse=rehearse):
        if each.kind == "tests":
            continue
        bench, verb, *rest = each.words
        assert (bench, verb) == ("bench", each.kind)
        known = {name for p in commands[verb].params for name in (*p.opts, *p.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known


@pytest.mark.usefixtures("no_model")
def test_what_cannot_be_measured_is_left_out_with_its_reason(tmp_path):
    steps = {each.name: each for each in gpu.make_steps(tmp_path, rehearse=False)}
    assert steps["smollm2"].left_out == "model 'smollm2-135m' is not here"


@pytest.mark.slow
def test_a_step_that_fails_or_hangs_loses_no_other(tmp_path):
    deaf = "import signal, time; signal.signal(2, signal.SIG_IGN); print('deaf', flush=True); "
    steps = [
        step("broken", "import os; os._exit(7)"),
        step("hanging", f"{HEARD}; import time; time.sleep(60)", budget_s=4.0),
        step("deaf", deaf + "time.sleep(60)", budget_s=4.0),
        step("left", "", left_out="for a reason"),
        step("well", "pass"),
    ]
    code, ended, said = measured(steps, tmp_path, grace_s=1.0)
    assert code == Exit.FAILED
    assert {name: each["status"] for name, each in ended.items()} == {
        "broken": "failed",
        "hanging": "out of time",
        "deaf": "out of time",
        "left": "left out",
        "well": "passed",
    }
    assert ended["broken"]["exit_code"] == 7
    assert ended["hanging"]["reason"].startswith("KeyboardInterrupt")  # asked before it is killed
    assert ended["deaf"]["exit_code"] == -9
    assert 2.5 < ended["deaf"]["seconds"] < 8
    assert ended["left"]["reason"] == "for a reason"
    assert len(said) == len(steps) + 1


def test_steps_that_pass_or_are_left_out_are_exit_code_0(tmp_path):
    steps = [step("well", "pass"), step("left", "", left_out="for a reason")]
    assert measured(steps, tmp_path)[0] == Exit.DONE


@pytest.mark.parametrize("kind", ["cost", "run"])
def test_a_step_that_passes_and_leaves_nothing_has_failed(tmp_path, kind):
    code, ended, _ = measured([step("empty", "pass", kind=kind)], tmp_path)
    assert code == Exit.FAILED
    assert ended["empty"]["status"] == "failed"
    assert "folder" in ended["empty"]["reason"]
    assert str(tmp_path) not in ended["empty"]["reason"]


def test_an_interruption_keeps_what_was_measured_and_runs_no_more(tmp_path, monkeypatch):
    interrupted = [False]

    class Stopped(subprocess.Popen):
        def wait(self, timeout=None):
            if "sleep" in str(self.args) and not interrupted[0]:
                interrupted[0] = True
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Stopped)
    steps = [step("well", "pass"), step("stopped", "import time; time.sleep(60)"), step("no", "1")]
    code, ended, _ = measured(steps, tmp_path, grace_s=5.0)
    assert code == Exit.INTERRUPTED
    assert {name: each["status"] for name, each in ended.items()} == {
        "well": "passed",
        "stopped": "interrupted",
    }


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_gpu_is_this_script():
    asked = ["make", "-n", "gpu", "GPU_ARGS=--rehearse"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "-m bench.gpu --rehearse" in done.stdout


@pytest.mark.slow
def test_the_rehearsal_passes(tmp_path):
    command = [sys.executable, "-m", "bench.gpu", "--rehearse", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    text = (folder / "summary.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in text + (folder / "summary.md").read_text(encoding="utf-8")
    written = json.loads(text)
    steps = {each["name"]: each for each in written["steps"]}
    assert written["rehearsal"]
    assert written["machine"]["torch"] == torch.__version__
    assert {each["status"] for each in steps.values()} <= {"passed", "left out"}
    for name in ("llama-1b", "qwen3-8b", "zoo-cost"):
        figures = steps[name]["figures"]
        assert figures["complete"]
        assert {(c["rows"], c["sequences"]) for c in figures["calls"]} == {
            *((1, 1), (8, 1), (1, 2), (8, 2))
        }
        assert figures["one_row"]["share_of_limit"] > 0
    run = steps["zoo"]["figures"]
    assert {"ar", "spec", "ptp", "nar"} <= {row["decoder"] for row in run["decoders"]}
    assert run["ar"]["call_s"] > 0  # the run and the cost folder are of one model and machine
    assert "collected" in steps["tests"]["figures"]["last_line"]
