"""`python -m bench` and the console script: whose code runs, and Ctrl-C before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.command_line import bench

ROOT = Path(__file__).parents[2]
MAIN = "from bench.__main__ import main; main()"
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A process started in the background ignores Ctrl-C, and so do its children."""
STOP = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
TURNED = """
try:
    import os, signal, time
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
except BaseException as error:
    raise ImportError("Could not import module 'LlamaConfig'") from error
"""


def run(folder: Path, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("imported", [STOP, TURNED], ids=["as it is", "as an error of imports"])
def test_ctrl_c_while_the_command_line_is_imported_is_one_line(
    imported: str, tmp_path: Path
) -> None:
    (tmp_path / "cli.py").write_text(imported)
    ended = run(ROOT, tmp_path, "-P", "-c", f"{HEARD}; {MAIN}")
    assert (ended.returncode, ended.stderr) == (130, "bench: interrupted\n")


def test_an_error_without_an_interruption_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "cli.py").write_text("raise ImportError('a module is missing')\n")
    ended = run(ROOT, tmp_path, "-P", "-c", MAIN)
    assert ended.returncode == 1
    assert "a module is missing" in ended.stderr


@pytest.mark.parametrize(
    "where", ["bench.cli.listing.facts_table", "bench.cli.group.VerbGroup.parse_args"]
)
def test_ctrl_c_within_a_command_is_one_line(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, stopped)
    ended = bench("ls", "tasks")
    assert (ended.code, ended.err) == (130, "bench: interrupted\n")


def test_a_module_in_the_current_folder_does_not_shadow_the_command_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "cli.py").write_text("def main():\n    print('another')\n")
    ended = run(tmp_path, ROOT, "-m", "bench", "--version")
    assert ended.stdout.startswith("bench "), ended.stderr


def test_the_console_script_calls_the_main_function_that_catches_ctrl_c() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["scripts"] == {"bench": "bench.__main__:main"}


def test_a_shell_can_complete_verbs(tmp_path: Path) -> None:
    asked = {"_BENCH_COMPLETE": "complete_bash", "COMP_WORDS": "bench ex", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['bench']; from cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked, "HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == ["external", "explain", "export"], ended.stderr
    assert "--install-completion" in bench("--help").out
