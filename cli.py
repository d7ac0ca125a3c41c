"""The command line: parse, call `bench`, print. No logic, and nothing heavy at module level.

Tables go to stdout; progress, warnings and errors to stderr. A failure is one line and one of the
documented exit codes (`bench.errors.Exit`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from bench import options
from bench.errors import BenchError, Exit
from bench.regress import commands as regress
from bench.shortage import room_for
from training import commands as training

if TYPE_CHECKING:
    from bench.config import RunConfig
    from bench.session import Ended

MEASURE, READ, MAKE = "Measure", "Read results", "Make models and adapters"


@contextmanager
def _stoppable() -> Iterator[None]:
    """An interruption that nobody handled is a line with its exit code; typer ends without one."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise BenchError("interrupted", Exit.INTERRUPTED) from stop


class Grouped(TyperGroup):
    """Commands under headings, in the order they are added."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line."""
        with _stoppable():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse what is empty, as an unset variable of a script is: no option means that."""
        for before, given in pairwise(["bench", *args]):
            name, equals, value = given.partition("=")
            written = value if name.startswith("--") and equals else given
            if not written.strip():
                at = name if name.startswith("--") else f"what follows {before}"
                line = f"{at} is empty; give a value, or leave it out"
                raise BenchError(line, Exit.USAGE)
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _stoppable():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in order."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section per heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = str(getattr(command, "rich_help_panel", None) or "Commands")
            sections.setdefault(panel, []).append((name, command.get_short_help_str(limit=500)))
        for panel, rows in sections.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=Grouped,
    help="Benchmark of decoding strategies of language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Listed(StrEnum):
    """What `bench ls` lists."""

    decoders = "decoders"
    models = "models"
    tasks = "tasks"
    runs = "runs"


class Exported(StrEnum):
    """Formats of `bench export`."""

    pytest_benchmark = "pytest-benchmark"
    github_action_benchmark = "github-action-benchmark"
    csv = "csv"
    parquet = "parquet"


class Venue(StrEnum):
    """Whose column width `bench paper` draws for."""

    icml = "icml"
    acl = "acl"
    neurips = "neurips"
    iclr = "iclr"
    tmlr = "tmlr"


class Bold(StrEnum):
    """What `bench paper` prints in bold."""

    best = "best"
    none = "none"


def main() -> None:
    """Entry point of the console script: known errors become one line and an exit code."""
    try:
        with room_for("what this command computes at once"):
            app()
    except BenchError as error:
        sys.stderr.write(f"bench: {error.message}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("bench: interrupted\n")
        sys.exit(Exit.INTERRUPTED)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"bench {version('decoding-bench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Benchmark of decoding strategies of language models."""


@app.command(rich_help_panel=MEASURE)
def run(
    context: typer.Context,
    decoders: options.Decoders = None,
    model: options.Model = None,
    draft: options.Draft = None,
    adapter: options.Adapters = None,
    tasks: options.Tasks = None,
    limit: options.Limit = None,
    quality_limit: Annotated[
        int | None, typer.Option(help="Held-out prompts per family to score. [default: 40]")
    ] = None,
    phase_limit: Annotated[
        int | None, typer.Option(help="Prompts to split the time of, afterwards. [default: 6]")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="[default: 3]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences at once. [default: 1]")] = None,
    max_new_tokens: options.MaxNewTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    dtype: options.DType = None,
    device: options.Device = None,
    threads: options.Threads = None,
    attention: options.Attention = None,
    fixed_length: Annotated[
        bool | None, typer.Option("--fixed-length", help="Ignore EOS: every answer is as long.")
    ] = None,
    timeout: options.Timeout = None,
    overlong: options.Overlong = None,
    protocol: Annotated[
        str | None, typer.Option(help="specbench: its questions, template and counting.")
    ] = None,
    reference: options.Reference = None,
    run_name: Annotated[str | None, typer.Option(help="Part of the run folder's name.")] = None,
    config: options.Config = None,
    output: options.Output = options.RESULTS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and an ETA.")] = False,
    progress: options.Progressing = options.Shown.auto,
) -> None:
    """Compare decoders: tokens per call, latency, memory and quality, with intervals."""
    chosen = _chosen(context, config, adapter)
    with options.display(progress) as shown:
        if dry_run:
            from bench.dryrun import dry_run as plan_only

            typer.echo("\n".join(plan_only(chosen, shown)))
            return
        from bench import session

        ended = session.run(chosen, output, shown)
    _conclude(ended)


@app.command(rich_help_panel=MEASURE)
def resume(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")],
    output: options.Output = options.RESULTS,
    progress: options.Progressing = options.Shown.auto,
) -> None:
    """Complete a run that was interrupted or killed; nothing is measured twice."""
    from bench import session
    from bench.rundir import find_run

    with options.display(progress) as shown:
        ended = session.resume(find_run(run_dir, output), shown)
    _conclude(ended)


@app.command(rich_help_panel=MEASURE)
def verify(
    context: typer.Context,
    decoders: options.Decoders = None,
    model: options.Model = None,
    draft: options.Draft = None,
    adapter: options.Adapters = None,
    tasks: options.Tasks = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-L", help="Conversations. [default: zoo 24]")
    ] = None,
    max_new_tokens: options.MaxNewTokens = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of the sampled checks. [default: 0.8]")
    ] = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: Annotated[int | None, typer.Option(help="Of answers and draws. [default: 0]")] = None,
    dtype: options.DType = None,
    device: options.Device = None,
    threads: options.Threads = None,
    attention: options.Attention = None,
    timeout: options.Timeout = None,
    overlong: options.Overlong = None,
    config: options.Config = None,
    law: Annotated[
        bool, typer.Option("--law", help="Also test the law of answers on the model itself.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Answers drawn in every law test.")] = 5000,
    json: Annotated[Path | None, typer.Option(help="Write everything found to a file.")] = None,
    progress: options.Progressing = options.Shown.auto,
) -> None:
    """Check that decoders that claim to be lossless are: equality with AR, and the law."""
    from rich.console import Console

    from bench.lossless.verify import verify as examine

    chosen = _chosen(context, config, adapter)
    if json is not None and not json.parent.is_dir():  # said now, not when all is measured
        raise BenchError(f"--json {json}: the folder {json.parent} does not exist", Exit.USAGE)
    with options.display(progress) as shown:
        found = examine(chosen, shown, law=law, num_draws=draws)
    found.print(Console())
    if json is not None:
        found.write(json)
    raise typer.Exit(int(found.exit_code))


@app.command(rich_help_panel=READ)
def report(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")],
    reference: options.Reference = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Write a run's tables, figures and report again; needs no model."""
    from bench.report import write_report
    from bench.rundir import find_run

    folder = find_run(run_dir, output)
    write_report(folder, reference)
    raise typer.Exit(_print_summary(folder, reference))


@app.command(rich_help_panel=READ)
def show(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")],
    prompt: Annotated[str | None, typer.Option(help="CONVERSATION#TURN. [default: a few]")] = None,
    decoders: Annotated[str | None, typer.Option("--decoders", "-d", help="Cells.")] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Print answers with the tokens of each step coloured."""
    from rich.console import Console

    from bench.reporting.show import show_run
    from bench.rundir import find_run

    cells = decoders.split(",") if decoders else None
    show_run(find_run(run_dir, output), Console(), prompt=prompt, decoders=cells)


@app.command(rich_help_panel=READ)
def explain(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")],
    output: options.Output = options.RESULTS,
) -> None:
    """Say in words where the time went and what would help most."""
    from rich.console import Console

    from bench.reporting.explain import print_explanation
    from bench.reporting.findings import Findings
    from bench.rundir import find_run, load_run

    print_explanation(Findings(load_run(find_run(run_dir, output))), Console())


@app.command(rich_help_panel=READ)
def export(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")],
    to: Annotated[Exported, typer.Option("--to", help="Format.")],
    folder: Annotated[Path | None, typer.Option(help="[default: RUN/export]")] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Write a run's numbers in the format of another tool."""
    from bench.reporting.export import export as write
    from bench.reporting.findings import Findings
    from bench.rundir import find_run, load_run

    found = find_run(run_dir, output)
    findings = Findings(load_run(found))
    for file in write(findings, to.value, folder or found / "export"):
        typer.echo(file)
    for reason in findings.validity.reasons:
        typer.echo(f"bench: {findings.name} is {findings.verdict}: {reason}", err=True)


@app.command(rich_help_panel=READ)
def paper(
    run_dir: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, `latest`, or a reference.")
    ],
    venue: Annotated[Venue, typer.Option(help="Whose column width.")] = Venue.icml,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="DECODER=TEXT", help="What to call a decoder. Repeatable."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Numbers of the table, by their names in summary.csv, comma-separated."),
    ] = None,
    bold: Annotated[Bold, typer.Option(help="What is bold in a column.")] = Bold.best,
    folder: Annotated[Path | None, typer.Option(help="[default: RUN/paper]")] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Write a figure and a booktabs table (LaTeX) that fit a venue's column."""
    from bench.regress.sides import load_side
    from bench.reporting.paper import parse_layout, write_paper

    layout = parse_layout(venue.value, label or [], columns, bold.value)
    side = load_side(run_dir, output)
    note = partial(typer.echo, err=True)
    for file in write_paper(side, folder or side.path / "paper", layout, note):
        typer.echo(file)
    for reason in side.reasons:
        typer.echo(f"bench: {side.name} is {side.verdict}: {reason}", err=True)


@app.command(rich_help_panel=READ)
def ls(
    what: Annotated[Listed, typer.Argument()],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: options.Output = options.RESULTS,
) -> None:
    """List decoders, models, tasks, or runs."""
    from rich.console import Console

    from bench.reporting import listing

    facts: dict[Listed, Callable[[], list[dict[str, Any]]]] = {
        Listed.decoders: listing.decoder_facts,
        Listed.models: listing.model_facts,
        Listed.tasks: listing.task_facts,
        Listed.runs: partial(listing.run_facts, output),
    }
    tables: dict[Listed, Callable[[], Any]] = {
        Listed.decoders: listing.list_decoders,
        Listed.models: listing.list_models,
        Listed.tasks: listing.list_tasks,
        Listed.runs: partial(listing.list_runs, output),
    }
    if as_json:
        typer.echo(json.dumps(facts[what](), indent=1, default=str))
    else:
        listing.print_table(tables[what](), Console())


@app.command(rich_help_panel=READ)
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

    from bench.config import load_config
    from bench.reporting.listing import show_prompts as print_prompts
    from bench.tasks import tasks_of

    chosen = load_config(config, {"tasks": tasks, "limit": limit, "seed": seed})
    found = tasks_of(
        chosen.tasks, limit=chosen.limit, seed=chosen.seed, columns=chosen.columns or None
    )
    print_prompts(found, Console(), limit)


def _chosen(context: typer.Context, config: Path | None, adapter: list[str] | None) -> RunConfig:
    """The configuration that a file and the options of a command make."""
    from bench.config import RunConfig, load_config, parse_adapters

    given = {key: value for key, value in context.params.items() if key in RunConfig.model_fields}
    return load_config(config, {**given, "adapters": parse_adapters(adapter)})


@app.command(rich_help_panel=MAKE)
def fetch(
    name: Annotated[str, typer.Argument(help="As `bench ls models` lists it.")],
    progress: options.Progressing = options.Shown.auto,
) -> None:
    """Check a named model's weights and convert them once, for `--model NAME`."""
    from bench.named_models import fetch as bring

    with options.display(progress) as shown:
        folder = bring(name, shown)
    typer.echo(folder)


app.add_typer(regress.app)
app.add_typer(training.train, name="train", rich_help_panel=MAKE)
app.add_typer(training.imports, name="import", rich_help_panel=MAKE)


def _conclude(ended: Ended) -> None:
    """Print the table and where everything lies, and end with the run's exit code."""
    _print_summary(ended.run_dir)
    raise typer.Exit(int(ended.exit_code))


def _print_summary(run_dir: Path, reference: str | None = None) -> int:
    """Print a run's numbers and verdict; returns the exit code that the verdict calls for."""
    from rich.console import Console

    from bench.report import print_summary

    code = print_summary(run_dir, Console(), reference)
    typer.echo(f"{run_dir / 'report.md'}  {run_dir / 'figures'}")
    return int(code)


if __name__ == "__main__":
    main()
