"""Define the verb `bench eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options
from bench.cli.group import Arguments, Configured
from bench.cli.measure import PANEL

app = typer.Typer()


_OPTIONS = options.fields(
    *("model", "draft", "adapters", "models", "limit", "batch_size", *options.SAMPLING),
    *(*options.MACHINE, *options.NUMERICS, "self_check", "timeout", "config", "allow"),
    limit="Documents per task. [default: all]",
    max_new_tokens="[default: the task's]",
    temperature="0: greedy. [default: the task's]",
    top_p="1 is off. [default: the task's]",
    top_k="0 is off. [default: the task's]",
    seed="Seed of answers. [default: 0]",
    batch_size="Sequences per batch. [default: by device and model]",
)


@app.command("eval", cls=Configured.by(_OPTIONS), rich_help_panel=PANEL)
def evaluate(
    arguments: Arguments,
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
    from bench.extras.lm_eval.evaluate import EvalRequest
    from bench.extras.lm_eval.evaluate import evaluate as answer

    names = {"max_new_tokens": "max_gen_toks"}
    sampling = {
        names.get(name, name): arguments[name]
        for name in ("max_new_tokens", "temperature", "top_p", "top_k")
        if arguments[name] is not None
    }
    if arguments["temperature"] is not None:
        sampling["do_sample"] = arguments["temperature"] > 0
    request = EvalRequest(
        tasks=[name.strip() for name in tasks.split(",") if name.strip()],
        folder=include,
        limit=arguments["limit"],
        num_fewshot=num_fewshot,
        plain=plain,
        sampling=sampling,
    )
    config = options.configuration({**arguments, "decoders": decoder})
    with options.choose(progress) as shown:
        ended = answer(config, request, output, shown)
    options.print_rows(("task", "metric", "filter", "value"), ended.rows)
    for note in ended.notes:
        typer.echo(f"bench: {note}", err=True)
    typer.echo(ended.folder / "results.json")
