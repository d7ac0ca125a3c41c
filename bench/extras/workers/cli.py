"""Define the verb `bench merge`."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.cli import options
from bench.cli.read import PANEL, print_run
from bench.errors import UsageError

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def merge(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Parts of one plan.")],
    output: options.Output = options.RESULTS,
) -> None:
    """Merge parts of a run from several machines: pool counters, compare times per machine."""
    from bench.extras.workers.merge import merge as join
    from bench.records.run_folder import find_run
    from bench.report.write import write_report

    if len(runs) < 2:
        raise UsageError(f"bench merge needs two or more runs; got only {runs[0]}")
    folder, notes = join([find_run(run, output) for run in runs], output)
    write_report(folder)
    code = print_run(folder)
    for line in notes:
        typer.echo(f"bench: {line}", err=True)
    raise typer.Exit(code)
