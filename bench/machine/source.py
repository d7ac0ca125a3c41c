"""Source code: the state of its git repository, whether it is installed, and its hash."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bench.records.environment import GitState

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def git_state(root: Path, files: Sequence[Path] | None = None) -> GitState:
    """Return a checkout's commit, branch and dirty flag, each None outside a checkout.

    An untracked file makes a checkout dirty; with `files`, only if it is one of them.
    """
    if repository_root(root) != root:
        return GitState()
    untracked = "normal" if files is None else "no"
    status = _git(root, "status", "--porcelain", f"--untracked-files={untracked}")
    new = files and _git(root, "ls-files", "--error-unmatch", "--", *map(str, files)) is None
    return GitState(
        commit=_git(root, "rev-parse", "--verify", "HEAD"),
        branch=_git(root, "symbolic-ref", "--quiet", "--short", "HEAD") or None,
        dirty=None if status is None else bool(status or new),
    )


def repository_root(folder: Path) -> Path | None:
    """Return the root of the git repository around a folder, or None if there is none."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    return None if top is None else Path(top)


def is_installed(path: Path) -> bool:
    """Return whether a path belongs to this Python or its installed packages."""
    return any(path.is_relative_to(place) for place in _places())


@cache
def _places() -> frozenset[Path]:
    return frozenset(Path(sysconfig.get_path(name)) for name in _INSTALLED)


def source_hash(files: Sequence[Path]) -> str:
    """Return the SHA-256 of the contents of source files, in the given order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
