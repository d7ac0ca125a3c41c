"""The verbs that gather runs: `bench pool`, `bench merge` and `bench index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.read import PANEL, TOGETHER, print_pool, print_run
from bench.errors import UsageError

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def pool(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Runs of one job, or their folders.")
    ],
    folder: Annotated[
        Path | None, typer.Option(help="[default: the folder given, else OUTPUT/together]")
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Pool sessions of one job from any day and machine: mean, and range of the next session."""
    held = [path for path in (Path(runs[0]), output / runs[0]) if path.is_dir()]
    own = held[0] if held and len(runs) == 1 else output / TOGETHER
    raise typer.Exit(print_pool(runs, output, folder or own))


@app.command(rich_help_panel=PANEL)
def merge(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Parts of one plan.")],
    output: options.Output = options.RESULTS,
) -> None:
    """Merge parts of a run from several machines; pool counters, compare times per machine."""
    from bench.records.run_folder import find_run
    from bench.report.write import write_report
    from bench.workers.merge import merge as join

    if len(runs) < 2:
        raise UsageError(f"bench merge needs two or more runs; got only {runs[0]}")
    folder, notes = join([find_run(run, output) for run in runs], output)
    write_report(folder)
    code = print_run(folder)
    for line in notes:
        typer.echo(f"bench: {line}", err=True)
    raise typer.Exit(code)


@app.command(rich_help_panel=PANEL)
def index(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs.")],
) -> None:
    """Write a web page for a folder of runs: latest verdict of every branch, curves, search."""
    from bench.report.page.index import write_index

    if not folder.is_dir():
        line = f"there is no folder {folder}; bench index takes the parent of run folders"
        raise UsageError(line)
    typer.echo(write_index(folder)[0])
