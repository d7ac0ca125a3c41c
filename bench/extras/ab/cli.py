"""Define the verbs `bench gate`, `bench ab` and `bench doctor`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.group import Arguments, Configured
from bench.cli.regression import COMPARING, PANEL, conclude
from bench.errors import Exit, UsageError

if TYPE_CHECKING:
    from bench.stats.side import RunSnapshot

app = typer.Typer()

_Head = Annotated[str, typer.Option(help="Commit (or folder) to judge; `.` is the working tree.")]


_GATE = options.fields(
    *("decoders", "model", "draft", "adapters", "tasks", "limit", "quality_limit", "repeats"),
    *("max_new_tokens", "temperature", "seed", "dtype", "device", "threads", "config", "allow"),
    limit="Conversations. [default: 12; with --against its number]",
    quality_limit="Prompts per family to score. [default: 0]",
    repeats="[default: 2; with --against 1]",
    max_new_tokens="Maximum tokens per answer. [default: 48; with --against its number]",
    more=COMPARING,
)
_AB = options.fields(
    *("decoders", "model", "draft", "tasks", "split", "limit", "quality_limit", "repeats"),
    *("max_new_tokens", "temperature", "seed", "dtype", "device", "threads"),
    *("compile", "config", "allow"),
    quality_limit="Prompts per family to score. [default: 8; with --config as for run]",
    repeats="Two at a time in fresh processes. [default: 6]",
    compile="Compile calls. [default: no]",
    more=COMPARING,
)


@app.command("gate", cls=Configured.by(_GATE), rich_help_panel=PANEL)
def gate_(
    *,
    base: Annotated[
        str | None, typer.Option(help="Commit (or folder) to measure on this machine as well.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Stored run to compare with instead: counters, no times.")
    ] = None,
    head: _Head = ".",
    margin: Annotated[float, typer.Option(help="Slow-down that regresses; 0.05 is 5 %.")] = 0.05,
    arguments: Arguments,
    progress: options.Progressing = "auto",
) -> None:
    """Check in about a minute, for CI, whether a change made decoders slower or wrong.

    The verb is `bench ab` with few prompts, uncompiled and without quality. The wider margin suits
    a shared machine. The exit codes are those of `bench compare`. On GitHub Actions, annotations
    are printed and the job's summary is filled.
    """
    from bench.compare.gate import load_gate
    from bench.extras.ab.gating import gate_settings, measure_against, with_defaults
    from bench.settings.bounds import Margin, check

    if (base is None) == (against is None):
        line = "give --base (a commit, to measure both) or --against (a stored run), not both"
        raise UsageError(line)
    check(margin, Margin, "--margin")
    file, rules = arguments["gate"], load_gate(arguments["gate"], arguments["fail_inconclusive"])
    rules = gate_settings(rules, file, margin, timed=base is not None)
    if against is not None:
        sides = measure_against(against, arguments, arguments["output"], progress)
    else:
        cheap = {"limit": 12, "quality_limit": 0, "repeats": 2, "max_new_tokens": 48}
        sides = _interleaved(str(base), head, with_defaults(arguments, cheap), progress)
    conclude(sides, rules, arguments, github=bool(os.environ.get("GITHUB_ACTIONS")))


@app.command(cls=Configured.by(_AB), rich_help_panel=PANEL)
def ab(
    *,
    base: Annotated[str, typer.Option(help="Git revision, or a folder.")],
    head: _Head = ".",
    arguments: Arguments,
    progress: options.Progressing = "auto",
) -> None:
    """Measure two commits interleaved on this machine, then compare them.

    The repository is the one around the current folder: the benchmark's, or that of your own
    decoders, which the installed benchmark then measures.
    """
    from bench.compare.gate import load_gate
    from bench.extras.ab.ab import QUALITY_LIMIT, REPEATS
    from bench.extras.ab.gating import with_defaults

    rules = load_gate(arguments["gate"], arguments["fail_inconclusive"])
    if arguments["config"] is None:
        arguments = with_defaults(arguments, {"quality_limit": QUALITY_LIMIT, "repeats": REPEATS})
    conclude(_interleaved(base, head, arguments, progress), rules, arguments)


@app.command(rich_help_panel=PANEL)
def doctor(
    aa: Annotated[
        bool, typer.Option("--aa", help="Also measure ar against itself on the zoo.")
    ] = False,
    margin: Annotated[float, typer.Option(help="Margin to resolve; 0.03 is 3 %.")] = 0.03,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 on any advice.")] = False,
) -> None:
    """Check whether this machine is fit to measure on, and which differences it can show."""
    from bench.extras.ab import doctor as examiner
    from bench.settings.bounds import Margin, check

    check(margin, Margin, "--margin")
    checks = examiner.examine()
    noise = examiner.measure_noise() if aa else None
    for result in checks:
        mark = "ok" if result.good else "! "
        advice = "" if result.good else f": {result.advice}"
        typer.echo(f"{mark} {result.name:<11} {result.seen}{advice}")
    if noise is not None:
        typer.echo("\n".join(examiner.noise_lines(noise, margin)))
    if strict and not all(result.good for result in checks):
        raise typer.Exit(int(Exit.INVALID))


def _interleaved(
    base: str, head: str, arguments: Arguments, progress: str
) -> tuple[RunSnapshot, RunSnapshot]:
    from bench.extras.ab.ab import make_request, run_ab
    from bench.extras.ab.checkout import compared_repository
    from bench.stats.side import load_side

    config, output = options.configuration(arguments), arguments["output"]
    with options.choose(progress) as shown:
        repository = compared_repository((base, head))
        request = make_request(config, repository)
        folders = run_ab(base, head, request, output, shown, repository)
    typer.echo(f"{folders[0]}  {folders[1]}")
    return load_side(str(folders[0]), output), load_side(str(folders[1]), output)
