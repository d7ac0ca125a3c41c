"""Define the verbs that make or remove files, except those that train (`training.cli`)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.text import counted

app = typer.Typer()
PANEL = "Make models and adapters"


@app.command(rich_help_panel=PANEL)
def fetch(
    name: Annotated[str, typer.Argument(help="A name from `bench ls models`.")],
    progress: options.Progressing = "auto",
) -> None:
    """Check a named model's installed weights and convert them once, for `--model NAME`."""
    from bench.plan.sources import fetch as bring

    with options.choose(progress) as shown:
        folder = bring(name, shown)
    typer.echo(folder)


@app.command(rich_help_panel=PANEL)
def new_decoder(
    name: Annotated[str, typer.Argument(help="File name: lowercase letters, digits and _.")],
    folder: Annotated[Path, typer.Option(help="Output folder.")] = Path(),
) -> None:
    """Write a working decoder and its test, from which to develop your own decoder."""
    from bench.plan.new_decoder import new_decoder as write

    files, class_name = write(name, folder)
    for file in files:
        typer.echo(file)
    typer.echo(f"bench run --decoders {files[0]}:{class_name}")


@app.command(rich_help_panel=PANEL)
def clean() -> None:
    """Remove all compiled graphs (`bench ls graphs`). Later runs compile them again."""
    from decoders.core.hf.checkpoint import graphs_folder

    folder = graphs_folder()
    sizes = [file.stat().st_size for file in folder.glob("*.pt2")]
    shutil.rmtree(folder, ignore_errors=True)
    typer.echo(f"removed {counted(len(sizes), 'graph')}, {sum(sizes) / 1e6:.1f} MB: {folder}")
