"""Define the verb `bench compare`, and judge, print and write every comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from bench.cli import options

if TYPE_CHECKING:
    from bench.compare.gate import Gate
    from bench.stats.side import RunSnapshot

app = typer.Typer()
PANEL = "Guard against regressions"

GateFile = Annotated[
    Path | None, typer.Option("--gate", help="TOML of tolerances and margins. [default: built in]")
]
Strict = Annotated[
    bool, typer.Option("--fail-inconclusive", help="If inconclusive, exit with 4, not 0.")
]
Markdown = Annotated[Path | None, typer.Option(help="Write a table for a pull request.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")]
Diff = Annotated[bool, typer.Option("--diff", help="Show changed answers side by side.")]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML.")]


@app.command(rich_help_panel=PANEL)
def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Run, `latest`, or a reference.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="Run, `latest`, or a reference.")],
    gate: GateFile = None,
    fail_inconclusive: Strict = False,
    markdown: Markdown = None,
    json_file: JsonFile = None,
    junit: JUnit = None,
    diff: Diff = False,
    output: options.Output = options.RESULTS,
) -> None:
    """Compare two runs and report regressions.

    Exit codes: 0 pass, improved or inconclusive; 3 regressed or WRONG; 4 a side is INVALID or
    unfinished; 5 not comparable.
    """
    from bench.compare.gate import load_gate
    from bench.stats.side import load_side

    rules = load_gate(gate, fail_inconclusive)
    sides = load_side(base, output), load_side(head, output)
    conclude(sides, rules, diff, markdown, json_file, junit)


def conclude(
    sides: tuple[RunSnapshot, RunSnapshot],
    rules: Gate,
    diff: bool,
    markdown: Path | None,
    json_file: Path | None,
    junit: Path | None,
    github: bool = False,
) -> NoReturn:
    """Judge two sides, print and write the comparison, and exit with its code.

    Args:
        sides: base and head.
        rules: tolerances and margins.
        diff: whether changed answers are shown.
        markdown: file for a table (None here and in the next two: no file).
        json_file: file for the whole comparison.
        junit: file for JUnit's XML.
        github: whether workflow commands are printed, and the job's summary is extended.
    """
    from bench.compare import annotate
    from bench.compare import show as shown
    from bench.compare.compare import compare as judge
    from bench.compare.show import show_changes
    from bench.records.files import append_text, write_text

    console, comparison = options.console(), judge(*sides, rules)
    if diff:
        show_changes(*sides, console)
    shown.print_comparison(comparison, console)
    places = annotate.locate_decoders(sides[1].plan.cells, Path.cwd())
    if markdown is not None:
        write_text(markdown, shown.to_markdown(comparison))
    if json_file is not None:
        write_text(json_file, json.dumps(shown.to_json(comparison), indent=1) + "\n")
    if junit is not None:
        write_text(junit, annotate.to_junit(comparison, places))
    if github:
        for line in annotate.github_commands(comparison, places):
            typer.echo(line)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            append_text(Path(summary), shown.to_markdown(comparison))
    raise typer.Exit(int(comparison.exit_code))
