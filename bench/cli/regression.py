"""Define the verb `bench compare`, and judge, print and write every comparison."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bench.cli import options
from bench.cli.group import Arguments, Configured

if TYPE_CHECKING:
    from bench.compare.gate import Gate
    from bench.stats.side import RunSnapshot

app = typer.Typer()
PANEL = "Guard against regressions"

_File = Path | None
COMPARING = (
    options.option("gate", _File, "TOML of tolerances and margins. [default: built in]"),
    options.option("fail_inconclusive", bool, "If inconclusive, exit with 4, not 0."),
    options.option("markdown", _File, "Write a table for a pull request."),
    options.option("json", _File, "Write everything as JSON."),
    options.option("junit", _File, "Write JUnit XML."),
    options.option("diff", bool, "Show changed answers side by side."),
    ("output", options.Output, options.RESULTS),
)
"""Options of all verbs that compare two runs, as fields of a dataclass."""


@app.command(cls=Configured.by(lambda: make_dataclass("Options", COMPARING)), rich_help_panel=PANEL)
def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Run, `latest`, or a reference.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="Run, `latest`, or a reference.")],
    arguments: Arguments,
) -> None:
    """Compare two runs and report regressions.

    Exit codes: 0 pass, improved or inconclusive; 3 regressed or WRONG; 4 a side is INVALID or
    unfinished; 5 not comparable.
    """
    from bench.compare.gate import load_gate
    from bench.stats.side import load_side

    rules = load_gate(arguments["gate"], arguments["fail_inconclusive"])
    sides = load_side(base, arguments["output"]), load_side(head, arguments["output"])
    conclude(sides, rules, arguments)


def conclude(
    sides: tuple[RunSnapshot, RunSnapshot],
    rules: Gate,
    arguments: Mapping[str, Any],
    github: bool = False,
) -> NoReturn:
    """Judge two sides, print and write the comparison, and exit with its code.

    Args:
        sides: base and head.
        rules: tolerances and margins.
        arguments: values of `COMPARING`: the files to write, and whether to show changed answers.
        github: whether workflow commands are printed, and the job's summary is extended.
    """
    from bench.compare import annotate
    from bench.compare import show as shown
    from bench.compare.compare import compare as judge
    from bench.compare.show import show_changes
    from bench.records.files import append_text, write_files

    console, comparison = options.console(), judge(*sides, rules)
    if arguments["diff"]:
        show_changes(*sides, console)
    shown.print_comparison(comparison, console)
    places = annotate.locate_decoders(sides[1].plan.cells, Path.cwd())
    texts: dict[str, Callable[[], str]] = {
        "markdown": lambda: shown.to_markdown(comparison),
        "json": lambda: json.dumps(shown.to_json(comparison), indent=1) + "\n",
        "junit": lambda: annotate.to_junit(comparison, places),
    }
    for name, text in texts.items():
        if file := arguments[name]:
            write_files(file.parent, {file.name: text().encode()})
    if github:
        for line in annotate.github_commands(comparison, places):
            typer.echo(line)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            append_text(Path(summary), shown.to_markdown(comparison))
    raise typer.Exit(int(comparison.exit_code))
