"""Check out the two sides of `bench ab`, and start the process that works in each.

A side is a commit or a folder. In a clone of this project it is the whole benchmark. In any other
repository it holds decoders, and the installed benchmark measures both sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from bench.errors import BenchError, UnavailableError, UsageError
from bench.machine.env import (
    ROOT,
    VARIABLES,
    comparability_key,
    git_state,
    is_installed,
    repository_root,
)
from bench.records.environment import Environment

PROTOCOL = 2
"""Version of requests and answers (`bench.extras.ab.worker`)."""
_WORKER = "bench/extras/ab/worker.py"
_PROJECT = "decoding-bench"


@dataclass(frozen=True, slots=True)
class Tree:
    """Hold the source tree of a side, and the benchmark's, which differ if there are `imports`.

    `imports` are folders of a decoders' repository, first on the import path. `python_path` are
    folders outside of it that PYTHONPATH names.
    """

    folder: Path
    bench: Path
    imports: tuple[str, ...] = ()
    python_path: tuple[str, ...] = ()


def compared_repository(sides: Sequence[str]) -> Path:
    """Return the root of the repository whose commits are compared.

    It is the current folder's repository, unless the sides are other checkouts of this project.
    """
    here = repository_root(Path.cwd())
    if here is None or (not is_project(here) and any(is_project(Path(side)) for side in sides)):
        return ROOT
    return here


@contextmanager
def checkout(side: str, repository: Path) -> Iterator[Tree]:
    """Yield the source tree of a side: a folder as it is, or a revision in a temporary worktree.

    Raises:
        BenchError: `side` is neither (exit 2), or there is no git repository (5).
    """
    is_bench, folder = is_project(repository) or repository == ROOT, Path(side)
    if is_project(folder) if is_bench else folder.is_dir():
        top = (None if is_bench else repository_root(folder)) or folder.resolve()
        yield _tree(top, repository, is_bench)
        return
    if git_state(repository).commit is None:  # a git repository around the folder does not count
        line = f"{side!r} is not a checkout folder, and a revision needs a git repository: start "
        raise UnavailableError(line + "bench ab in yours, or give a folder")
    with TemporaryDirectory(prefix="bench-ab-") as scratch:
        tree = Path(scratch).resolve() / "tree"
        try:
            _git(repository, "worktree", "add", "--detach", str(tree), f"{side}^{{commit}}")
        except subprocess.CalledProcessError as error:
            kind = "checkout of this project" if is_bench else "folder"
            message = (error.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2]
            line = f"{side!r} is neither a {kind} nor a revision that git can check out: {message}"
            raise UsageError(f"{line}; a CI job may have to fetch it (fetch-depth: 0)") from error
        try:
            yield _tree(tree, repository, is_bench)
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def _tree(folder: Path, repository: Path, is_bench: bool) -> Tree:
    """Return a side that imports from `repository`, first from the current folder in it."""
    if is_bench:
        return Tree(folder, folder)
    here = Path.cwd().relative_to(repository) if Path.cwd().is_relative_to(repository) else Path()
    paths = [Path(entry) for entry in sys.path if entry and not is_installed(Path(entry))]
    inside = [path.relative_to(repository) for path in paths if path.is_relative_to(repository)]
    places = [folder / each for each in (here / "src", here, Path("src"), Path(), *inside)]
    imports = dict.fromkeys(str(place) for place in places if place.is_dir())
    stated = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    python_path = [path for path in stated if not Path(path).resolve().is_relative_to(repository)]
    return Tree(folder, ROOT, tuple(imports), tuple(python_path))


def is_project(folder: Path) -> bool:
    """Return whether a folder is a checkout of this project."""
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        return bool(tomllib.loads(text)["project"]["name"] == _PROJECT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(repository), *arguments], check=True, capture_output=True)


class SideProcess:
    """Run a worker process in a checkout, which answers one request at a time."""

    def __init__(self, name: str, tree: Tree) -> None:
        """Start the worker with the side's code first on the import path and all else equal."""
        if not (script := tree.bench / _WORKER).is_file():
            line = f"{name} is too old: it has no {_WORKER}; compare with a newer revision"
            raise UnavailableError(line)
        self.name, self.tree = name, tree
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script), *tree.imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=tree.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tree.bench), *tree.python_path))},
            start_new_session=True,  # only the parent gets Ctrl-C
        )

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send a request and return its answer (`BenchError` with the worker's exit code)."""
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
        """Open a configuration (exit 5 if the worker has another `PROTOCOL` or code)."""
        answer = self.ask("open", config=dict(config))
        version = answer.get("protocol")
        if version != PROTOCOL:
            line = f"{self.name} speaks version {version} of the protocol between the sides, this "
            line += f"bench version {PROTOCOL}; run `bench ab` from another checkout, or compare "
            raise UnavailableError(line + "revisions of one version")
        if Path(answer["root"]).resolve() != self.tree.bench.resolve():
            line = f"{self.name} would run the code of another checkout; unset PYTHONPATH and retry"
            raise UnavailableError(line)
        return answer

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
    setups: list[dict[str, object]] = [
        {
            **{name: getattr(env, name) for name in ("device", "dtype", "python")},
            # rows and price are measured for each code, so they may differ
            "torch": asdict(replace(env.torch, product_rows=None, product_price=None)),
            "environment": {k: v for k, v in env.environment.items() if k in VARIABLES},
            "packages": {k: v for k, v in env.packages.items() if k != "decoding-bench"},
            # computed here for both sides: a checkout may name the same machine differently
            "key": comparability_key(replace(env, machine=replace(env.machine, cpu=None))),
        }
        for env in (base, head)
    ]
    for name, value in setups[0].items():
        if value != setups[1][name]:
            line = f"the sides differ in {name}: {value} and {setups[1][name]}"
            raise UnavailableError(f"{line}; only their code may differ")
