"""Define the verb `bench index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.read import PANEL
from bench.errors import UsageError

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def index(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs.")]) -> None:
    """Write a web page for a folder of runs: latest verdict of every branch, list, search."""
    from bench.extras.index.index import write_index

    if not folder.is_dir():
        line = f"there is no folder {folder}; bench index takes the parent of run folders"
        raise UsageError(line)
    typer.echo(write_index(folder)[0])
