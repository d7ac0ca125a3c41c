"""Code that only a file names is not run, whichever verb reads the file and whatever names it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.extras.sessions import sessions
from bench.extras.sweeps.settings import load_sweep
from bench.extras.sweeps.sweeps import POINTS, run_sweep
from bench.runs import resume
from bench.settings.config import load_config
from tests.command_line import bench
from tests.conftest import RecordedProgress

POISON = "from pathlib import Path\nPath({ran!r}).touch()\nraise SystemExit('it ran')\n"
PLAIN = 'model = "tables"\ndraft = "tables"\ntasks = "qa"\nlimit = 2\n'
TABLES = {
    "a path": '[decoders."{file}:Mine"]',
    "with a label": '[decoders."{file}:Mine@spec"]',
    "a part": '[decoders.hybrid]\nfirst = "{file}+Mine"',
    "the other part": '[decoders.hybrid]\nthen = "{file}+Mine+k=2"',
    "a loop": '[decoders."hf@mine"]\ncustom = "{file}"',
}
ASKS = {
    "resume": lambda folder: ("resume", folder),
    "run": lambda folder: ("run", "--config", folder / "config.toml"),
    "plan": lambda folder: ("run", "--dry-run", "-c", folder / "config.toml"),
    "verify": lambda folder: ("verify", "--config", folder / "config.toml"),
    "sessions": lambda folder: ("run", "--sessions", 2, "-c", folder / "config.toml"),
    "sweep": lambda folder: ("sweep", folder / "config.toml"),
}


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder with code that leaves a mark where it is imported, and the mark; we stand in it."""
    folder, mark = tmp_path / "strangers", tmp_path / "ran"
    (folder / "loop" / "custom_generate").mkdir(parents=True)
    for file in (folder / "mine.py", folder / "loop" / "custom_generate" / "generate.py"):
        file.write_text(POISON.format(ran=str(mark)))
    monkeypatch.chdir(folder)
    return folder, mark


def stored(folder: Path, kind: str, decoders: str) -> Path:
    """What a stranger sends: a run that was begun, a job's file, or a sweep's."""
    made = folder / kind
    made.mkdir()
    text = PLAIN + decoders + ("\n[sweep]\nbatch_size = [1, 2]\n" if kind == "sweep" else "\n")
    (made / "config.toml").write_text(text)
    (made / "run.json").write_text('{"schema": 1, "status": "opening"}')
    return made


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("asked", ASKS)
def test_a_configuration_file_runs_no_code_that_the_command_line_does_not_allow(
    asked: str, table: str, stranger: tuple[Path, Path]
) -> None:
    folder, mark = stranger
    for kind, file in (("relative", "mine.py"), ("inside", str(folder / "x" / "mine.py"))):
        made = stored(folder, asked, TABLES[table].format(file=file))
        if kind == "inside":
            shutil.copytree(folder / "loop", folder / "x")
            shutil.copy(folder / "mine.py", folder / "x" / "mine.py")
        ended = bench(*ASKS[asked](made), "--progress", "none")
        assert (ended.code, ended.err.count("\n")) == (Exit.USAGE, 1), ended.err
        assert f"--allow {file}" in ended.err
        assert not mark.exists()
        shutil.rmtree(made)


def test_a_folder_with_a_custom_loop_must_be_allowed_too(stranger: tuple[Path, Path]) -> None:
    folder, mark = stranger
    for asked in ("resume", "run", "sessions"):
        made = stored(folder, asked, '[decoders."hf@mine"]\ncustom = "loop"')
        ended = bench(*ASKS[asked](made), "--progress", "none")
        assert (ended.code, "--allow loop" in ended.err) == (Exit.USAGE, True), ended.err
    assert not mark.exists()


def test_the_command_that_the_refusal_suggests_runs_the_code(stranger: tuple[Path, Path]) -> None:
    folder, mark = stranger
    made = stored(folder, "resume", TABLES["a path"].format(file="./mine.py"))
    refused = bench("resume", made, "--progress", "none")
    typed = shlex.split(refused.err.partition("type: bench ")[2])
    ended = bench(*typed, "--progress", "none")
    assert mark.exists(), ended.err
    assert "cannot be imported: SystemExit: it ran" in ended.err


@pytest.mark.parametrize("named", ["mine.py", "./mine.py", "../strangers/mine.py"])
def test_a_file_may_be_allowed_by_any_spelling_of_its_path(
    named: str, stranger: tuple[Path, Path]
) -> None:
    folder, mark = stranger
    made = stored(folder, "run", TABLES["a part"].format(file="mine.py"))
    ended = bench("run", "-c", made / "config.toml", "--allow", named, "--progress", "none")
    assert (ended.code, mark.exists()) == (Exit.USAGE, True), ended.err


def test_allowing_one_file_does_not_allow_another_file(stranger: tuple[Path, Path]) -> None:
    folder, mark = stranger
    shutil.copy("mine.py", "other.py")
    two = "\n".join(TABLES["a path"].format(file=file) for file in ("mine.py", "other.py"))
    made = stored(folder, "run", two)
    ended = bench("run", "-c", made / "config.toml", "--allow", "mine.py", "--progress", "none")
    assert (ended.code, mark.exists()) == (Exit.USAGE, False)
    assert "--allow mine.py --allow other.py" in ended.err


def test_decoders_of_the_command_line_replace_those_of_the_file(
    stranger: tuple[Path, Path],
) -> None:
    folder, mark = stranger
    made = stored(folder, "run", TABLES["a path"].format(file="mine.py"))
    ended = bench("run", "-c", made / "config.toml", "-d", "nonsense", "--progress", "none")
    assert "unknown decoder 'nonsense'" in ended.err
    bench("run", "-c", made / "config.toml", "-d", "mine.py:Mine", "--progress", "none")
    assert mark.exists()


def test_a_stored_point_of_a_sweep_runs_no_code_that_only_its_configuration_names(
    stranger: tuple[Path, Path],
) -> None:
    folder, mark = stranger
    file = folder / "sweep.toml"
    file.write_text(PLAIN + 'decoders = ["spec"]\n[sweep]\nbatch_size = [1]\n')
    sweep = load_sweep(file)

    def killed(_: Any) -> Any:
        raise KeyboardInterrupt

    made = folder / "made"
    run_sweep(sweep, made, RecordedProgress(), killed)
    point = made / POINTS / "p"
    point.mkdir()
    (point / "run.json").write_text('{"schema": 1, "status": "opening"}')
    text = f'run_name = "{sweep.points[0].name}"\n{PLAIN}{TABLES["a path"].format(file="mine.py")}'
    (point / "config.toml").write_text(text)
    progress = RecordedProgress()
    assert run_sweep(sweep, made, progress, killed)[0] == Exit.USAGE
    assert any("--allow mine.py" in note for note in progress.notes)
    assert not mark.exists()


def test_resume_called_from_python_refuses_a_run_whose_file_names_code(
    stranger: tuple[Path, Path],
) -> None:
    folder, mark = stranger
    made = stored(folder, "run", TABLES["a path"].format(file="mine.py"))
    with pytest.raises(BenchError, match="names code"):
        resume(made, RecordedProgress(), lambda _: pytest.fail("opened"))
    assert not mark.exists()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, ...]]]:
    """The commands of the sessions' processes, which do nothing."""
    commands: list[tuple[str, ...]] = []

    def process(*words: object) -> Exit:
        commands.append(tuple(map(str, words)))
        return Exit.FAILED

    monkeypatch.setattr(sessions, "_process", process)
    return lambda: commands


def test_a_session_may_run_the_code_that_its_series_may_run(
    stranger: tuple[Path, Path], asked: Callable[[], list[tuple[str, ...]]]
) -> None:
    folder, mark = stranger
    config = load_config(None, {"decoders": ["mine.py:Mine"]})
    sessions.measure_sessions(config, 2, 0.0, folder, RecordedProgress(), "none")
    (words,) = asked()
    assert words[-2:] == ("--allow", "mine.py")
    assert not mark.exists()


def test_a_session_runs_this_bench_and_no_code_of_the_current_folder(
    stranger: tuple[Path, Path],
) -> None:
    folder, mark = stranger
    (folder / "bench").mkdir()
    for name in ("bench/__init__.py", "bench/__main__.py", "cli.py", "typer.py"):
        (folder / name).write_text(POISON.format(ran=str(mark)))
    assert sessions._process("--version") == Exit.DONE
    assert not mark.exists()
