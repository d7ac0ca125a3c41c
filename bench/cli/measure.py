"""Define the verbs that measure: `bench run`, `resume` and `verify`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.group import Arguments, Configured
from bench.cli.read import print_run
from bench.errors import BenchError, UsageError
from bench.registry import extra, extras
from bench.settings.setting import ALONE, parse_workers

if TYPE_CHECKING:
    from bench.runs import RunResult

app = typer.Typer()
PANEL = "Measure"
_of_sessions = partial(typer.Option, rich_help_panel="Several sessions")


@app.command(cls=Configured.by(options.fields()), rich_help_panel=PANEL)
def run(
    arguments: Arguments,
    output: options.Output = options.RESULTS,
    dry_run: Annotated[
        bool, options.of_results("--dry-run", help="Only print the plan and an ETA.")
    ] = False,
    executor: options.Executing = "local",
    workers: options.Workers = 1,
    executor_option: options.Executors = None,
    part: options.Part = None,
    sessions: Annotated[
        int, _of_sessions(help="Number of sessions to measure, each in a new process, and pool.")
    ] = 1,
    every: Annotated[
        float, _of_sessions(metavar="MINUTES", help="Time between the starts of sessions.")
    ] = 0,
    progress: options.Progressing = "auto",
) -> None:
    """Compare decoders by tokens per call, latency, memory and quality, with intervals."""
    config = options.configuration(arguments)
    spread = parse_workers(executor, workers, executor_option)
    with options.choose(progress) as shown:
        several = sessions != 1 or every != 0
        if several:
            if part is not None or spread != ALONE or config.session is not None:
                raise UsageError("--sessions excludes --part, --workers and --session: drop these")
            extra("bench.jobs", "check-sessions")(sessions, every)
        if dry_run:
            from bench.plan.dry_run import dry_run as plan_only

            typer.echo("\n".join(plan_only(config, shown, spread=spread, part=part)))
            return
        if several:
            extra("bench.jobs", "sessions")(config, sessions, every, output, progress)
        from bench import runs

        ended = runs.run(config, output, shown, spread=spread, part=part)
    _conclude(ended)


@app.command(rich_help_panel=PANEL)
def resume(
    run_dir: options.RunName,
    output: options.Output = options.RESULTS,
    executor: options.Executing = "local",
    workers: options.Workers = 1,
    executor_option: options.Executors = None,
    allow: options.Allowing = None,
    progress: options.Progressing = "auto",
) -> None:
    """Finish a run that was interrupted or killed, without measuring anything twice."""
    from bench import runs
    from bench.records.run_folder import find_run

    allowed = allow or ()
    spread = parse_workers(executor, workers, executor_option)
    with options.choose(progress) as shown:
        folder = find_run(run_dir, output)
        runs.trusted_config(folder, allowed)  # refuse before any other line is printed
        ended = runs.resume(folder, shown, spread=spread, allowed=allowed)
    _conclude(ended)


_OPTIONS = options.fields(
    *(*options.MODELS, *options.SAMPLING, *options.MACHINE, *options.NUMERICS),
    *("compile", "self_check", "timeout", "overlong", "config", "allow"),
    limit="Conversations. [default: zoo 24]",
    numerics="invariant (no margins) or fast. [default: invariant in half precision]",
    temperature="Temperature of sampled checks. [default: 0.8]",
    seed="Seed of answers and draws. [default: 0]",
)


@app.command(cls=Configured.by(_OPTIONS), rich_help_panel=PANEL)
def verify(
    arguments: Arguments,
    distribution: Annotated[
        bool,
        typer.Option(
            "--distribution", help="Also test the distribution of answers on the model itself."
        ),
    ] = False,
    draws: Annotated[int, typer.Option(help="Answers drawn per distribution test.")] = 5000,
    json: Annotated[Path | None, typer.Option(help="Write all findings to a file.")] = None,
    progress: options.Progressing = "auto",
) -> None:
    """Test whether decoders are as lossless as they claim: equality with AR, and distribution."""
    from bench.records.files import write_json
    from bench.verify.verify import verify as examine

    config = options.configuration(arguments)
    if json is not None and not json.parent.is_dir():  # fail now, not after measuring
        raise UsageError(f"--json {json}: the folder {json.parent} does not exist")
    with options.choose(progress) as shown:
        report = examine(config, shown, distribution=distribution, num_draws=draws)
    report.print(options.console())
    if json is not None:
        write_json(json, report.as_json())
    raise typer.Exit(int(report.exit_code))


def _conclude(ended: RunResult) -> None:
    print_run(ended.run_dir)
    print_conclusions(ended.run_dir)
    raise typer.Exit(int(ended.exit_code))


def print_conclusions(run_dir: Path) -> None:
    """Print the extras' conclusions on a complete run, and their errors as lines on stderr."""
    for conclude in extras("bench.conclusions").values():
        try:
            for line in conclude(run_dir):
                typer.echo(line)
        except BenchError as error:
            typer.echo(f"bench: {error.message}", err=True)
