"""The mutants keep up with the code, and the runner tells those that are noticed from those not."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.mutants.__main__ import main
from tests.mutants.planting import ROOT, load_mutants

MUTANTS = load_mutants()


def test_there_are_a_hundred_mutants_or_more_with_unique_names() -> None:
    names = Counter(mutant.id for mutant in MUTANTS)
    assert len(names) == len(MUTANTS) >= 100


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_every_mutant_of_a_file_can_be_planted_and_changes_the_code(file: str) -> None:
    """Its code occurs exactly once; what comes out is Python, and not the same Python."""
    original = ast.dump(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    for mutant in MUTANTS:
        if mutant.file == file:
            assert ast.dump(ast.parse(mutant.planted(ROOT))) != original, mutant.id


def test_every_mutant_describes_the_broken_behaviour_and_names_existing_tests() -> None:
    for mutant in MUTANTS:
        assert mutant.breaks.endswith("."), mutant.id
        assert mutant.tests, mutant.id
        assert all((ROOT / test).is_file() for test in mutant.tests), mutant.id


# ---------------------------------------------------------------- the runner

RIGHT = "def double(x):\n    return x + x\n"
TEST = "import arithmetic\n\n\ndef test_it():\n    assert arithmetic.double(3) == 6\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one function and its test; returns its root."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "arithmetic.py").write_text(RIGHT, encoding="utf-8")
    (root / "test_it.py").write_text(TEST, encoding="utf-8")
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    gpu\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of a start
    return root


def run(root: Path, *mutants: tuple[str, ...], options: tuple[str, ...] = ()) -> int:
    """The runner's exit code on mutants (code, mutated[, equivalent]) of the project: a, b, …"""
    lines = ['[[source]]\nfile = "arithmetic.py"\ntests = ["test_it.py"]\n']
    lines += [
        f'[[source.mutant]]\nid = "{name}"\ncode = "{code}"\nmutated = "{mutated}"\n'
        f'breaks = "It."\nequivalent = "{"".join(why)}"\n'
        for name, (code, mutated, *why) in zip("abc", mutants, strict=False)
    ]
    folder = root.parent / "mutants"
    folder.mkdir(exist_ok=True)
    (folder / "data.toml").write_text("\n".join(lines), encoding="utf-8")
    return main(options, root, folder)


CAUGHT, SURVIVES, GONE = ("x + x", "x - x"), ("x + x", "2 * x"), ("y + y", "y")


def test_a_mutant_that_fails_its_tests_is_caught_and_the_source_tree_is_unchanged(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, CAUGHT, CAUGHT, options=("--jobs", "2")) == 0
    assert "2 mutants planted: 2 caught; 0 equivalent" in capsys.readouterr().out
    assert (project / "arithmetic.py").read_text(encoding="utf-8") == RIGHT


@pytest.mark.slow
def test_a_surviving_mutant_is_named_and_ends_with_exit_code_3(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, CAUGHT, SURVIVES, GONE) == 3
    said = capsys.readouterr().out
    assert "| b | arithmetic.py | survived | It. |" in said
    assert "3 mutants planted: 1 caught, 1 not planted, 1 survived" in said


@pytest.mark.slow
def test_slow_tests_run_on_mutants_that_survive_the_fast_tests(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = TEST.replace("def", "@pytest.mark.slow\ndef").replace("6", "9").replace("(3)", "(4.5)")
    whole = "def test_nothing():\n    pass\n"
    (project / "test_it.py").write_text(f"import pytest\n{slow}\n\n{whole}", encoding="utf-8")
    assert run(project, CAUGHT) == 0
    assert "1 mutants planted: 1 caught" in capsys.readouterr().out
    broken = slow.replace("9", "8")
    (project / "test_it.py").write_text(f"import pytest\n{broken}\n\n{whole}", encoding="utf-8")
    assert run(project, CAUGHT) == 1
    assert "tests of minutes do not pass with nothing planted" in capsys.readouterr().out


@pytest.mark.slow
def test_a_file_with_only_slow_tests_can_catch_mutants(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = TEST.replace("def", "@pytest.mark.slow\ndef")
    (project / "test_it.py").write_text(f"import pytest\n{slow}", encoding="utf-8")
    assert run(project, CAUGHT, SURVIVES) == 3
    assert "2 mutants planted: 1 caught, 1 survived" in capsys.readouterr().out


@pytest.mark.slow
def test_a_mutant_that_cannot_be_planted_or_judged_ends_with_exit_code_1(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, GONE) == 1
    assert "a: its code occurs 0 times in arithmetic.py, not once" in capsys.readouterr().out
    assert run(project, ("def double", "def single = double")) == 1  # no Python: nothing is run
    assert "| a | arithmetic.py | not judged |" in capsys.readouterr().out


def test_tests_that_fail_without_a_mutant_end_with_exit_code_1(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "test_it.py").write_text(TEST.replace("6", "7"), encoding="utf-8")
    assert run(project, CAUGHT) == 1
    assert "test_it.py does not pass with nothing planted" in capsys.readouterr().err


@pytest.mark.slow
def test_a_mutant_that_never_ends_times_out_and_mutants_can_be_selected_by_name(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = ("return", "while True: x +=")
    assert run(project, SURVIVES, endless, options=("--only", "b", "--time-limit", "2")) == 0
    assert "1 mutants planted: 1 out of time" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        run(project, CAUGHT, options=("--only", "z"))
    assert ended.value.code == 2
    assert "no mutant is called z" in capsys.readouterr().err


@pytest.mark.slow
def test_equivalent_mutants_are_counted_apart_and_planted_only_by_name(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, CAUGHT, (*SURVIVES, "The sum is the double.")) == 0
    assert "1 mutants planted: 1 caught; 1 equivalent, not counted" in capsys.readouterr().out
    assert main(("--only", "b"), project, project.parent / "mutants") == 3


def test_the_weekly_workflow_makes_a_target_that_exists_and_may_write_nothing() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/mutants.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    scripts = [step.get("run", "") for step in workflow["jobs"]["mutants"]["steps"]]
    made = {target for script in scripts for target in re.findall(r"make ([a-z-]+)", script)}
    assert made == {"install", "mutants"}
    assert "\nmutants:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert not any("${{" in script for script in scripts)
