"""The verbs that measure: `bench run`, `resume`, `verify`, `eval` and `sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from bench.cli import options
from bench.cli.group import Verb
from bench.cli.read import print_pool, print_run
from bench.errors import BenchError, UsageError
from bench.settings.spread import ALONE, spread_of

if TYPE_CHECKING:
    from bench.runs import RunResult
    from bench.sessions import Sessions
    from bench.settings.config import RunConfig

app = typer.Typer()
PANEL = "Measure"
_SPACED = "Several sessions"


@app.command(cls=Verb, rich_help_panel=PANEL)
@options.configured(*options.OPTIONS)
def run(
    given: options.Given,
    output: options.Output = options.RESULTS,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only print the plan and an ETA.",
            rich_help_panel=options.RESULT_PANEL,
        ),
    ] = False,
    executor: options.Executing = "local",
    workers: options.Workers = 1,
    executor_option: options.Executors = None,
    part: options.Part = None,
    sessions: Annotated[
        int,
        typer.Option(
            help="Number of fresh processes to measure in and pool.", rich_help_panel=_SPACED
        ),
    ] = 1,
    every: Annotated[
        float,
        typer.Option(
            metavar="MINUTES", help="Time between the starts of sessions.", rich_help_panel=_SPACED
        ),
    ] = 0,
    progress: options.Progressing = "auto",
) -> None:
    """Compare decoders by tokens per call, latency, memory and quality, with intervals."""
    chosen = options.configuration(given)
    spread = spread_of(executor, workers, executor_option)
    with options.choose(progress) as shown:
        several = sessions != 1 or every != 0
        if several:
            from bench.sessions import check_sessions, plan_sessions

            if part is not None or spread != ALONE:
                raise UsageError("--sessions does not go with --part or --workers: leave these out")
            check_sessions(chosen, sessions, every)
        if dry_run:
            from bench.plan.make import dry_run as plan_only

            typer.echo("\n".join(plan_only(chosen, shown, part=part)))
            return
        if several:
            _measure_sessions(plan_sessions(chosen, sessions, every, output), progress, [chosen])
        from bench import runs

        ended = runs.run(chosen, output, shown, spread=spread, part=part)
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
    from bench.plan.trust import check_allowed
    from bench.records.run_folder import find_run
    from bench.sessions import load_sessions

    allowed = allow or ()

    for folder in (Path(run_dir), output / run_dir):
        if (plan := load_sessions(folder)) is not None:
            config = runs.trusted_config(folder, allowed)
            check_allowed([config], folder, allowed)
            _measure_sessions(plan, progress, [config])
    spread = spread_of(executor, workers, executor_option)
    with options.choose(progress) as shown:
        folder = find_run(run_dir, output)
        config = runs.trusted_config(folder, allowed)
        check_allowed([config], folder, allowed)
        ended = runs.resume(folder, shown, spread=spread, allowed=allowed)
    _conclude(ended)


@app.command(cls=Verb, rich_help_panel=PANEL)
@options.configured(
    *(*options.MODELS, *options.SAMPLING, *options.MACHINE, *options.NUMERICS),
    *("compile", "self_check", "timeout", "overlong", "config"),
    limit=options.option(int, "Conversations. [default: zoo 24]", "--limit", "-L"),
    numerics=options.option(
        str, "invariant (no margins) or fast. [default: invariant in half precision]"
    ),
    temperature=options.option(float, "Temperature of sampled checks. [default: 0.8]"),
    seed=options.option(int, "Seed of answers and draws. [default: 0]"),
)
def verify(
    given: options.Given,
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
    """Test whether decoders are lossless as they claim: equality with AR, and distribution."""
    from bench.verify.verify import verify as examine

    chosen = options.configuration(given)
    if json is not None and not json.parent.is_dir():  # fail now, not after measuring
        raise UsageError(f"--json {json}: the folder {json.parent} does not exist")
    with options.choose(progress) as shown:
        report = examine(chosen, shown, distribution=distribution, num_draws=draws)
    report.print(options.console())
    if json is not None:
        report.write(json)
    raise typer.Exit(int(report.exit_code))


@app.command("eval", cls=Verb, rich_help_panel=PANEL)
@options.configured(
    *("model", "draft", "adapter", "limit", "batch_size", *options.SAMPLING, *options.MACHINE),
    *(*options.NUMERICS, "self_check", "timeout", "config"),
    limit=options.option(int, "Documents per task. [default: all]", "--limit", "-L"),
    max_new_tokens=options.option(int, "[default: the task's]"),
    temperature=options.option(float, "0: greedy. [default: the task's]"),
    top_p=options.option(float, "1 is off. [default: the task's]"),
    top_k=options.option(int, "0 is off. [default: the task's]"),
    seed=options.option(int, "Seed of answers. [default: 0]"),
    batch_size=options.option(int, "Sequences per batch. [default: by device and model]"),
)
def evaluate(
    given: options.Given,
    tasks: Annotated[str, typer.Option("--tasks", "-t", help="lm-eval tasks, comma-separated.")],
    decoder: Annotated[str, typer.Option(help="One NAME[@LABEL][:option=value]…")] = "ar",
    num_fewshot: Annotated[
        int | None, typer.Option(help="Examples before a document. [default: the task's]")
    ] = None,
    include: Annotated[Path | None, typer.Option(help="Folder of your own task files.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Apply no chat template.")] = False,
    output: options.Output = options.RESULTS,
    progress: options.Progressing = "auto",
) -> None:
    """Run tasks of lm-eval with a decoder, to measure quality on third-party tasks."""
    from bench.measure.evaluate import EvalRequest
    from bench.measure.evaluate import evaluate as answer

    names = {"max_new_tokens": "max_gen_toks"}
    drawn = {
        names.get(name, name): given[name]
        for name in ("max_new_tokens", "temperature", "top_p", "top_k")
        if given[name] is not None
    }
    if given["temperature"] is not None:
        drawn["do_sample"] = given["temperature"] > 0
    request = EvalRequest(
        tasks=[name.strip() for name in tasks.split(",") if name.strip()],
        folder=include,
        limit=given["limit"],
        num_fewshot=num_fewshot,
        plain=plain,
        drawn=drawn,
    )
    chosen = options.configuration({**given, "decoders": decoder})
    with options.choose(progress) as shown:
        ended = answer(chosen, request, output, shown)
    options.print_table(("task", "metric", "filter", "value"), ended.rows)
    for note in ended.notes:
        typer.echo(f"bench: {note}", err=True)
    typer.echo(ended.folder / "results.json")


@app.command(rich_help_panel=PANEL)
def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP.TOML", help="A configuration with [sweep] axes.")
    ],
    folder: Annotated[
        Path | None,
        typer.Option(help="Output folder; resumes a stopped one. [default: OUTPUT/sweep-NAME-…]"),
    ] = None,
    output: options.Output = options.RESULTS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the points.")] = False,
    allow: options.Allowing = None,
    progress: options.Progressing = "auto",
) -> None:
    """Measure a grid of runs over options, batch size, temperature, prompt and output length."""
    from bench import sweeps
    from bench.plan.trust import check_allowed, check_code
    from bench.settings.sweep import load_sweep

    asked, allowed = load_sweep(file), allow or ()
    configs = [point.config for point in asked.points]
    check_code(configs, file, allowed)
    check_allowed(configs, file, allowed)
    made = folder or output / asked.folder_name
    if dry_run:
        typer.echo("\n".join(sweeps.plan_lines(asked, made)))
        return
    with options.choose(progress) as shown:
        ended = sweeps.run_sweep(asked, made, shown, allowed=allowed)
    for line in ended.left_out:
        typer.echo(f"skipped: {line}")
    typer.echo(f"{made / 'sweep.md'}  {made / 'summary.csv'}  {made / 'figures'}")
    raise typer.Exit(ended.exit_code)


def _measure_sessions(plan: Sessions, progress: str, configs: Sequence[RunConfig]) -> NoReturn:
    from bench.plan.trust import code_named
    from bench.sessions import measure_sessions

    with options.choose(progress) as shown:
        code = int(measure_sessions(plan, shown, progress, code_named(configs)))
    if not plan.missing:
        code = max(code, print_pool([str(plan.folder)], plan.folder, plan.folder))
    raise typer.Exit(code)


def _conclude(ended: RunResult) -> None:
    print_run(ended.run_dir)
    _print_limit(ended.run_dir)
    raise typer.Exit(int(ended.exit_code))


def _print_limit(run_dir: Path) -> None:
    """Say how near ar came to the machine's limit, if the run has a cost folder."""
    from bench.records.run_folder import load_run, read_config

    if (folder := read_config(run_dir).get("cost")) is None:
        return
    from bench.report.texts.cost import limit_lines
    from bench.stats.cost_curve import load_cost

    try:
        typer.echo("\n".join(limit_lines(load_run(run_dir), load_cost(Path(str(folder))))))
    except BenchError as error:  # the run itself is complete
        typer.echo(f"bench: {error.message}", err=True)
