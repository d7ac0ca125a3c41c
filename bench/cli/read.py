"""Define the verbs that read finished runs, and `bench ls`."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli import options
from bench.cli.group import Arguments, Configured
from bench.errors import UsageError
from bench.registry import extra

app = typer.Typer()
PANEL = "Read results"
TOGETHER = "together"
"""Folder next to the runs for reports and papers about several runs."""


@app.command(cls=Configured.by(options.fields("reference")), rich_help_panel=PANEL)
def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="A run folder, or `latest`; several give one table."),
    ],
    arguments: Arguments,
    folder: Annotated[
        Path | None, typer.Option(help="For several runs. [default: OUTPUT/together]")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Print all columns and footnotes.")] = False,
    output: options.Output = options.RESULTS,
) -> None:
    """Write a run's tables, figures and report again, or one report about several runs."""
    from bench.records.run_folder import find_run
    from bench.report.write import print_findings, print_next, write_report

    reference, console = arguments["reference"], options.console()
    if folder is not None and len(runs) == 1:
        line = "--folder is for a report of several runs; one run's report is in its own folder"
        raise UsageError(line)
    if reference is not None and len(runs) > 1:
        line = "--reference is for a report of one run: bench report RUN --reference NAME"
        raise UsageError(line)
    gc.disable()  # a large run has millions of numbers, and no reference cycles to collect
    try:
        if len(runs) == 1:
            run_folder = find_run(runs[0], output)
            code = print_findings(write_report(run_folder, reference), console, wide=wide)
            print_next(run_folder, console, wide=wide)
        else:
            folder = folder or output / TOGETHER
            code = extra("bench.jobs", "report-together")(runs, output, folder, console)
            typer.echo(f"{folder / 'report.html'}  {folder / 'report.md'}  {folder / 'figures'}")
    finally:
        gc.enable()
    raise typer.Exit(int(code))


@app.command(rich_help_panel=PANEL)
def ls(
    what: Annotated[Literal["decoders", "models", "tasks", "graphs", "runs"], typer.Argument()],
    as_json: options.JsonFlag = False,
    output: options.Output = options.RESULTS,
) -> None:
    """List decoders, models, tasks, compiled graphs, or runs."""
    from bench.cli import listing

    if as_json:
        typer.echo(json.dumps(listing.list_facts(what, output), indent=1, default=str))
    else:
        console = options.console()
        table = listing.facts_table(what, output, narrow=console.is_terminal)
        options.print_table(table, console)


def print_run(run_dir: Path) -> int:
    """Print a run's numbers and verdict, and return the exit code of the verdict."""
    from bench.records.run_folder import load_run
    from bench.report.findings import Findings
    from bench.report.write import print_findings, print_next

    console = options.console()
    code = print_findings(Findings(load_run(run_dir)), console)
    print_next(run_dir, console)
    return int(code)
