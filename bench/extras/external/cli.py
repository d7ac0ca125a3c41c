"""Define the verb `bench external`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli import options
from bench.cli.measure import PANEL
from bench.errors import BenchError, UsageError

if TYPE_CHECKING:
    from bench.extras.external.engine import Engine

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def external(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A greedy run, or `latest`.")],
    engine: Annotated[Literal["llamacpp", "vllm"], typer.Option(help="Engine; needs its extra.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="A .gguf file; for vllm a folder or hub id. [default: the run's]"
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-L", help="Prompts, from the first. [default: all]")
    ] = None,
    num_drafts: Annotated[int, typer.Option("--drafts", help="Tokens to propose by lookup.")] = 10,
    ngram: Annotated[int, typer.Option(help="Maximum tokens to match.")] = 2,
    speculative: Annotated[
        str | None, typer.Option(metavar="JSON", help="vllm: an additional speculative_config.")
    ] = None,
    read: Annotated[
        Path | None,
        typer.Option(help="vllm: read a server's responses with metrics; do not run it."),
    ] = None,
    output: options.Output = options.RESULTS,
    progress: options.Progressing = "auto",
) -> None:
    """Answer a run's prompts with llama.cpp or vLLM, for a separate table in the run's report."""
    from bench.extras.external.measure import measure_external
    from bench.extras.external.table import (
        append_external,
        next_session,
        other_engines,
        read_external,
    )
    from bench.extras.external.vllm import read_responses
    from bench.records.run_folder import find_run, load_records

    for name, value in (("--limit", limit), ("--drafts", num_drafts), ("--ngram", ngram)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is below 1; give 1 or more")
    backend = _engine(engine, num_drafts, ngram, speculative)
    run_dir = find_run(run, output)
    failures = 0
    if read is not None:
        if engine != "vllm":
            raise UsageError(f"--read is for --engine vllm, not for {engine}; leave it out")
        for answer in read_responses(read, next_session(read_external(run_dir))):
            append_external(run_dir, answer)
    else:
        with options.choose(progress) as display:
            failures = measure_external(run_dir, backend, model, display, limit)
    table = other_engines(read_external(run_dir), load_records(run_dir))
    if table.rows:
        options.print_rows(table.headings, ([cell.text for cell in row] for row in table.rows))
        typer.echo(table.note)
    typer.echo(f"to add it to the report: bench report {run}")
    if failures:
        raise BenchError(f"{failures} answer(s) failed; {run_dir / 'external.jsonl'} says why")


def _engine(name: str, num_drafts: int, ngram: int, speculative: str | None) -> Engine:
    from bench.extras.external.llamacpp import llamacpp
    from bench.extras.external.vllm import vllm

    if name == "llamacpp":
        if speculative is not None:
            line = "--speculative is for --engine vllm; llamacpp takes --drafts and --ngram"
            raise UsageError(line)
        return llamacpp(num_drafts, ngram)
    try:
        config = None if speculative is None else json.loads(speculative)
    except ValueError:
        config = ()
    if config is not None and not isinstance(config, dict):
        example = '{"method": "eagle3", "model": "FOLDER", "num_speculative_tokens": 3}'
        line = f"--speculative {speculative!r} is not a JSON object, e.g. {example}"
        raise UsageError(line)
    return vllm(num_drafts, ngram, config)
