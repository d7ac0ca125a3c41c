"""The two checkouts of `bench ab`, and the process that works in each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from bench.errors import BenchError, UnavailableError, UsageError
from bench.machine.env import ROOT, VARIABLES, comparability_key, git_state
from bench.records.environment import Environment

PROTOCOL = 1
"""Version of requests and answers (`bench.ab.worker`)."""
_WORKER = "bench/ab/worker.py"
_PROJECT = "decoding-bench"


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield the source tree of a side: a folder as it is, or a revision in a temporary worktree.

    Raises:
        BenchError: `revision` is neither (exit 2), or needs a git checkout and bench has none (5).
    """
    folder = Path(revision)
    if _is_checkout(folder):
        yield folder.resolve()
        return
    if git_state(ROOT).commit is None:  # a git repository around ROOT does not count
        line = f"{revision!r} is not a checkout folder, and a revision needs a bench that runs "
        raise UnavailableError(line + "from a git checkout: give a folder")
    with TemporaryDirectory(prefix="bench-ab-") as scratch:
        tree = Path(scratch) / "tree"
        try:
            _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
            _git("worktree", "add", "--detach", str(tree), revision)
        except (OSError, subprocess.CalledProcessError) as error:
            line = f"{revision!r} is neither a checkout of this project nor a git revision of it"
            raise UsageError(line) from error
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _is_checkout(folder: Path) -> bool:
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        return bool(tomllib.loads(text)["project"]["name"] == _PROJECT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True)


class Process:
    """A worker process in a checkout; it answers one request at a time."""

    def __init__(self, name: str, tree: Path) -> None:
        """Start the checkout's worker, its code first on the import path and all else equal."""
        script = tree / _WORKER
        if not script.is_file():
            line = f"{name} is too old: it has no {_WORKER}; compare with a newer revision"
            raise UnavailableError(line)
        self.name, self.tree = name, tree
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            start_new_session=True,  # only the parent gets Ctrl-C
        )

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send a request and wait for its answer; `BenchError` carries the worker's exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            line = f"the process of {self.name} ended ({code}) in {do}; its output is above"
            raise BenchError(line)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}", exit_code=answer["exit"])
        return answer

    def open(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Open a configuration; exit 5 if the worker has another `PROTOCOL` or checkout's code."""
        opened = self.ask("open", config=dict(config))
        version = opened.get("protocol")
        if version != PROTOCOL:
            line = f"{self.name} speaks version {version} of the protocol between the sides, this "
            line += f"bench version {PROTOCOL}; run `bench ab` from another checkout, or compare "
            raise UnavailableError(line + "revisions of one version")
        if Path(opened["root"]).resolve() != self.tree.resolve():
            line = f"{self.name} would run the code of another checkout; unset PYTHONPATH and retry"
            raise UnavailableError(line)
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


def check_setup(base: Environment, head: Environment) -> None:
    """Raise `BenchError` (exit 5) unless both sides run on one machine in the same way."""
    theirs = _setup(head)
    for what, ours in _setup(base).items():
        if ours != theirs[what]:
            line = (
                f"the sides differ in {what}: {ours} and {theirs[what]}; only their code may differ"
            )
            raise UnavailableError(line)


def _setup(env: Environment) -> dict[str, object]:
    return {
        **{name: getattr(env, name) for name in ("device", "dtype", "python")},
        "torch": asdict(env.torch),
        "environment": {k: v for k, v in env.environment.items() if k in VARIABLES},
        "packages": {k: v for k, v in env.packages.items() if k != "decoding-bench"},
        # computed here for both, which run on one machine: a checkout may name it otherwise
        "key": comparability_key(replace(env, machine=replace(env.machine, cpu=None))),
    }
