"""Define the verb `bench paper`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli import options
from bench.cli.read import PANEL, TOGETHER

app = typer.Typer()
_Venue = Literal["icml", "acl", "neurips", "iclr", "tmlr", "arxiv"]


@app.command(rich_help_panel=PANEL)
def paper(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run folders, `latest`, or stored references."),
    ],
    venue: Annotated[_Venue, typer.Option(help="Sets the width of figures and table.")] = "icml",
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="Text for a decoder or run. Repeatable."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of the table, as named in summary.csv, comma-separated."),
    ] = None,
    bold: Annotated[
        Literal["best", "none"], typer.Option(help="Number to print bold in a column.")
    ] = "best",
    folder: Annotated[
        Path | None, typer.Option(help="[default: RUN/paper; for several OUTPUT/together/paper]")
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Write figures, table and BibTeX for a paper at a venue, from one or more runs."""
    from bench.extras.paper.table import parse_layout
    from bench.extras.paper.write import write_paper
    from bench.extras.together.runs import load_members
    from bench.records.files import refuse_links
    from bench.stats.validity import EXIT_CODES

    layout = parse_layout(venue, label or [], columns, bold)
    members = load_members(runs, output)
    parent = members[0].side.path if len(members) == 1 else output / TOGETHER
    if folder is None:
        refuse_links(parent, parent / "paper")
    note = partial(typer.echo, err=True)
    for file in write_paper(members, folder or parent / "paper", layout, note):
        typer.echo(file)
    for side in (member.side for member in members):
        for reason in side.reasons:
            typer.echo(f"bench: {side.name} is {side.verdict}: {reason}", err=True)
    raise typer.Exit(max(EXIT_CODES[member.side.verdict] for member in members))
