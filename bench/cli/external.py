"""The verb `bench external`: parse, call, print.

Nothing heavy at module level: the command line imports this to show its help.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options
from bench.cli.measure import PANEL
from bench.errors import BenchError, UsageError

if TYPE_CHECKING:
    from bench.external.engine import Engine
    from bench.report.tables.table import Table

app = typer.Typer()

_WIDE = 200
"""Columns of a table that is piped."""


class _EngineName(StrEnum):
    """Engines there is an adapter for."""

    llamacpp = "llamacpp"
    vllm = "vllm"


@app.command(rich_help_panel=PANEL)
def external(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A greedy run, or `latest`.")],
    engine: Annotated[_EngineName, typer.Option(help="Whose extra is installed.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="File.gguf; of vllm a folder or hub id. [default: the run's]"
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-L", help="Prompts, the run's first. [default: all]")
    ] = None,
    num_drafts: Annotated[int, typer.Option("--drafts", help="Tokens a lookup proposes.")] = 10,
    ngram: Annotated[int, typer.Option(help="Tokens a lookup matches at most.")] = 2,
    speculative: Annotated[
        str | None, typer.Option(metavar="JSON", help="Of vllm: one more speculative_config.")
    ] = None,
    output: options.Output = options.RESULTS,
    progress: options.Progressing = options.ProgressStyle.auto,
) -> None:
    """Let llama.cpp or vLLM answer a run's prompts, for a table of their own in its report."""
    from bench.external.measure import measure_external
    from bench.records.external import read_external
    from bench.records.run_folder import find_run, load_records
    from bench.report.tables.external import other_engines

    for name, value in (("--limit", limit), ("--drafts", num_drafts), ("--ngram", ngram)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is below 1; give 1 or more")
    chosen = _engine(engine, num_drafts, ngram, speculative)
    run_dir = find_run(run, output)
    with options.display(progress) as display:
        failures = measure_external(run_dir, chosen, model, display, limit)
    table = other_engines(read_external(run_dir), load_records(run_dir))
    if table is not None:
        _print(table)
    typer.echo(f"into the report: bench report {run}")
    if failures:
        raise BenchError(f"{failures} answer(s) failed; {run_dir / 'external.jsonl'} says why")


def _engine(name: _EngineName, num_drafts: int, ngram: int, speculative: str | None) -> Engine:
    """The engine with its options.

    Raises:
        BenchError: exit 2 for a configuration that is no JSON object, or of another engine.
    """
    from bench.external.llamacpp import LlamaCpp
    from bench.external.vllm import Vllm

    if name is _EngineName.llamacpp:
        if speculative is not None:
            line = "--speculative is for --engine vllm; llamacpp takes --drafts and --ngram"
            raise UsageError(line)
        return LlamaCpp(num_drafts, ngram)
    try:
        config = None if speculative is None else json.loads(speculative)
    except ValueError:
        config = ()
    if config is not None and not isinstance(config, dict):
        example = '{"method": "eagle3", "model": "FOLDER", "num_speculative_tokens": 3}'
        line = f"--speculative {speculative!r} is no JSON object, e.g. {example}"
        raise UsageError(line)
    return Vllm(num_drafts, ngram, config)


def _print(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    printed = RichTable(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(table.headings):
        printed.add_column(Text(heading), justify="right" if place else "left")
    for row in table.rows:
        printed.add_row(*(Text(cell.text) for cell in row))
    console.print(printed)
    console.print(Text(table.note, style="dim"))
