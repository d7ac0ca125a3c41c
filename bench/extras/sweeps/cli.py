"""Define the verb `bench sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.measure import PANEL

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP.TOML", help="A configuration with [sweep] axes.")
    ],
    folder: Annotated[
        Path | None,
        typer.Option(help="Output folder; resumes a stopped one. [default: OUTPUT/sweep-NAME-…]"),
    ] = None,
    output: options.Output = options.RESULTS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the points.")] = False,
    allow: options.Allowing = None,
    progress: options.Progressing = "auto",
) -> None:
    """Measure a grid of runs over options, batch size, temperature, prompt and output length."""
    from bench.extras.sweeps import sweeps
    from bench.extras.sweeps.settings import load_sweep
    from bench.plan.code import check_code

    plan, allowed = load_sweep(file), allow or ()
    configs = [point.config for point in plan.points]
    check_code(configs, file, allowed)
    folder = folder or output / plan.folder_name
    if dry_run:
        typer.echo("\n".join(sweeps.plan_lines(plan, folder)))
        return
    with options.choose(progress) as shown:
        code, left_out = sweeps.run_sweep(plan, folder, shown, allowed=allowed)
    for line in left_out:
        typer.echo(f"skipped: {line}")
    typer.echo(f"{folder / 'sweep.md'}  {folder / 'summary.csv'}  {folder / 'figures'}")
    raise typer.Exit(int(code))
