"""Define the command line: the app with all verbs (`bench.cli`), and `main`.

Tables go to stdout; progress, warnings and errors go to stderr. A failure prints one line and ends
with a documented exit code (`bench.errors.Exit`).
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from bench.cli import make, measure, read, regression
from bench.cli.group import AllVerbs
from bench.errors import BenchError, Exit, room_for
from bench.machine.openmp import shorten_spinning

app = typer.Typer(
    cls=AllVerbs,
    help="Benchmark of decoding strategies of language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the console script, and turn known errors into one line and an exit code."""
    shorten_spinning()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that is not UTF-8 shows "?" instead
            stream.reconfigure(errors="replace")
    try:
        with room_for("what this command computes at once"):
            app()
    except BenchError as error:
        sys.stderr.write(f"bench: {error.message}\n")
        sys.exit(error.exit_code)
    except PermissionError as error:
        sys.stderr.write(f"bench: {error.filename} is closed to you; change its permissions\n")
        sys.exit(int(Exit.UNAVAILABLE))


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"bench {version('decoding-bench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Benchmark of decoding strategies of language models."""


for part in (measure, read, make, regression):
    app.add_typer(part.app)


if __name__ == "__main__":
    main()
