"""A tiny checkpoint, and `bench` in processes of its own that start fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_checkpoint import save_checkpoint

ROOT = Path(__file__).parents[2]


class Launcher:
    """`bench` in processes forked from one that has imported everything (see launcher.py)."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("launcher.py")],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def start(self, *arguments: object) -> int:
        """The process id of `bench` with these arguments."""
        return int(self._ask(argv=[*map(str, arguments)], log=str(self.log))["pid"])

    def wait(self, pid: int) -> int:
        """How a process ended: its exit code, or the signal that killed it, negative."""
        return int(self._ask(wait=pid)["status"])

    def bench(self, *arguments: object) -> int:
        """Run `bench` to its end."""
        return self.wait(self.start(*arguments))

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("launcher") / "log")
    yield started
    started.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
