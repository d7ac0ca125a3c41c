"""Define the verb `bench submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.read import PANEL
from bench.errors import BenchError, Exit, InvalidRunError, UsageError

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def submit(
    run: options.RunName,
    name: Annotated[
        str | None, typer.Option(help="The folder's name. [default: MACHINE-MODEL]")
    ] = None,
    to: Annotated[
        Path, typer.Option("--to", help="Where the folder is made; in a pool it is a session.")
    ] = Path("results/reference"),
    public: Annotated[
        bool, typer.Option("--public", help="Answers to prompts from your file may be public.")
    ] = False,
    output: options.Output = options.RESULTS,
) -> None:
    """Check a run, and store it where the tables by machine and the pools find it."""
    from bench.extras.exports.export import BY_PROMPT, reference
    from bench.extras.sessions.pooled import POOL, load_pool, write_pool
    from bench.extras.submit.submission import free_name, problems
    from bench.extras.together.runs import are_one
    from bench.records.run_folder import create_run_dir, find_run, load_run
    from bench.report.findings import Findings
    from bench.report.write import REPORT
    from bench.stats.folders import run_folders

    findings = Findings(load_run(find_run(run, output)))
    for each in run_folders(to):
        try:
            is_stored = are_one(findings.run, load_run(each, answers=False))
        except BenchError:  # a damaged stored run hinders no other one
            continue
        if is_stored:
            raise InvalidRunError(f"{findings.name} is stored already: {each}")
    files = {name: data for name, data in reference(findings).items() if name != REPORT}
    if failed := list(problems(findings, files, public=public)):
        for line in failed:
            typer.echo(f"bench: {findings.name}: {line}", err=True)
        raise typer.Exit(int(Exit.INVALID))
    folder = to / (name or free_name(to, findings.run))
    if folder.exists():
        raise UsageError(f"{folder} exists; remove it, or give another --name")
    if is_pool := (to / POOL).is_file():
        del files[BY_PROMPT]  # pooling computes it
        load_pool([str(to), str(findings.run.path)], output)  # refuses a run of another job
    create_run_dir(to, folder.name, files)  # all files or none
    if is_pool:
        write_pool(load_pool([str(to)], output), to)
    typer.echo(f"{folder}: now `python -m docs.generate`, commit, and open a pull request")
