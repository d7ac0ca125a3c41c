"""The verbs that read finished runs, and `bench ls`."""

from __future__ import annotations

import gc
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli import options
from bench.errors import UsageError

app = typer.Typer()
PANEL = "Read results"
TOGETHER = "together"
"""Folder, next to the runs, of reports and papers about several runs."""
_Format = Literal["pytest-benchmark", "github-action-benchmark", "csv", "parquet"]
_Service = Literal["acceptance", "mlflow", "reference", "peft"]
_Venue = Literal["icml", "acl", "neurips", "iclr", "tmlr", "arxiv"]


@app.command(rich_help_panel=PANEL)
def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="A run folder, or `latest`; several give one table."),
    ],
    reference: options.Published = None,
    folder: Annotated[
        Path | None, typer.Option(help="For several runs. [default: OUTPUT/together]")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Print all columns and footnotes.")] = False,
    output: options.Output = options.RESULTS,
) -> None:
    """Write a run's tables, figures and report again, or one report about several runs."""
    gc.disable()  # a large run has millions of numbers, and no reference cycles to collect
    try:
        if len(runs) == 1:
            code = _report_one(runs[0], reference, folder, output, wide)
        else:
            code = _report_together(runs, reference, folder, output)
    finally:
        gc.enable()
    raise typer.Exit(code)


def _report_one(
    name: str, reference: str | None, folder: Path | None, output: Path, wide: bool
) -> int:
    from bench.records.run_folder import find_run
    from bench.report.write import print_findings, print_next, write_report

    if folder is not None:
        line = "--folder is for a report of several runs; one run's report is in its own folder"
        raise UsageError(line)
    run_folder, console = find_run(name, output), options.console()
    code = print_findings(write_report(run_folder, reference), console, wide=wide)
    print_next(run_folder, console, wide=wide)
    return int(code)


def _report_together(
    names: list[str], reference: str | None, folder: Path | None, output: Path
) -> int:
    from bench.report.page.joint import print_joint, write_joint
    from bench.report.together import load_members

    if reference is not None:
        line = "--reference is for a report of one run: bench report RUN --reference NAME"
        raise UsageError(line)
    folder, members = folder or output / TOGETHER, load_members(names, output)
    write_joint(members, folder)
    code = print_joint(members, options.console())
    _say_where(folder)
    return int(code)


@app.command(rich_help_panel=PANEL)
def show(
    run_dir: options.RunName,
    prompt: Annotated[str | None, typer.Option(help="CONVERSATION#TURN. [default: a few]")] = None,
    decoders: Annotated[str | None, typer.Option("--decoders", "-d", help="Cells to show.")] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Print answers with the tokens of each step coloured."""
    from bench.records.run_folder import find_run
    from bench.report.texts.show import show_run

    cells = decoders.split(",") if decoders else None
    show_run(find_run(run_dir, output), options.console(), prompt=prompt, decoders=cells)


@app.command(rich_help_panel=PANEL)
def explain(
    run_dir: options.RunName,
    cost: Annotated[
        Path | None, typer.Option(help="A measured curve: a `bench cost` folder.")
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Explain in words where the time went and what would help most."""
    from bench.records.run_folder import find_run, load_run
    from bench.report.findings import Findings
    from bench.report.texts.explain import print_explanation
    from bench.stats.cost_curve import load_cost

    findings = Findings(load_run(find_run(run_dir, output)))
    print_explanation(findings, options.console(), None if cost is None else load_cost(cost))


@app.command(rich_help_panel=PANEL)
@options.configured(
    project=options.option(str, "mlflow: the experiment. [default: decoding-bench]"),
    figures=options.option(
        list[str], "reference: a figure to keep. Repeatable.", "--figure", metavar="NAME"
    ),
)
def export(
    run_dir: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run or `latest`; for peft an adapter folder."),
    ],
    to: Annotated[Literal[_Format, _Service], typer.Option("--to", help="Format.")],
    folder: Annotated[Path | None, typer.Option(help="[default: in RUN/export]")] = None,
    *,
    given: options.Given,
    output: options.Output = options.RESULTS,
) -> None:
    """Export a run to another tool, a tracker or a repository, or an adapter to PEFT."""
    from bench.records.run_folder import find_run, load_run
    from bench.report.exports.export import Choices
    from bench.report.exports.export import export as write
    from bench.report.findings import Findings
    from bench.stats.validity import from_here

    choices = Choices(**{name: value for name, value in given.items() if value is not None})
    if to == "peft":
        choices.refuse_for(to)
        _export_adapter(Path(run_dir).expanduser(), folder)
        return
    findings = Findings(load_run(find_run(run_dir, output)))
    for written in write(findings, to, folder, choices):
        typer.echo(written)
    for line in findings.validity.reasons:
        reason = from_here(line, findings.run.path)
        typer.echo(f"bench: {findings.name} is {findings.verdict}: {reason}", err=True)


def _export_adapter(adapter: Path, folder: Path | None) -> None:
    from bench.records.files import refuse_links
    from decoders.core.adapter.peft import to_peft

    written = folder or adapter / "export" / "peft"
    if folder is None:
        refuse_links(adapter, written)
    for path in written.glob("*"):
        refuse_links(written, path)
    try:
        files = to_peft(adapter, written)
    except ValueError as error:
        raise UsageError(str(error)) from error
    for file in files:
        typer.echo(file)


@app.command(rich_help_panel=PANEL)
def paper(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run folders, `latest`, or stored references."),
    ],
    venue: Annotated[_Venue, typer.Option(help="Sets the width of figures and table.")] = "icml",
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="DECODER=TEXT", help="Name to print for a decoder. Repeatable."),
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
    from bench.records.files import refuse_links
    from bench.report.paper.layout import parse_layout
    from bench.report.paper.write import write_paper
    from bench.report.together import load_members
    from bench.stats.validity import EXIT_CODES, from_here

    layout = parse_layout(venue, label or [], columns, bold)
    members = load_members(runs, output)
    own = members[0].side.path if len(members) == 1 else output / TOGETHER
    if folder is None:
        refuse_links(own, own / "paper")
    note = partial(typer.echo, err=True)
    for file in write_paper(members, folder or own / "paper", layout, note):
        typer.echo(file)
    for side in (member.side for member in members):
        for reason in side.reasons:
            typer.echo(
                f"bench: {side.name} is {side.verdict}: {from_here(reason, side.path)}", err=True
            )
    raise typer.Exit(max(EXIT_CODES[member.side.verdict] for member in members))


@app.command(rich_help_panel=PANEL)
def ls(
    what: Annotated[Literal["decoders", "models", "tasks", "graphs", "runs"], typer.Argument()],
    as_json: options.JsonFlag = False,
    output: options.Output = options.RESULTS,
) -> None:
    """List decoders, models, tasks, compiled graphs, or runs."""
    from bench.cli import listing

    if as_json:
        typer.echo(json.dumps(listing.facts_of(what, output), indent=1, default=str))
    else:
        listing.print_table(listing.table_of(what, output), options.console())


@app.command(rich_help_panel=PANEL)
def show_prompts(
    tasks: Annotated[
        str | None, typer.Option("--tasks", "-t", help="As for `run`. [default: zoo]")
    ] = None,
    split: Annotated[str | None, typer.Option(help="As for `run`.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-L", help="Conversations shown.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the subset. [default: 0]")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file, e.g. to name columns.")
    ] = None,
) -> None:
    """Print the prompts of a run, with their references, without running it."""
    from bench.cli.listing import show_prompts as print_prompts
    from bench.plan.tokenise import tasks_of
    from bench.settings.config import load_config

    given = {"tasks": tasks, "split": split, "limit": limit, "seed": seed}
    chosen = load_config(config, given, {name: f"--{name}" for name in given})
    print_prompts(tasks_of(chosen), options.console(), limit)


def print_run(run_dir: Path) -> int:
    """Print a run's numbers and verdict; return the exit code of the verdict."""
    from bench.records.run_folder import load_run
    from bench.report.findings import Findings
    from bench.report.write import print_findings, print_next

    console = options.console()
    code = print_findings(Findings(load_run(run_dir)), console)
    print_next(run_dir, console)
    return int(code)


def print_pool(runs: list[str], parent: Path, folder: Path) -> int:
    """Pool runs, write the table to a folder and print it; return the exit code."""
    from bench.report import pooled

    found = pooled.load_pool(runs, parent)
    files = pooled.write_pool(found, folder)
    code = pooled.print_pool(found, options.console())
    typer.echo("  ".join(map(str, files)))
    return int(code)


def _say_where(run_dir: Path) -> None:
    typer.echo(f"{run_dir / 'report.html'}  {run_dir / 'report.md'}  {run_dir / 'figures'}")
