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


def test_a_report_of_several_runs_lies_beside_them(synthetic_run: Write, tmp_path: Path) -> None:
    synthetic_run(name="one")
    synthetic_run(name="two", seed=1)
    ended = bench("report", "one", "two", "--output", tmp_path)
    assert ended.code == Exit.DONE, ended.err
    assert (tmp_path / "together" / "report.html").is_file()
    assert "Speed-up" in ended.out
    assert str(tmp_path / "together" / "report.html") in ended.out


def test_the_report_of_one_run_is_its_own(synthetic_run: Write, tmp_path: Path) -> None:
    run = synthetic_run(name="one")
    assert bench("report", "one", "--output", tmp_path).code == Exit.DONE
    assert (run / "report.html").is_file()
    ended = bench("report", "one", "--folder", tmp_path / "x", "--output", tmp_path)
    assert ended.code == Exit.USAGE
    assert "--folder is for the report of several runs" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((STORED[0], STORED[0]), Exit.USAGE, "are one run: name it once"),
        ((*STORED, "--reference", "ptp"), Exit.USAGE, "--reference stands beneath the rows of one"),
        ((STORED[0], "nowhere"), Exit.USAGE, "no run folder 'nowhere'"),
        ((STORED[0],), Exit.USAGE, "`bench report` of several read it"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: tuple[object, ...], code: int, said: str, tmp_path: Path
) -> None:
    ended = bench("report", *arguments, "--output", tmp_path)
    assert ended.code == code
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "together").exists()


def test_a_paper_of_several_runs_lies_with_their_report(tmp_path: Path) -> None:
    ended = bench("paper", *STORED, "--venue", "arxiv", "--output", tmp_path)
    assert ended.code == Exit.DONE, ended.err
    files = [Path(line) for line in ended.out.split()]
    assert {file.parent for file in files} == {tmp_path / "together" / "paper"}
    assert all(file.stat().st_size > 0 for file in files)


@pytest.mark.parametrize("verb", ["report", "paper"])
def test_neither_torch_nor_transformers_is_loaded(verb: str, tmp_path: Path) -> None:
    arguments = ["bench", verb, *map(str, STORED), "--output", str(tmp_path)]
    code = (
        f"import sys; sys.argv = {arguments!r}\n"
        "import cli\n"
        "try:\n    cli.main()\n"
        "finally:\n    print('loaded', *{name.split('.')[0] for name in sys.modules})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    loaded = set(done.stdout.rpartition("loaded ")[2].split())
    assert "matplotlib" in loaded, done.stderr
    assert not loaded & {"torch", "transformers", "datasets"}
