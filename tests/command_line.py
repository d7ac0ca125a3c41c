"""The command line in this process, and how it ended."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

import typer.main

import cli

_get_command = functools.cache(typer.main.get_command)
"""Typer builds its commands anew for every call, which takes longer than most verbs."""


@dataclass(frozen=True)
class Output:
    code: int
    out: str
    err: str


def all_verbs() -> dict[str, Any]:
    """The verbs of the core and of all extras."""
    group: Any = _get_command(cli.app)
    return {name: group.get_command(None, name) for name in group.list_commands(None)}


def bench(*arguments: object) -> Output:
    """`cli.main` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["bench", *map(str, arguments)]
    code = 0
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(typer.main, "get_command", _get_command),
        ):
            cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = argv
    return Output(code, out.getvalue(), err.getvalue())
