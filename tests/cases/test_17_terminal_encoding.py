"""A terminal that is not UTF-8 shows "?" for what it cannot; nothing ends in a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.conftest import Case


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("cp1252", marks=pytest.mark.slow)])
def test_prompts_of_any_script_are_shown_on_any_terminal(encoding: str, case: Case):
    file = case.write([{"id": "u", "prompt": "猫は庭で — “眠る” 😀"}], "u.jsonl")
    command = [sys.executable, "-m", "bench", "show-prompts", "-t", str(file)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(root)},
        capture_output=True,
        cwd=case.folder,
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"????" in done.stdout
