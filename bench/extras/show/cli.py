"""Define the verbs `bench show` and `bench show-prompts`."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.cli import options
from bench.cli.group import Arguments, Configured
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


_OF_PROMPTS = options.fields(
    *("tasks", "split", "limit", "seed", "config"), limit="Conversations shown."
)


@app.command(cls=Configured.by(_OF_PROMPTS), rich_help_panel=PANEL)
def show_prompts(arguments: Arguments) -> None:
    """Print the prompts of a run, with their references, without running it."""
    from bench.extras.show import prompts
    from bench.plan.tokenise import read_tasks

    task_set = read_tasks(options.load(arguments))
    prompts.show_prompts(task_set, options.console(), arguments["limit"])
