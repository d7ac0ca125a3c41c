"""The verb `bench submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.read import PANEL
from bench.errors import Exit, UsageError
from bench.text import counted

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def submit(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Runs; with --check, stored ones, or a folder of them."
        ),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Check folders that are already stored; write nothing.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="The folder's name. [default: MACHINE-MODEL]")
    ] = None,
    to: Annotated[
        Path,
        typer.Option("--to", help="Where the folder is made; in a pool's folder it is a session."),
    ] = Path("results/reference"),
    public: Annotated[
        bool, typer.Option("--public", help="Answers to prompts from your file may be public.")
    ] = False,
    output: options.Output = options.RESULTS,
) -> None:
    """Check runs, and write the folders that add them to the tables by machine and the pools."""
    from bench.extras.sessions.pooled import POOL, load_pool, write_pool
    from bench.extras.submit.checks import problems, stored_problems
    from bench.extras.submit.folder import free_folder, public_files, stored_runs, write_folder
    from bench.records.run_folder import find_run, load_run
    from bench.report.findings import Findings

    if name is not None and (check or len(runs) > 1):
        raise UsageError("--name is for one run that is submitted; leave it out")
    paths = [path for run in runs for path in (stored_runs(run) if check else [run])]
    every = [Findings(load_run(find_run(path, output))) for path in paths]
    files = [{} if check else public_files(findings) for findings in every]
    failed = False
    for findings, kept in zip(every, files, strict=True):
        lines = stored_problems(findings) if check else problems(findings, kept, public=public)
        for line in lines:
            failed = True
            typer.echo(f"bench: {findings.name}: {line}", err=True)
    if failed:
        raise typer.Exit(int(Exit.INVALID))
    if check:
        typer.echo(f"all checks passed: {counted(len(every), 'run')}")
        return
    is_pool = (to / POOL).is_file()
    if is_pool:
        load_pool([str(to), *(str(findings.run.path) for findings in every)], output)
    for findings, kept in zip(every, files, strict=True):
        folder = free_folder(to, name, findings.run)
        typer.echo(f"{folder}  {write_folder(folder, kept) / 1000:.0f} kB")
    if is_pool:
        write_pool(load_pool([str(to)], output), to)
    typer.echo("now: python -m docs.generate, commit, and open a pull request")
