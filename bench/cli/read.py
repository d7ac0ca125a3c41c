"""The verbs that read finished runs, and `bench ls`: parse, call, print.

Nothing heavy at module level: the command line imports this to show its help.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bench.cli import options

if TYPE_CHECKING:
    from bench.report.export import Format, Tracker

app = typer.Typer()
PANEL = "Read results"
_TOGETHER = "together"
"""The folder, beside runs, of what is made of several of them."""


class _ListKind(StrEnum):
    """What `bench ls` lists."""

    decoders = "decoders"
    models = "models"
    tasks = "tasks"
    runs = "runs"


class _ExportFormat(StrEnum):
    """Formats of `bench export`."""

    pytest_benchmark = "pytest-benchmark"
    github_action_benchmark = "github-action-benchmark"
    csv = "csv"
    parquet = "parquet"
    mlflow = "mlflow"
    trackio = "trackio"
    hub = "hub"
    eval_results = "eval-results"
    peft = "peft"


class _Venue(StrEnum):
    """For whose papers `bench paper` writes."""

    icml = "icml"
    acl = "acl"
    neurips = "neurips"
    iclr = "iclr"
    tmlr = "tmlr"
    arxiv = "arxiv"


class Bold(StrEnum):
    """What `bench paper` prints in bold."""

    best = "best"
    none = "none"


@app.command(rich_help_panel=PANEL)
def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="A run folder, or `latest`; several for one table."),
    ],
    reference: options.Published = None,
    folder: Annotated[
        Path | None, typer.Option(help="Of several runs. [default: OUTPUT/together]")
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Write a run's tables, figures and report again, or one report of several runs."""
    gc.disable()  # a large run has millions of numbers, and no cycle of them to be collected
    try:
        code = (
            _report_one(runs[0], reference, folder, output)
            if len(runs) == 1
            else _report_together(runs, reference, folder or output / _TOGETHER, output)
        )
    finally:
        gc.enable()
    raise typer.Exit(code)


def _report_one(name: str, reference: str | None, folder: Path | None, output: Path) -> int:
    from rich.console import Console

    from bench.errors import UsageError
    from bench.records.run_folder import find_run
    from bench.report.write import print_findings, write_report

    if folder is not None:
        line = "--folder is for the report of several runs; that of one lies in the run's own"
        raise UsageError(line)
    run_folder = find_run(name, output)
    code = print_findings(write_report(run_folder, reference), Console())
    _say_where(run_folder)
    return int(code)


def _report_together(names: list[str], reference: str | None, folder: Path, output: Path) -> int:
    from rich.console import Console

    from bench.errors import UsageError
    from bench.report.joint.write import print_joint, write_joint
    from bench.report.together import load_members

    if reference is not None:
        line = "--reference stands beneath the rows of one run: bench report RUN --reference NAME"
        raise UsageError(line)
    members = load_members(names, output)
    write_joint(members, folder)
    code = print_joint(members, Console())
    _say_where(folder)
    return int(code)


@app.command(rich_help_panel=PANEL)
def show(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")],
    prompt: Annotated[str | None, typer.Option(help="CONVERSATION#TURN. [default: a few]")] = None,
    decoders: Annotated[str | None, typer.Option("--decoders", "-d", help="Cells.")] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Print answers with the tokens of each step coloured."""
    from rich.console import Console

    from bench.records.run_folder import find_run
    from bench.report.texts.show import show_run

    cells = decoders.split(",") if decoders else None
    show_run(find_run(run_dir, output), Console(), prompt=prompt, decoders=cells)


@app.command(rich_help_panel=PANEL)
def explain(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")],
    cost: Annotated[
        Path | None, typer.Option(help="A measured curve: a `bench cost` folder.")
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Say in words where the time went and what would help most."""
    from rich.console import Console

    from bench.records.run_folder import find_run, load_run
    from bench.report.findings import Findings
    from bench.report.texts.explain import print_explanation
    from bench.stats.cost_curve import load_cost

    measured = None if cost is None else load_cost(cost)
    print_explanation(Findings(load_run(find_run(run_dir, output))), Console(), measured)


@app.command(rich_help_panel=PANEL)
def export(
    run_dir: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run folder, or `latest`; of peft an adapter's."),
    ],
    to: Annotated[_ExportFormat, typer.Option("--to", help="Format.")],
    folder: Annotated[Path | None, typer.Option(help="[default: in RUN/export]")] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Of mlflow, trackio: experiment, project. [default: decoding-bench]"),
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="A dataset of the Hugging Face hub: hub uploads to it, eval-results link to it.",
        ),
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="Of hub: the card's licence.")
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAMILY=OWNER/DATASET#TASK",
            help="Of eval-results: the hub's benchmark of a family. Repeatable.",
        ),
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Write a run for another tool, a tracker or the Hugging Face hub; or an adapter for PEFT."""
    from bench.records.run_folder import find_run, load_run
    from bench.report.export import Choices, deliver
    from bench.report.findings import Findings
    from bench.stats.validity import from_here

    choices = Choices(project=project, repo=repo, licence=licence, benchmarks=benchmark or ())
    if to is _ExportFormat.peft:
        choices.refuse_for(to.value)
        _export_adapter(Path(run_dir).expanduser(), folder)
        return
    findings = Findings(load_run(find_run(run_dir, output)))
    for place in deliver(findings, cast("Format | Tracker", to.value), folder, choices):
        typer.echo(place)
    for line in findings.validity.reasons:
        reason = from_here(line, findings.run.path)
        typer.echo(f"bench: {findings.name} is {findings.verdict}: {reason}", err=True)


def _export_adapter(adapter: Path, folder: Path | None) -> None:
    from bench.errors import UsageError
    from decoders.core.adapter.peft import to_peft

    try:
        files = to_peft(adapter, folder or adapter / "export" / "peft")
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
    venue: Annotated[_Venue, typer.Option(help="Whose columns and checklist.")] = _Venue.icml,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="DECODER=TEXT", help="What to call a decoder. Repeatable."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Numbers of the table, by their names in summary.csv, comma-separated."),
    ] = None,
    bold: Annotated[Bold, typer.Option(help="What is bold in a column.")] = Bold.best,
    folder: Annotated[
        Path | None, typer.Option(help="[default: RUN/paper; of several OUTPUT/together/paper]")
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Write figures, table, texts and BibTeX for a venue's paper, of one run or several."""
    from bench.report.paper.layout import parse_layout
    from bench.report.paper.write import write_paper
    from bench.report.together import load_members
    from bench.stats.validity import from_here

    layout = parse_layout(venue.value, label or [], columns, bold.value)
    members = load_members(runs, output)
    own = members[0].side.path if len(members) == 1 else output / _TOGETHER
    note = partial(typer.echo, err=True)
    for file in write_paper(members, folder or own / "paper", layout, note):
        typer.echo(file)
    for side in (member.side for member in members):
        for reason in side.reasons:
            typer.echo(
                f"bench: {side.name} is {side.verdict}: {from_here(reason, side.path)}", err=True
            )


@app.command(rich_help_panel=PANEL)
def ls(
    what: Annotated[_ListKind, typer.Argument()],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: options.Output = options.RESULTS,
) -> None:
    """List decoders, models, tasks, or runs."""
    from rich.console import Console

    from bench.report import listing

    facts: dict[_ListKind, Callable[[], list[dict[str, Any]]]] = {
        _ListKind.decoders: listing.decoder_facts,
        _ListKind.models: listing.model_facts,
        _ListKind.tasks: listing.task_facts,
        _ListKind.runs: partial(listing.run_facts, output),
    }
    tables: dict[_ListKind, Callable[[], Any]] = {
        _ListKind.decoders: listing.list_decoders,
        _ListKind.models: listing.list_models,
        _ListKind.tasks: listing.list_tasks,
        _ListKind.runs: partial(listing.list_runs, output),
    }
    if as_json:
        typer.echo(json.dumps(facts[what](), indent=1, default=str))
    else:
        listing.print_table(tables[what](), Console())


@app.command(rich_help_panel=PANEL)
def show_prompts(
    tasks: Annotated[
        str | None, typer.Option("--tasks", "-t", help="As for `run`. [default: zoo]")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-L", help="Conversations.")] = None,
    seed: Annotated[int | None, typer.Option(help="Chooses the subset. [default: 0]")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML, e.g. to name columns.")
    ] = None,
) -> None:
    """Print what a run would ask, with references."""
    from rich.console import Console

    from bench.plan.tokenise import tasks_of
    from bench.report.listing import show_prompts as print_prompts
    from bench.settings.config import load_config

    given = {"tasks": tasks, "limit": limit, "seed": seed}
    chosen = load_config(config, given, {name: f"--{name}" for name in given})
    asked = tasks_of(
        chosen.tasks, limit=chosen.limit, seed=chosen.seed, columns=chosen.columns or None
    )
    print_prompts(asked, Console(), limit)


def print_run(run_dir: Path) -> int:
    """Print a run's numbers and verdict; returns the exit code that the verdict calls for."""
    from rich.console import Console

    from bench.report.write import print_summary

    code = print_summary(run_dir, Console())
    _say_where(run_dir)
    return int(code)


def _say_where(run_dir: Path) -> None:
    typer.echo(f"{run_dir / 'report.html'}  {run_dir / 'report.md'}  {run_dir / 'figures'}")
