"""`make gpu`: a step that goes wrong loses no other, budgets keep the time, a rehearsal passes."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import torch

from bench.errors import Exit, UnavailableError
from bench.extras import gpu
from bench.extras.cost import bare
from bench.extras.gpu_summary import Step, read_lines
from tests.bench.test_main import HEARD
from tests.command_line import all_verbs

ROOT = Path(__file__).parents[4]


def step(name, statement, *, budget_s=20.0, kind="tests", reason=None):
    words = ("timeit", "-n", "1", "-r", "1", statement)
    return Step(name=name, kind=kind, words=words, budget_s=budget_s, reason=reason)


def measured(steps, folder, **more):
    said: list[str] = []
    code = gpu.measure(steps, folder, rehearsal=True, say=said.append, **more)
    written = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return code, {each["name"]: each for each in written["steps"]}, said


@pytest.fixture
def no_model(monkeypatch):
    def missing(name):
        raise UnavailableError(f"model {name!r} is not here")

    monkeypatch.setattr("bench.plan.sources.fetch", missing)


def test_a_missing_gpu_is_one_line_and_exit_code_5(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--output", str(tmp_path)]) == 5
    assert "--rehearse" in capsys.readouterr().err.rstrip("\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_model")
def test_the_budgets_of_all_steps_fit_in_the_total_time(tmp_path):
    steps = gpu.make_steps(tmp_path, rehearse=False)
    assert sum(each.budget_s for each in steps) < gpu.TOTAL_S == 640
    assert all(each.budget_s > gpu._GRACE_S for each in steps)


@pytest.mark.usefixtures("no_model")
def test_a_rehearsal_has_the_same_steps_on_the_cpu(tmp_path):
    real = gpu.make_steps(tmp_path, rehearse=False)
    small = gpu.make_steps(tmp_path, rehearse=True)
    assert [(each.name, each.kind) for each in real] == [(each.name, each.kind) for each in small]
    for steps, device in ((real, "cuda"), (small, "cpu")):
        for each in steps:
            if each.kind != "tests":
                assert each.words[each.words.index("--device") + 1] == device


@pytest.mark.usefixtures("no_model")
def test_steps_are_ordered_by_value(tmp_path):
    names = [each.name for each in gpu.make_steps(tmp_path, rehearse=False)]
    kinds = [name.partition("-")[0] for name in names]
    assert list(dict.fromkeys(kinds)) == [
        *("ar", "ways", "smollm2", "tests", "scripted", "profile", "invariant", "zoo"),
    ]


@pytest.mark.usefixtures("no_model")
def test_the_tasks_option_applies_to_the_steps_of_smollm2(tmp_path):
    steps = gpu.make_steps(tmp_path, rehearse=False, tasks="specbench=question.jsonl")
    runs = {each.name: each.words for each in steps if each.kind == "run"}
    assert {name for name, words in runs.items() if "specbench=question.jsonl" in words} == {
        *("smollm2", "smollm2-batch")
    }
    assert runs["smollm2-batch"][runs["smollm2-batch"].index("--batch-size") + 1] == "8"


def test_every_test_file_with_gpu_tests_is_listed():
    marked = {
        file.relative_to(ROOT / "tests")
        for file in (ROOT / "tests").rglob("test_*.py")
        if "@pytest.mark." + "gpu" in file.read_text(encoding="utf-8")
    }
    named = [Path(each) for each in gpu.GPU_TESTS]
    assert {each.with_name(f"test_{each.name}.py") for each in named} == marked


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("rehearse", [False, True])
def test_every_command_has_options_that_exist(tmp_path, rehearse):
    commands = all_verbs()
    for each in gpu.make_steps(tmp_path, rehearse=rehearse):
        if each.kind == "lines":
            module, *rest = each.words
            assert module == "bench.extras.cost.bare"
            with pytest.raises(SystemExit) as ended:  # it reads its options before the help
                bare.main([*rest, "--help"])
            assert ended.value.code == 0
        if each.kind != "run":
            continue
        bench, verb, *rest = each.words
        assert (bench, verb) == ("bench", each.kind)
        known = {name for p in commands[verb].params for name in (*p.opts, *p.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known


@pytest.mark.usefixtures("no_model")
def test_a_step_whose_model_is_missing_is_left_out_with_the_reason(tmp_path):
    steps = {each.name: each for each in gpu.make_steps(tmp_path, rehearse=False)}
    assert steps["smollm2"].reason == "model 'smollm2-135m' is not here"


@pytest.mark.slow
def test_a_step_that_fails_or_hangs_does_not_stop_the_remaining_steps(tmp_path):
    deaf = "import signal, time; signal.signal(2, signal.SIG_IGN); print('deaf', flush=True); "
    steps = [
        step("broken", "import os; os._exit(7)"),
        step("hanging", f"{HEARD}; import time; time.sleep(60)", budget_s=4.0),
        step("deaf", deaf + "time.sleep(60)", budget_s=4.0),
        step("left", "", reason="for a reason"),
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


def test_passed_and_left_out_steps_give_exit_code_0(tmp_path):
    steps = [step("well", "pass"), step("left", "", reason="for a reason")]
    assert measured(steps, tmp_path)[0] == Exit.DONE


@pytest.mark.parametrize("kind", ["lines", "run"])
def test_a_step_that_passes_without_leaving_a_result_has_failed(tmp_path, kind):
    code, ended, _ = measured([step("empty", "pass", kind=kind)], tmp_path)
    assert code == Exit.FAILED
    assert ended["empty"]["status"] == "failed"
    assert "folder" in ended["empty"]["reason"]
    assert str(tmp_path) not in ended["empty"]["reason"]


def test_an_interruption_keeps_finished_steps_and_starts_no_further_step(tmp_path, monkeypatch):
    interrupted = [False]

    class Stopped(subprocess.Popen):
        def wait(self, timeout=None):
            if "sleep" in str(self.args) and not interrupted[0]:
                interrupted[0] = True
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Stopped)
    steps = [step("well", "pass"), step("stopped", "import time; time.sleep(60)"), step("no", "1")]
    code, ended, _ = measured(steps, tmp_path, grace_s=1.0)
    assert code == Exit.INTERRUPTED
    assert {name: each["status"] for name, each in ended.items()} == {
        "well": "passed",
        "stopped": "interrupted",
    }


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_gpu_is_this_script():
    asked = ["make", "-n", "gpu", "GPU_ARGS=--rehearse"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "-m bench.extras.gpu --rehearse" in done.stdout


def test_the_only_option_runs_the_named_steps_in_their_usual_order(tmp_path, capsys):
    steps = gpu.make_steps(tmp_path, rehearse=True)
    assert gpu.choose(steps, None) == steps
    names = [step.name for step in gpu.choose(steps, "zoo,ar-llama-1b")]
    assert names == ["ar-llama-1b", "zoo"]
    assert (
        gpu.main(["--rehearse", "--output", str(tmp_path / "none"), "--only", "zoo,ar-lama-1b"])
        == 2
    )
    line = capsys.readouterr().err
    assert line.startswith("bench: --only has no step 'ar-lama-1b'; did you mean 'ar-llama-1b'? ")
    assert "steps: ar-llama-1b, ar-qwen3-8b" in line
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_the_rehearsal_passes(tmp_path):
    command = [
        sys.executable,
        "-m",
        "bench.extras.gpu",
        "--rehearse",
        "--output",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    text = (folder / "summary.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    written = json.loads(text)
    steps = {each["name"]: each for each in written["steps"]}
    assert written["rehearsal"]
    assert written["machine"]["torch"] == torch.__version__
    assert {each["status"] for each in steps.values()} <= {"passed", "left out"}
    for name in ("ar-llama-1b", "ar-qwen3-8b"):
        lines = steps[name]["figures"]["lines"]
        assert [(line["context"], line["sequences"]) for line in lines] == [(16, 1), (16, 2)]
        assert all(line["share_of_limit"] > 0 for line in lines)
    for line in steps["scripted-qwen3-8b"]["figures"]["lines"]:
        assert line["speedup"] > 0
    assert steps["invariant-llama-1b"]["figures"]["lines"][1]["identical"]
    run = steps["zoo"]["figures"]
    assert {"ar", "spec", "ptp", "nar"} <= {row["decoder"] for row in run["lines"]}
    assert "collected" in steps["tests"]["figures"]["last_line"]


ABSENT = {"typer", "rich", "pydantic", "pydantic-core"}
"""What packages that transformers needs may bring; it loads without."""


@pytest.fixture(scope="module")
def bare_site(tmp_path_factory):
    """A folder of torch, transformers, numpy, safetensors, tokenizers and what these need.

    On PYTHONPATH it hides all that is installed, from child processes too.
    """
    folder = tmp_path_factory.mktemp("site")
    hide = "import sys\nsys.path[:] = [p for p in sys.path if not p.endswith('-packages')]\n"
    (folder / "sitecustomize.py").write_text(hide, encoding="utf-8")
    left, seen = ["torch", "transformers", "numpy", "safetensors", "tokenizers"], set(ABSENT)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if name in seen:
            continue
        seen.add(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
        wanted = [each for each in found.requires or () if "extra ==" not in each]
        left += [re.match(r"[\w.-]+", each)[0] for each in wanted]  # type: ignore[index]
    return folder


@pytest.mark.slow
def test_the_script_and_its_first_step_run_with_torch_and_transformers_alone(tmp_path, bare_site):
    code = """if 1:
        import sys
        from pathlib import Path
        from bench.extras import gpu
        steps = gpu.make_steps(Path(sys.argv[1]), rehearse=True)
        for step in steps:
            print(step.name, step.reason)
        few = [step for step in steps if step.name in ('ar-llama-1b', 'tests')]
        code = gpu.measure(few, Path(sys.argv[1]), rehearsal=True)
        loaded = {name.partition('.')[0] for name in sys.modules}
        print('loaded', *loaded & {'typer', 'rich', 'pydantic', 'pandas', 'scipy', 'psutil'})
        sys.exit(code)
    """
    command = [sys.executable, "-c", code, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(bare_site)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    logs = "".join(file.read_text(encoding="utf-8") for file in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert said["tests"].startswith("not installed: pytest;")
    assert "pandas" in said["zoo"]
    assert said["scripted-llama-1b"] == "None"
    assert "loaded" in done.stdout.splitlines()
    assert len(read_lines(tmp_path / "ar-llama-1b.jsonl")) == 3


@pytest.mark.slow
def test_a_kill_at_any_second_leaves_a_summary_and_whole_lines(tmp_path):
    command = [
        sys.executable,
        "-m",
        "bench.extras.gpu",
        "--rehearse",
        "--output",
        str(tmp_path),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while not (lines := [*tmp_path.glob("*/ar-llama-1b.jsonl")]) or not read_lines(lines[0]):
            assert process.poll() is None
            time.sleep(0.05)
        step = psutil.Process(process.pid).children()[0]
        process.kill()
        step.kill()
    (folder,) = tmp_path.iterdir()
    written = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert [(each["name"], each["status"]) for each in written["steps"]] == [
        ("ar-llama-1b", "running")
    ]
    assert read_lines(lines[0])[0]["machine"]["torch"] == torch.__version__
