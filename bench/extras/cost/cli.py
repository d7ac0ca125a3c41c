"""Define the verbs `bench cost` and `bench explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.group import Arguments, Configured
from bench.cli.read import PANEL as READ
from bench.errors import UnavailableError, UsageError

app = typer.Typer()
PANEL = "Find the limit"

_LIMIT = 1_000_000
"""Limit of values on any axis."""
_MAX_CALL_S = 1.0
"""Limit of a call's time; slower and larger calls are skipped."""


_OPTIONS = options.fields("model", "compile", *options.MACHINE)


@app.command(cls=Configured.by(_OPTIONS), rich_help_panel=PANEL)
def cost(
    arguments: Arguments,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Random weights of a shape: zoo, smollm2-135m, llama-1b, qwen3-8b, or a folder "
            "with a config.json."
        ),
    ] = None,
    rows: Annotated[str, typer.Option(help="Rows per sequence.")] = "1,2,4,8,16,32,64,128,256",
    sequences: Annotated[str, typer.Option(help="Sequences per call.")] = "1,4,16,64",
    contexts: Annotated[str, typer.Option(help="Tokens in the cache.")] = "128,512,2048,8192",
    rounds: Annotated[int, typer.Option(help="Measurements per cell; an interval needs six.")] = 7,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Also price the draft calls of this run's decoders."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Output folder. [default: results/cost-MODEL…]"),
    ] = None,
    output: options.Output = options.RESULTS,
    progress: options.Progressing = "auto",
) -> None:
    """Measure the time of a model call by rows, sequences and context, and the machine's limits."""
    from bench.extras.cost.curve import curve_table, load_cost
    from bench.extras.cost.explain import draft_costs
    from bench.extras.cost.figure import write_figure
    from bench.extras.cost.limit import machine_lines, mismatch
    from bench.extras.cost.measure import measure_cost
    from bench.extras.cost.records import Grid, folder_name, write_draft_costs
    from bench.extras.cost.subject import open_subject
    from bench.records.plan import BASELINE
    from bench.records.run_folder import find_run, load_run
    from bench.report.findings import Findings
    from bench.settings.bounds import Repeats, check

    if shape is not None and arguments["model"] is not None:
        raise UsageError("--model and --shape exclude each other; give one of them")
    check(rounds, Repeats, "--rounds")
    grid = Grid(
        rows=_numbers(rows, "--rows", {1}),  # one row and one sequence: the reference for all
        sequences=_numbers(sequences, "--sequences", {1}),
        contexts=_numbers(contexts, "--contexts", set()),
        rounds=rounds,
        longest_s=_MAX_CALL_S,
    )
    priced = None if run is None else load_run(find_run(run, output))
    if priced is not None and priced.plan.baseline != BASELINE:
        line = f"costs are in tokens of {BASELINE}, but {priced.path} has another baseline"
        raise UnavailableError(f"{line}: measure a run without --baseline")
    with options.choose(progress) as display:
        config = options.configuration(arguments)
        subject = open_subject(config, grid, display.note, shape=shape)
        folder = folder or output / folder_name(subject.facts, subject.env)
        display.note(f"writing to {folder}")
        facts = measure_cost(subject, folder, display)
    measured = load_cost(folder)
    lines = machine_lines(facts)
    if priced is not None:
        why, costs = mismatch(measured, priced.env), dict[str, float]()
        if why is None and not (costs := draft_costs(Findings(priced))):
            why = "no unbatched answer of its second pass has any"
        lines += [f"draft calls of {priced.path.name} have no price: {why}"] if why else []
        lines += [f"{name}: a draft call costs {x:.3g} tokens of ar" for name, x in costs.items()]
        write_draft_costs(folder, costs)
    write_figure(measured)
    typer.echo("\n".join(lines))
    headings, *lines_of_cells = curve_table(measured)
    options.print_rows(headings, lines_of_cells)
    typer.echo(f"{folder / 'cost.csv'}  {folder / 'figures'}")


def _numbers(text: str, name: str, always: set[int]) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= _LIMIT for word in words):
        line = f"{name} {text!r} is not a list of whole numbers from 1 to {_LIMIT}, e.g. 1,8,64"
        raise UsageError(line)
    return tuple(sorted(always | {int(word) for word in words}))


@app.command(rich_help_panel=READ)
def explain(
    run_dir: options.RunName,
    cost: Annotated[
        Path | None, typer.Option(help="A measured curve: a `bench cost` folder.")
    ] = None,
    output: options.Output = options.RESULTS,
) -> None:
    """Explain in words where the time went and what would help most."""
    from bench.extras.cost.curve import load_cost
    from bench.extras.cost.explain import print_explanation
    from bench.records.run_folder import find_run, load_run
    from bench.report.findings import Findings

    findings = Findings(load_run(find_run(run_dir, output)))
    print_explanation(findings, options.console(), None if cost is None else load_cost(cost))


def run_limit(run_dir: Path) -> list[str]:
    """State how near ar came to the machine's limit, if the run has a cost folder."""
    from bench.extras.cost.curve import load_cost
    from bench.extras.cost.limit import limit_lines
    from bench.records.run_folder import load_run, read_config

    if (folder := read_config(run_dir).get("cost")) is None:
        return []
    return limit_lines(load_run(run_dir), load_cost(Path(str(folder))))
