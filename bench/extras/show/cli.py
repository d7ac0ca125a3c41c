"""Define the verb `bench show`."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.cli import options
from bench.cli.read import PANEL

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def show(
    run_dir: options.RunName,
    prompt: Annotated[str | None, typer.Option(help="CONVERSATION#TURN. [default: a few]")] = None,
    decoders: Annotated[str | None, typer.Option("--decoders", "-d", help="Cells to show.")] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Print answers with the tokens of each step coloured."""
    from bench.extras.show.show import show_run
    from bench.records.run_folder import find_run

    cells = decoders.split(",") if decoders else None
    show_run(find_run(run_dir, output), options.console(), prompt=prompt, decoders=cells)
