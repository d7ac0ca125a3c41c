"""`bench ab`: both sides answer the same ids in turns; what differs but code is refused."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from bench import runs
from bench.compare.compare import compare
from bench.compare.gate import Gate
from bench.compare.judge import Comparison
from bench.errors import BenchError, Exit
from bench.extras.ab.ab import _AbRun, run_ab, side_request
from bench.extras.ab.checkout import PROTOCOL, SideProcess, Tree, check_setup, checkout
from bench.extras.ab.worker import SideWorker, answer
from bench.machine.env import ROOT
from bench.plan.checks import check_first
from bench.progress import Progress
from bench.records.environment import Environment, GitState, parse_environment
from bench.records.run_folder import load_records, load_run
from bench.stats.side import load_side
from decoders.core.hf.graph_files import missing_compiler
from tests.fake_clock import FakeClock

CONFIG = {
    "model": "tables",
    "draft": "tables",
    "decoders": {"spec": {}},
    "tasks": "qa,math_reasoning",
    "limit": 4,
    "quality_limit": 1,
    "repeats": 3,
    "max_new_tokens": 12,
}


class Local(SideProcess):
    """A worker in this process, spoken to in JSON like any other; keeps what it was asked."""

    asked: list[tuple[str, str, Any]]

    def __init__(self, name: str, opener: Any, asked: list[tuple[str, str, Any]]) -> None:
        self.name, self.tree, self.asked = name, Tree(ROOT, ROOT), asked
        self._worker, self._opener = SideWorker(), opener

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        self.asked.append((self.name, do, arguments.get("cell")))
        checks = partial(check_first, brings_models=True)
        with (
            mock.patch("bench.extras.ab.worker.open_setup", self._opener),
            mock.patch("bench.extras.ab.worker.check_first", checks),
        ):
            told = answer(self._worker, json.dumps({"do": do, **arguments}))
        said = json.loads(json.dumps(told))
        if "error" in said:
            raise BenchError(f"{self.name}: {said['error']}", exit_code=said["exit"])
        return dict(said)

    def __exit__(self, *_: object) -> None:
        return


@pytest.fixture
def sides(
    tmp_path: Path, opener: Any, progress: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Runs an A/B on table models; `head` changes the setup of head."""
    monkeypatch.setattr("gc.freeze", lambda: None)

    def run(
        head: Callable[[Any], Any] = lambda setup: setup,
        shown: Any = None,
        base: str = str(ROOT),
        **values: Any,
    ) -> Any:
        asked: list[tuple[str, str, Any]] = []
        openers = {"base": opener, "head": lambda config: head(opener(config))}
        monkeypatch.setattr(
            "bench.extras.ab.ab.SideProcess", lambda name, _tree: Local(name, openers[name], asked)
        )
        folders = run_ab(
            base, str(ROOT), CONFIG | values, tmp_path / "results", shown or progress()
        )
        return folders, asked

    return run


def judged(folders: tuple[Path, Path]) -> Comparison:
    base, head = (load_side(str(folder), folder.parent) for folder in folders)
    return compare(base, head, Gate())


def with_clock(step_s: float) -> Callable[[Any], Any]:
    import dataclasses

    return lambda setup: dataclasses.replace(setup, clock=FakeClock(step_s=step_s))


def test_both_sides_keep_the_texts_of_all_their_answers(sides: Any) -> None:
    folders, _ = sides(limit=1, repeats=1, quality_limit=4)  # most answers are of the quality pass
    for folder in folders:
        answered = {str(token) for record in load_records(folder) for token in record.tokens or ()}
        assert answered <= json.loads((folder / "vocab.json").read_text()).keys()


def test_a_block_records_its_highest_load_and_any_throttling(tmp_path: Path) -> None:
    turns = [(0.1, "CPU thermal"), (0.3, None), (None, None)]
    lines: list[dict[str, Any]] = [
        {"event": "load", "block": 0, "attempt": 0, "other_cores": cores, "throttled": why}
        for cores, why in turns
    ]
    side: Any = SimpleNamespace(name="base", folder=tmp_path)
    _AbRun([], {}, {}, "", Progress())._write(side, lines)
    (line,) = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert json.loads(line) == lines[0] | {"other_cores": 0.3}


def test_the_same_code_on_both_sides_passes(sides: Any) -> None:
    folders, _ = sides()
    comparison = judged(folders)
    assert {str(cell.verdict) for cell in comparison.cells} == {"pass"}
    assert comparison.how == "measured interleaved"
    assert comparison.exit_code == Exit.DONE


@pytest.mark.slow
def test_a_slow_down_of_eight_per_cent_regresses(sides: Any) -> None:
    folders, _ = sides(with_clock(0.54))
    comparison = judged(folders)
    assert {str(cell.verdict) for cell in comparison.cells} == {"regressed"}


def test_a_side_that_lacks_the_files_of_the_decoders_still_names_their_repository(
    sides: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = GitState(commit="c" * 40, branch="main", dirty=False)
    monkeypatch.setattr("bench.extras.ab.ab.git_state", lambda *_: state)
    monkeypatch.setattr(
        "bench.extras.ab.ab.checkout", lambda *_: contextlib.nullcontext(Tree(tmp_path, ROOT))
    )
    folders, _ = sides(with_clock(0.54), limit=2, repeats=1)
    comparison = judged(folders)
    assert comparison.base_code == comparison.head_code == "ccccccccc (main)"
    assert not [line for line in comparison.changes if line.startswith("benchmark")]
    verdicts = {cell.cell: str(cell.verdict) for cell in comparison.cells}
    assert verdicts["ar"] == "pass", "its code is the benchmark's, on both sides"


def test_two_commits_of_a_repository_without_a_decoder_of_it_are_refused(
    sides: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "bench.extras.ab.ab.checkout",
        lambda side, _: contextlib.nullcontext(Tree(tmp_path / side.replace("/", "-"), ROOT)),
    )
    line = r"^no decoder of this repository is measured; give --decoders FILE\.py:Class$"
    with pytest.raises(BenchError, match=line) as refused:
        sides(base="main")
    assert refused.value.exit_code == Exit.USAGE


@pytest.mark.slow
def test_both_sides_answer_right_after_each_other_in_changing_order(sides: Any) -> None:
    _, asked = sides()
    turns = [(side, cell) for side, do, cell in asked if do == "measure"]
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    assert len(pairs) == 4 * 2 * 3
    assert all(one[1] == other[1] and one[0] != other[0] for one, other in pairs)
    assert {one[0] for one, _ in pairs} == {"base", "head"}
    assert {one[1] for one, _ in pairs} == {"ar", "spec"}


@pytest.mark.slow
def test_processes_restart_every_second_repeat_and_only_base_plans(sides: Any) -> None:
    _, asked = sides()
    assert [side for side, do, _ in asked if do == "open"] == ["base", "head"] * 2
    assert [side for side, do, _ in asked if do == "plan"] == ["base"]


@pytest.mark.slow
def test_a_side_from_a_revision_records_its_name_and_a_side_from_a_folder_does_not(
    sides: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bench.extras.ab.ab.checkout", lambda *_: contextlib.nullcontext(Tree(ROOT, ROOT))
    )
    (base, head), _ = sides(base="origin/main")
    assert load_run(base).status.revision == "origin/main"
    assert load_run(head).status.revision is None


@pytest.mark.slow
def test_each_side_leaves_a_complete_run_folder(sides: Any) -> None:
    (base, head), _ = sides()
    runs = [load_run(folder) for folder in (base, head)]
    assert runs[0].status.ab == runs[1].status.ab
    for run in runs:
        assert (run.status.status, run.status.verdict) == ("complete", "VALID")
        keys = {(r.kind, r.decoder, r.prompt, r.repeat) for r in run.records}
        assert len(keys) == len(run.records) == 4 * 2 * 3 + 2 * 2
        assert {event["event"] for event in run.events} == {"load"}
        assert len(run.events) == 12
        assert run.status.differences == ()
    assert {p.hash for p in runs[0].plan.prompts} == {p.hash for p in runs[1].plan.prompts}


@pytest.mark.slow
def test_a_decoder_only_in_head_is_measured_and_reported_as_new(sides: Any) -> None:
    import dataclasses

    def add(setup: Any) -> Any:
        spec = setup.arms["spec"]
        cell = dataclasses.replace(spec.cell, cell="spec@b", label="b")
        arms = {**setup.arms, "spec@b": dataclasses.replace(spec, cell=cell)}
        return dataclasses.replace(setup, arms=arms)

    folders, _ = sides(add)
    verdicts = {cell.cell: str(cell.verdict) for cell in judged(folders).cells}
    assert verdicts == {"ar": "pass", "spec": "pass", "spec@b": "new"}


def test_a_class_that_only_one_side_defines_is_left_out_of_the_other_sides_request(
    tmp_path: Path,
) -> None:
    base, head = (Tree(tmp_path / name, ROOT) for name in ("base", "head"))
    for tree, source in ((base, "class Mine2: ...\nclass Old: ..."), (head, "class Mine: ...")):
        tree.folder.mkdir()
        (tree.folder / "a.py").write_text(source, encoding="utf-8")
    config: dict[str, Any] = {
        "decoders": {f"a.py:{name}": {} for name in ("Mine", "Old", "Nowhere")}
    }
    asked = [[*side_request(config, tree, [base, head])["decoders"]] for tree in (base, head)]
    assert asked == [["a.py:Old", "a.py:Nowhere"], ["a.py:Mine", "a.py:Nowhere"]]


def test_blocks_measured_before_an_interrupt_are_kept_and_cannot_be_resumed(
    sides: Any, progress: Any, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        sides(shown=progress(stop_at=10))  # half of the third block
    (pair,) = (tmp_path / "results").iterdir()
    for name in ("base", "head"):
        run = load_run(pair / name)
        assert run.status.status == "interrupted"
        assert len(run.records) == 2 * 2
        with pytest.raises(BenchError, match="cannot be resumed") as refused:
            runs.resume(run.path, progress())
        assert refused.value.exit_code == Exit.USAGE


def test_a_side_that_fails_is_named_and_leaves_no_folder(sides: Any, tmp_path: Path) -> None:
    def fail(setup: Any) -> Any:
        raise ValueError("no such weights")

    with pytest.raises(BenchError, match="head: ValueError: no such weights"):
        sides(fail)
    assert not [*(tmp_path / "results").iterdir()]


def test_sides_whose_default_settings_would_change_the_answers_are_refused(sides: Any) -> None:
    import dataclasses

    def shorter(setup: Any) -> Any:
        return dataclasses.replace(setup, config=setup.config.with_values(max_new_tokens=11))

    with pytest.raises(BenchError, match="max_new_tokens is 12 in base and 11 in head") as refused:
        sides(shorter)
    assert refused.value.exit_code == Exit.UNAVAILABLE


def test_a_decoder_file_missing_in_base_is_refused_in_one_line(sides: Any) -> None:
    with pytest.raises(BenchError, match=r"^base: decoder file 'gone\.py' does not exist") as found:
        sides(decoders={"gone.py:Mine": {}})
    assert found.value.exit_code == Exit.USAGE


def test_a_decoder_whose_file_is_only_in_head_is_requested_from_head_alone(tmp_path: Path) -> None:
    base, head = (Tree(tmp_path / name, ROOT) for name in ("base", "head"))
    for tree, files in ((base, ["old.py"]), (head, ["old.py", "new.py"])):
        tree.folder.mkdir()
        for file in files:
            (tree.folder / file).write_text("class Mine: ...", encoding="utf-8")
    cells = {"old.py:Mine": {}, "new.py:Mine@x": {"k": "2"}, "spec": {}, "gone.py:Mine": {}}
    config = {"decoders": cells, "limit": 3}
    assert side_request(config, head, (base, head)) == config
    left = {cell: cells[cell] for cell in ("old.py:Mine", "spec", "gone.py:Mine")}
    assert side_request(config, base, (base, head)) == {"decoders": left, "limit": 3}
    alone = side_request({"decoders": {"new.py:Mine": {}}}, base, (base, head))
    assert alone == {"decoders": {"ar": {}}}, "not the built-in ones in its place"
    assert side_request({"limit": 3}, base, (base, head)) == {"limit": 3}


# ---------------------------------------------------------------- setups and checkouts


def env(**changes: Any) -> Environment:
    facts = {
        "device": "cpu",
        "dtype": "float32",
        "python": "3.11.7",
        "torch": {"threads": 2},
        "environment": {"OMP_NUM_THREADS": "2"},
        "packages": {"torch": "2.13", "decoding-bench": "0.1"},
        "machine": {"cpu": "x", "affinity": 2, "cgroup_cpus": None, "load_average": [1]},
        "gpu": None,
        **changes,
    }
    return parse_environment(facts, "a side")


def test_only_code_may_differ_between_the_sides() -> None:
    check_setup(env(), env(packages={"torch": "2.13", "decoding-bench": "0.2"}))
    check_setup(env(), env(machine={"cpu": "x (family 26)", "affinity": 2, "cgroup_cpus": None}))
    check_setup(env(), env(torch={"threads": 2, "product_rows": 64, "product_price": 0.1}))
    changes: dict[str, Any]
    for changes in (
        {"environment": {}},
        {"packages": {"torch": "2.12"}},
        {"torch": {"threads": 1}},
        {"machine": {"cpu": "x", "affinity": 1, "cgroup_cpus": None}},
    ):
        with pytest.raises(BenchError, match="only their code may differ") as refused:
            check_setup(env(), env(**changes))
        assert refused.value.exit_code == Exit.UNAVAILABLE


def test_a_folder_is_used_as_a_side_unchanged() -> None:
    with checkout(str(ROOT), ROOT) as tree:
        assert tree == Tree(ROOT, ROOT)


def test_a_side_that_is_neither_a_checkout_nor_a_revision_is_refused(tmp_path: Path) -> None:
    for name in ("no-such-revision", str(tmp_path), "--help"):
        with (
            pytest.raises(BenchError, match="neither a checkout") as refused,
            checkout(name, ROOT),
        ):
            pass
        assert refused.value.exit_code == Exit.USAGE


def test_a_revision_is_checked_out_as_a_temporary_worktree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", "-C", str(repository), *author, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    git("init", "-q")
    (repository / "file").write_text("old")
    git("add", "file")
    git("commit", "-qm", "old")
    (repository / "file").write_text("new")
    monkeypatch.setattr("bench.extras.ab.checkout.ROOT", repository)
    with checkout("HEAD", repository) as tree:
        assert tree.bench == tree.folder
        assert (tree.folder / "file").read_text() == "old"
    assert not tree.folder.exists()
    assert git("worktree", "list").count("\n") == 1


def test_a_worker_that_runs_other_code_is_refused(tmp_path: Path) -> None:
    process = Local("base", None, [])
    process.tree = Tree(tmp_path, tmp_path)
    opened = {"protocol": PROTOCOL, "root": str(ROOT)}
    process._worker = SimpleNamespace(open=lambda config: opened)  # type: ignore[assignment]
    with pytest.raises(BenchError, match="code of another checkout"):
        process.open({})


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Tree]:
    """Writes a checkout whose worker is a given script."""

    def write(script: str, name: str = "tree") -> Tree:
        worker = tmp_path / name / "bench" / "extras" / "ab" / "worker.py"
        worker.parent.mkdir(parents=True, exist_ok=True)
        worker.write_text(script)
        return Tree(tmp_path / name, tmp_path / name)

    return write


def test_each_side_runs_the_worker_of_its_own_tree(tree: Callable[..., Tree]) -> None:
    folder = tree("input()\nprint('{\"mine\": 1}')\n")
    with SideProcess("base", folder) as process:
        assert process.ask("look") == {"mine": 1}


def test_a_checkout_without_a_worker_is_refused_as_too_old(tmp_path: Path) -> None:
    with pytest.raises(
        BenchError, match=r"^base is too old: it has no bench/extras/ab/worker"
    ) as refused:
        SideProcess("base", Tree(tmp_path, tmp_path))
    assert refused.value.exit_code == Exit.UNAVAILABLE


def test_a_worker_with_another_protocol_version_is_refused(tree: Callable[..., Tree]) -> None:
    says = "import json\ninput()\nprint(json.dumps({said}))\n"
    root = tree("")
    tree(says.replace("{said}", repr({"protocol": PROTOCOL, "root": str(root.bench)})))
    with SideProcess("base", root) as process:
        assert process.open({})["root"] == str(root.bench)
    root = tree(says.replace("{said}", repr({"protocol": PROTOCOL + 1, "root": "/"})))
    with (
        SideProcess("head", root) as process,
        pytest.raises(BenchError, match=f"head speaks version {PROTOCOL + 1}") as refused,
    ):
        process.open({})
    assert refused.value.exit_code == Exit.UNAVAILABLE


def test_a_checkout_is_recognized_by_its_project_name_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "decoding-bench"\n')
    with checkout(str(tmp_path), ROOT) as tree:
        assert tree.folder == tree.bench == tmp_path
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')
    with pytest.raises(BenchError, match="neither a checkout"), checkout(str(tmp_path), ROOT):
        pass


def test_a_failed_request_and_an_ended_process_give_different_errors(
    tree: Callable[..., Tree],
) -> None:
    folder = tree(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    if request['do'] == 'end':\n        sys.exit(7)\n"
        "    failed = {'error': 'no', 'exit': 5}\n"
        "    print(json.dumps(failed if request['do'] == 'fail' else request))\n"
        "    sys.stdout.flush()\n"
    )
    with SideProcess("base", folder) as process:
        assert process.ask("echo", number=1) == {"do": "echo", "number": 1}
        with pytest.raises(BenchError, match="base: no") as refused:
            process.ask("fail")
        assert refused.value.exit_code == Exit.UNAVAILABLE
        with pytest.raises(BenchError, match=r"base ended \(7\) in end"):
            process.ask("end")


def test_each_side_runs_in_its_own_checkout_and_reads_its_own_files(
    tree: Callable[..., Tree],
) -> None:
    script = "input()\nprint('{\"found\": ' + open('mine.py').read() + '}')\n"
    for number, name in enumerate(("base", "head")):
        folder = tree(script, name=name)
        (folder.folder / "mine.py").write_text(str(number))
        with SideProcess(name, folder) as process:
            assert process.ask("look") == {"found": number}


@pytest.mark.parametrize("compiled", [None, False, True])
def test_graphs_are_made_before_anything_is_measured(
    sides: Any, monkeypatch: pytest.MonkeyPatch, compiled: bool | None
) -> None:
    made: list[bool | None] = []

    def make_graphs(setup: Any, _progress: object) -> Any:
        made.append(setup.config.compile)
        return setup

    monkeypatch.setattr("bench.plan.compiling.make_graphs", make_graphs)
    values = {} if compiled is None else {"compile": compiled}
    sides(repeats=1, **values)
    assert made == [bool(compiled)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_two_checkouts_are_measured_by_their_own_processes(tmp_path: Path, compiled: bool) -> None:
    """The whole verb on the zoo: the working tree against itself."""
    if compiled and missing_compiler() is not None:
        pytest.skip("no C++ compiler")
    done = subprocess.run(
        [
            sys.executable, ROOT / "cli.py", "ab", "--base", ROOT, "--head", ROOT, "-d", "ar",
            "--limit", "2", "--repeats", "1", "--max-new-tokens", "8", "--quality-limit", "0",
            "--threads", "1", "-o", tmp_path, "--progress", "none",
            "--compile" if compiled else "--no-compile",
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (Exit.DONE, Exit.REGRESSION), done.stderr  # two prompts: any time
    (pair,) = tmp_path.iterdir()
    assert judged((pair / "base", pair / "head")).cells[0].num_changed == 0
    for side in ("base", "head"):
        model = json.loads((pair / side / "env.json").read_text())["models"]["target"]
        assert bool(model.get("compiled")) == compiled
