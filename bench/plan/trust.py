"""Refuses code that only a file names: it runs if the command line names it, too.

A configuration is data, and a stranger's run folder brings one. Decoders that are built in or
installed need no permission.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.errors import UsageError
from bench.plan.law import law_file
from bench.settings.config import RunConfig
from decoders.core.registry import named_code

NAMING_CODE = ("decoders", "law")
"""Settings that may name code."""


def code_named(configs: Iterable[RunConfig]) -> list[str]:
    """Return the files and folders of code that decoders and laws name, importing none."""
    paths = list[str]()
    for config in configs:
        paths += [path for spec in config.specs for path in named_code(spec)]
        paths += [] if config.law is None else [law_file(config.law)]
    return list(dict.fromkeys(paths))


def check_code(
    configs: Iterable[RunConfig], source: Path, allowed: Sequence[str], command: str | None = None
) -> None:
    """Refuse code that a file names and the command line does not, before anything is imported.

    Args:
        configs: configurations of the file.
        source: the file.
        allowed: paths that the command line names.
        command: the command to repeat with ``--allow``; None: the user knows it.

    Raises:
        UsageError: code is not among the `allowed` paths.
    """
    named, trusted = code_named(configs), {*map(_real, allowed)}
    if not {*map(_real, named)} <= trusted:
        flags = " ".join(f"--allow {shlex.quote(path)}" for path in named)
        then = f"add {flags}" if command is None else f"type: {command} {flags}"
        line = f"{source} names code, which runs only if the command line names it too"
        raise UsageError(f"{line}: read {', '.join(named)}, then {then}")


def check_allowed(
    configs: Iterable[RunConfig], source: Path | None, allowed: Sequence[str]
) -> None:
    """Refuse ``--allow`` for code that no decoder of a file names (`UsageError`)."""
    named = {*map(_real, code_named(configs if allowed else ()))}
    for path in allowed:
        if _real(path) not in named:
            where = "there is no --config" if source is None else f"{source} names no such code"
            raise UsageError(f"--allow {path}: {where}; leave it out")


def _real(path: str) -> str:
    return os.path.realpath(path) if path.isprintable() else path
