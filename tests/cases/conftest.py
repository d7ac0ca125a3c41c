"""Variants of stories260K, its prompts, and short runs of `bench` in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.records.environment import ENV
from bench.records.record import SampleRecord
from bench.records.run_folder import load_records
from tests.cases.variants import CHANGES, STORIES, copied
from tests.command_line import Output, bench

PROMPTS = (
    "Once upon a time there was a little girl named Lily.",
    "Tom had a red ball. He liked to",
    "The cat sat on the mat and the dog sat on the log. The cat",
)
QUICK = ("--no-compile", "--max-new-tokens", 8, "--repeats", 1, "--phase-limit", 0)


class Case:
    """The folder of one case: its files of prompts, and its runs, which go into ``out``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, rows: Sequence[Mapping[str, Any]], name: str = "t.jsonl") -> Path:
        """Write a file of prompts."""
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def run(
        self,
        model: Path | str,
        *arguments: object,
        decoders: str = "lookup",
        tasks: object = None,
        output: str = "out",
    ) -> Output:
        """Run `bench run` on a few tokens; later arguments override the earlier ones."""
        if tasks is None:
            tasks = self.write([{"id": str(i), "prompt": text} for i, text in enumerate(PROMPTS)])
        given = ("-m", model, "-t", tasks, "-d", decoders, *QUICK, "-o", self.folder / output)
        return bench("run", *given, "--progress", "plain", *arguments)

    def latest(self, output: str = "out") -> Path:
        """Return the folder of the latest run."""
        return (self.folder / output / "latest").resolve()

    def env(self, output: str = "out") -> dict[str, Any]:
        """Return env.json of the latest run."""
        found: dict[str, Any] = json.loads((self.latest(output) / ENV).read_text())
        return found

    def records(self, output: str = "out") -> list[SampleRecord]:
        """Return the records of the latest run."""
        return load_records(self.latest(output))

    def report(self, output: str = "out") -> str:
        """Return report.md of the latest run."""
        return (self.latest(output) / "report.md").read_text()


@pytest.fixture(autouse=True)
def _fast(undrawn: None, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out figures, and what else takes longer than these runs."""
    monkeypatch.setattr("bench.measure.timing.WARMUP_MAX", 1)


@pytest.fixture(scope="session")
def stories() -> Path:
    """The folder of stories260K."""
    if not STORIES.is_dir():
        pytest.skip("../shared/models/stories260K is not there")
    return STORIES


@pytest.fixture(scope="session")
def variant(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a variant of stories260K by its name in `CHANGES`, once for all cases."""

    @cache
    def made(name: str) -> Path:
        folder = copied(tmp_path_factory.mktemp("variants") / name)
        CHANGES[name](folder)
        return folder

    return made


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)
