"""The verbs `bench compare`, `bench ab` and `bench doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.group import Verb
from bench.errors import Exit

if TYPE_CHECKING:
    from bench.compare.gate import Gate
    from bench.compare.judge import Comparison
    from bench.stats.side import RunSnapshot

app = typer.Typer()
PANEL = "Guard against regressions"

_GateFile = Annotated[
    Path | None, typer.Option("--gate", help="TOML of tolerances and margins. [default: built in]")
]
Strict = Annotated[
    bool, typer.Option("--fail-inconclusive", help="If inconclusive, exit with 4, not 0.")
]
Markdown = Annotated[Path | None, typer.Option(help="Write a table for a pull request.")]
_JsonFile = Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")]
_Diff = Annotated[bool, typer.Option("--diff", help="Show changed answers side by side.")]


@app.command(rich_help_panel=PANEL)
def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Run, `latest`, or a reference.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="Run, `latest`, or a reference.")],
    gate: _GateFile = None,
    fail_inconclusive: Strict = False,
    markdown: Markdown = None,
    json_file: _JsonFile = None,
    diff: _Diff = False,
    output: options.Output = options.RESULTS,
) -> None:
    """Compare two runs and report regressions.

    Exit codes: 0 pass, improved or inconclusive; 3 regressed or WRONG; 4 a side is INVALID or
    unfinished; 5 not comparable.
    """
    from bench.compare.compare import compare as judge
    from bench.stats.side import load_side

    rules = _rules(gate, fail_inconclusive)
    sides = load_side(base, output), load_side(head, output)
    _conclude(judge(*sides, rules), markdown, json_file, sides if diff else None)


@app.command(cls=Verb, rich_help_panel=PANEL)
@options.configured(
    *("decoders", "model", "draft", "tasks", "split", "limit", "quality_limit", "repeats"),
    *("max_new_tokens", "temperature", "seed", "dtype", "device", "threads", "compile", "config"),
    quality_limit=options.option(
        int, "Prompts per family to score. [default: 8; with --config as for run]"
    ),
    repeats=options.option(int, "Two at a time in fresh processes. [default: 6]"),
    compile=options.option(bool, "Compile calls. [default: no]", "--compile/--no-compile"),
)
def ab(
    base: Annotated[str, typer.Option(help="Git revision, or folder of a checkout.")],
    given: options.Given,
    head: Annotated[str, typer.Option(help="Likewise; default: the working tree.")] = ".",
    gate: _GateFile = None,
    fail_inconclusive: Strict = False,
    markdown: Markdown = None,
    json_file: _JsonFile = None,
    diff: _Diff = False,
    output: options.Output = options.RESULTS,
    progress: options.Progressing = "auto",
) -> None:
    """Measure two checkouts interleaved on this machine, then compare them."""
    from bench.ab.ab import QUALITY_LIMIT, REPEATS, run_ab
    from bench.ab.request import request_of
    from bench.compare.compare import compare as judge
    from bench.stats.side import load_side

    rules = _rules(gate, fail_inconclusive)
    own = {"quality_limit": QUALITY_LIMIT, "repeats": REPEATS}
    unset = {key: value for key, value in own.items() if given["config"] is given[key] is None}
    chosen = options.configuration({**given, **unset})
    with options.choose(progress) as shown:
        folders = run_ab(base, head, request_of(chosen, shown.note), output, shown)
    sides = load_side(str(folders[0]), output), load_side(str(folders[1]), output)
    typer.echo(f"{folders[0]}  {folders[1]}")
    _conclude(judge(*sides, rules), markdown, json_file, sides if diff else None)


@app.command(rich_help_panel=PANEL)
def doctor(
    aa: Annotated[
        bool, typer.Option("--aa", help="Also measure ar against itself on the zoo.")
    ] = False,
    margin: Annotated[float, typer.Option(help="Margin to resolve; 0.03 is 3 %.")] = 0.03,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 on any advice.")] = False,
) -> None:
    """Check whether this machine is fit to measure on, and how small a difference it can show."""
    from bench.ab import doctor as examiner
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


def _rules(file: Path | None, fail_inconclusive: bool) -> Gate:
    from bench.compare.gate import load_gate

    gate = load_gate(file)
    if fail_inconclusive:
        strict = gate.verdict.model_copy(update={"inconclusive": "fail"})
        gate = gate.model_copy(update={"verdict": strict})
    return gate


def _conclude(
    comparison: Comparison,
    markdown: Path | None,
    json_file: Path | None,
    diff: tuple[RunSnapshot, RunSnapshot] | None,
) -> None:
    from bench.compare import show as shown
    from bench.compare.diff import show_changes
    from bench.records.files import write_text

    console = options.console()
    if diff is not None:
        show_changes(*diff, console)
    shown.print_comparison(comparison, console)
    if markdown is not None:
        write_text(markdown, shown.to_markdown(comparison))
    if json_file is not None:
        write_text(json_file, json.dumps(shown.to_json(comparison), indent=1) + "\n")
    raise typer.Exit(int(comparison.exit_code))
