"""Mutants: wrong lines with the tests that must notice them, planted in copies of the tree.

The data are the TOML files beside this one, one table per source file. A *mutant* replaces a piece
of that file, which must occur in it exactly once, by other code. One that changes nothing that
could be observed is marked `equivalent`, with the reason, and is neither planted nor counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
Outcome = Literal["caught", "out of time", "survived", "not planted", "not judged"]
NOTICED = ("caught", "out of time")
"""Outcomes of mutants that do not go unnoticed: a test fails, or never ends."""
TESTS_PASSED, TESTS_FAILED, NO_TESTS = 0, 1, 5
"""pytest's exit codes; all others say that it could not run the tests."""
DEFAULT, SLOW = "not slow and not gpu", "slow and not gpu"
"""pytest's marks of the tests of seconds, and of minutes."""
SLOWER = 6
"""How many times the time limit the tests of minutes have."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One wrong piece of code: `file` with `code` replaced by `mutated`.

    `breaks` says what is wrong then, `tests` are the test files that should notice, `equivalent`
    is why no test can.
    """

    id: str
    file: str
    code: str
    mutated: str
    breaks: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def planted(self, root: Path) -> str:
        """The text of the file with the mutant in it.

        Raises:
            ValueError: where the code does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (num := text.count(self.code)) != 1:
            raise ValueError(f"{self.id}: its code occurs {num} times in {self.file}, not once")
        return text.replace(self.code, self.mutated)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a mutant, after how many seconds, and why it could not be judged."""

    mutant: Mutant
    outcome: Outcome
    seconds: float = 0.0
    why: str = ""


def load_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """All mutants of the TOML files of a folder (errors: `TypeError` on a field that is none)."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for source in tomllib.loads(path.read_text(encoding="utf-8"))["source"]:
            for fields in source["mutant"]:
                values = {"tests": source["tests"], **fields}
                tests = tuple(values.pop("tests"))
                found.append(Mutant(file=source["file"], tests=tests, **values))
    return found


def copy_tree(source: Path, folder: Path) -> Path:
    """A copy of all files that git tracks or would, in a new folder; returns it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (source / name).is_file():  # not one that is deleted and still in the index
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)
    identity = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    for command in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "A copy")):
        subprocess.run(["git", *command], cwd=folder, check=True)  # some tests compare commits
    return folder


def run_tests(
    tests: Sequence[str], root: Path, time_limit_s: float | None, marks: str = DEFAULT
) -> tuple[int | None, str]:
    """pytest's exit code on the tests of a tree (None: out of time), and the end of its output."""
    # stale bytecode could hide a mutant: sizes and times of files may be those of the original
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, "-m", marks, *tests],
            cwd=root,
            env=environment,
            timeout=time_limit_s,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-15:])


def judge(mutant: Mutant, root: Path, time_limit_s: float) -> Result:
    """Plant a mutant in the tree `root`, run its tests, put the file back.

    Slow tests run where the default ones pass; where they fail, they are run again with nothing
    planted.
    """
    path, began_s = root / mutant.file, time.monotonic()
    try:
        planted = mutant.planted(root)
    except ValueError as error:
        return Result(mutant=mutant, outcome="not planted", why=str(error))
    original = path.read_text(encoding="utf-8")
    path.write_text(planted, encoding="utf-8")
    try:
        code, said = run_tests(mutant.tests, root, time_limit_s)
        if is_slow := code in (TESTS_PASSED, NO_TESTS):
            code, said = run_tests(mutant.tests, root, SLOWER * time_limit_s, SLOW)
            code = TESTS_PASSED if code == NO_TESTS else code
    finally:
        path.write_text(original, encoding="utf-8")
    if is_slow and code == TESTS_FAILED and run_tests(mutant.tests, root, None, SLOW)[0]:
        code, said = NO_TESTS, f"tests of minutes do not pass with nothing planted\n{said}"
    outcomes: dict[int | None, Outcome] = {
        TESTS_PASSED: "survived",
        TESTS_FAILED: "caught",
        None: "out of time",
    }
    outcome = outcomes.get(code, "not judged")
    seconds = time.monotonic() - began_s
    why = said if outcome == "not judged" else ""
    return Result(mutant=mutant, outcome=outcome, seconds=seconds, why=why)


def why_unfit(test: str, root: Path) -> str:
    """Why a test file can judge no mutant, as it fails with nothing planted; empty where it can."""
    code, said = run_tests([test], root, None)
    if code == NO_TESTS:
        code, said = run_tests([test], root, None, SLOW)
    return "" if code == TESTS_PASSED else f"{test} does not pass with nothing planted\n{said}"
