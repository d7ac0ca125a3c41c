"""The verb that brings models: `bench fetch`; training adds its own (`training.cli`).

Nothing heavy at module level: the command line imports this to show its help.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bench.cli import options

app = typer.Typer()
PANEL = "Make models and adapters"


@app.command(rich_help_panel=PANEL)
def fetch(
    name: Annotated[str, typer.Argument(help="As `bench ls models` lists it.")],
    progress: options.Progressing = options.ProgressStyle.auto,
) -> None:
    """Check a named model's weights and convert them once, for `--model NAME`."""
    from bench.plan.named_models import fetch as bring

    with options.display(progress) as shown:
        folder = bring(name, shown)
    typer.echo(folder)
