"""The verbs `bench fetch` and `bench new-decoder`; training adds its own (`training.cli`)."""

from __future__ import annotations

from pathlib import Path
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


@app.command(rich_help_panel=PANEL)
def new_decoder(
    name: Annotated[str, typer.Argument(help="Of the file; small letters, digits and _.")],
    folder: Annotated[Path, typer.Option(help="Where to write.")] = Path(),
) -> None:
    """Write a working decoder of your own to start from, and its test."""
    from bench.plan.new_decoder import new_decoder as write

    files, class_name = write(name, folder)
    for file in files:
        typer.echo(file)
    typer.echo(f"bench run --decoders {files[0]}:{class_name}")
