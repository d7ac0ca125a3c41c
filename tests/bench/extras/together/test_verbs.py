"""`bench report` and `bench paper` of several runs, as they are typed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import Exit
from tests.command_line import bench

ROOT = Path(__file__).parents[4]
STORED = tuple(ROOT / "results" / "reference" / name for name in ("cpu-zoo", "cpu-zoo-t07"))
Write = Callable[..., Path]


@pytest.mark.slow
def test_a_report_of_several_runs_is_written_beside_the_runs(
    synthetic_run: Write, tmp_path: Path
) -> None:
    synthetic_run(name="one")
    synthetic_run(name="two", seed=1)
    ended = bench("report", "one", "two", "--output", tmp_path)
    assert ended.code == Exit.DONE, ended.err
    assert (tmp_path / "together" / "report.html").is_file()
    assert "Speed-up" in ended.out
    assert str(tmp_path / "together" / "report.html") in ended.out


@pytest.mark.usefixtures("undrawn")
def test_the_report_of_a_single_run_stays_in_its_run_folder(
    synthetic_run: Write, tmp_path: Path
) -> None:
    run = synthetic_run(name="one")
    assert bench("report", "one", "--output", tmp_path).code == Exit.DONE
    assert (run / "report.html").is_file()
    ended = bench("report", "one", "--folder", tmp_path / "x", "--output", tmp_path)
    assert ended.code == Exit.USAGE
    assert "--folder is for a report of several runs" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((STORED[0], STORED[0]), Exit.USAGE, "are one run: name it once"),
        ((*STORED, "--reference", "ptp"), Exit.USAGE, "--reference is for a report of one run"),
        ((STORED[0], "nowhere"), Exit.USAGE, "no run folder 'nowhere'"),
    ],
)
def test_invalid_arguments_end_with_one_line_and_no_report_folder(
    arguments: tuple[object, ...], code: int, said: str, tmp_path: Path
) -> None:
    ended = bench("report", *arguments, "--output", tmp_path)
    assert ended.code == code
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "together").exists()


@pytest.mark.slow
def test_a_paper_is_written_beside_the_report_and_neither_command_loads_torch(
    synthetic_run: Write, tmp_path: Path
) -> None:
    runs = [str(synthetic_run(name="one")), str(synthetic_run(name="two", seed=1))]
    runs += ["--output", str(tmp_path)]
    code = (
        "import sys, cli\n"
        "for verb in (['report'], ['paper', '--venue', 'arxiv']):\n"
        f"    sys.argv = ['bench', *verb, *{runs!r}]\n"
        "    try:\n        cli.main()\n"
        "    except SystemExit as end:\n        assert not end.code, verb\n"
        "    assert 'matplotlib' in sys.modules, verb\n"
        "    assert not {'torch', 'transformers', 'datasets'} & set(sys.modules), verb\n"
        "    print('end of verb')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.DONE, done.stderr
    _, told, _ = done.stdout.split("end of verb\n")
    files = [Path(line) for line in told.split()]
    assert {file.parent for file in files} == {tmp_path / "together" / "paper"}
    assert all(file.stat().st_size > 0 for file in files)
