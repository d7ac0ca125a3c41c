"""The verb that measures over a grid: `bench sweep`: parse, call, print.

Nothing heavy at module level: the command line imports this to show its help.
"""

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
        typer.Option(help="Where to; one that was stopped goes on. [default: OUTPUT/sweep-NAME-…]"),
    ] = None,
    output: options.Output = options.RESULTS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and an ETA.")] = False,
    progress: options.Progressing = options.ProgressStyle.auto,
) -> None:
    """Measure runs over a grid: options, batch size, temperature, prompt and output length."""
    from bench import sweeps
    from bench.settings.sweep import load_sweep

    asked = load_sweep(file)
    made = folder or output / asked.folder_name
    with options.display(progress) as shown:
        if dry_run:
            typer.echo("\n".join(sweeps.plan_lines(asked, made, shown)))
            return
        ended = sweeps.run_sweep(asked, made, shown)
    for line in ended.left_out:
        typer.echo(f"left out: {line}")
    typer.echo(f"{made / 'sweep.md'}  {made / 'summary.csv'}  {made / 'figures'}")
    raise typer.Exit(ended.exit_code)
