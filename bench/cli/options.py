"""The command line's options, each declared once; the display of progress; tables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.progress import ProgressStyle
from bench.progress import choose as choose
from bench.settings.spread import Kind

if TYPE_CHECKING:
    from rich.console import Console

    from bench.settings.config import RunConfig

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_SPREAD = "Several workers"
RESULT_PANEL = "Plan, progress and results"
RESULTS = Path("results")
"""Default parent of run folders."""
_WIDE = 200
"""Width of a piped table in characters."""

Output = Annotated[
    Path,
    typer.Option("--output", "-o", help="Parent of run folders.", rich_help_panel=RESULT_PANEL),
]
Progressing = Annotated[
    ProgressStyle,
    typer.Option(help="Live bar, plain lines, or nothing.", rich_help_panel=RESULT_PANEL),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Executing = Annotated[
    Kind, typer.Option("--executor", help="What starts the workers.", rich_help_panel=_SPREAD)
]
Workers = Annotated[
    int, typer.Option("--workers", help="Number of parallel workers.", rich_help_panel=_SPREAD)
]
Executors = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-option", help="KEY=VALUE for ray or submitit.", rich_help_panel=_SPREAD
    ),
]
Part = Annotated[
    str | None,
    typer.Option(help="I/N: measure one part; `bench merge` joins parts.", rich_help_panel=_SPREAD),
]


Allowing = Annotated[
    list[str] | None,
    typer.Option("--allow", help="Code that the folder names and that may run. Repeatable."),
]
Published = Annotated[
    str | None, typer.Option(help="Also show published numbers, e.g. specbench-a100-7b.")
]


def option(kind: Any, about: str, *names: str, **more: Any) -> Any:
    """Declare an option that is None unless given; `names` default to its parameter's name."""
    return Annotated[kind | None, typer.Option(*names, help=about, **more)]


_BY_PANEL: Mapping[str, dict[str, Any]] = {
    "What is compared": {
        "decoders": option(
            str, "NAME[@LABEL][:option=value]…, comma-separated.", "--decoders", "-d"
        ),
        "primary": option(str, "Decoder that is not exploratory, or none. [default: the first]"),
        "model": option(str, "Folder, file.gguf, hub id or name. [default: zoo]", "--model", "-m"),
        "draft": option(str, "Draft model. [default: the zoo's, for the zoo]"),
        "adapter": option(list[str], "NAME=PATH; repeatable."),
        "tasks": option(
            str,
            "zoo, some of its families (qa,rag), specbench[=PATH], PATH of a file, or hf=ID. "
            "[default: zoo]",
            *("--tasks", "-t"),
        ),
        "config": option(Path, "TOML file; options given here override it.", "--config", "-c"),
        "allow": option(list[str], "Code that --config names and that may run. Repeatable."),
    },
    "How much is measured": {
        "split": option(str, "tune (to choose options by) or test (to report). [default: both]"),
        "limit": option(int, "Conversations to time. [default: zoo 24]", "--limit", "-L"),
        "quality_limit": option(int, "Held-out prompts per family to score. [default: 40, zoo 20]"),
        "phase_limit": option(int, "Prompts to run again with instrumentation. [default: 6]"),
        "repeats": option(int, "[default: 3]"),
        "batch_size": option(int, "Sequences per batch. [default: 1]"),
        "fixed_length": option(bool, "Ignore EOS: all answers are equally long.", "--fixed-length"),
        "timeout": option(float, "Most seconds per answer. [default: 300, and 5 per token]"),
        "overlong": option(str, "Prompts longer than the context: skip or truncate."),
        "template_args": option(
            list[str], "NAME=VALUE for the chat template, e.g. enable_thinking=false; repeatable."
        ),
        "date": option(str, "Date for chat templates that write it. [default: today, UTC]"),
        "prompt_tokens": option(int, "Pad (with other prompts) or cut every prompt to N tokens."),
    },
    "Sampling": {
        "max_new_tokens": option(int, "[default: 256]"),
        "temperature": option(float, "0 is greedy. [default: 0]"),
        "top_p": option(float, "1 is off. [default: 1]"),
        "top_k": option(int, "0 is off. [default: 0]"),
        "seed": option(int, "Repeat r uses seed + r. [default: 0]"),
    },
    "Precision and devices": {
        "dtype": option(
            str,
            "[default: bfloat16 on CUDA, and above 50M weights on CPUs with it; else float32]",
        ),
        "device": option(str, "cpu, cuda, cuda:1. [default: cuda if available]"),
        "threads": option(int, "CPU threads. [default: cores]"),
        "attention": option(str, "sdpa or eager. [default: what the model has]"),
        "compile": option(
            bool,
            "Compile calls, on a GPU to CUDA graphs. [default: on a CPU, where possible]",
            "--compile/--no-compile",
        ),
        "quantize": option(str, "Pack weights to int8 or int4, on a CPU. [default: not packed]"),
        "numerics": option(
            str, "invariant: a row's bits depend only on its own text. [default: fast]"
        ),
        "tile": option(int, "Rows per product if invariant: 8, 16 or 32. [default: measured]"),
        "reuse_prefix": option(
            bool, "Later turns reuse the KV cache of the turn before.", "--reuse-prefix"
        ),
        "device_map": option(
            str, "Place the target's layers on several devices: auto, or a .json file."
        ),
        "self_check": option(
            bool,
            "First compare models with transformers' own forward pass. [default: self-check]",
            "--self-check/--no-self-check",
        ),
    },
    RESULT_PANEL: {
        "cost": option(str, "`bench cost` folder, for options set to auto and for ar's limit."),
        "protocol": option(str, "specbench: Spec-Bench's questions, template and counting."),
        "reference": Published,
        "run_name": option(str, "Part of the run folder's name."),
    },
}
"""The options of a configuration, under their headings in `bench run --help`."""
OPTIONS = {name: about for below in _BY_PANEL.values() for name, about in below.items()}
MODELS = ("decoders", "model", "draft", "adapter", "tasks", "split", "limit")
SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
MACHINE = ("dtype", "device", "threads", "attention", "quantize")
NUMERICS = ("numerics", "tile")

Given = Mapping[str, Any]
Verb = Callable[..., None]


def gathering(declared: Mapping[str, tuple[Any, Any]]) -> Callable[[Verb], Verb]:
    """Add options (annotation, default) to a verb, which gets their values in `given`."""

    def decorate(verb: Verb) -> Verb:
        @functools.wraps(verb)
        def command(*args: Any, **values: Any) -> None:
            given = {name: values.pop(name) for name in declared}
            verb(*args, given=given, **values)

        own = inspect.signature(verb, eval_str=True)
        options = [
            inspect.Parameter(name, _KEYWORD, default=default, annotation=annotation)
            for name, (annotation, default) in declared.items()
        ]
        merged: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            merged += options if parameter.name == "given" else [parameter.replace(kind=_KEYWORD)]
        command.__signature__ = own.replace(parameters=merged)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in merged}
        return command

    return decorate


def configured(*names: str, **other: Any) -> Callable[[Verb], Verb]:
    """Add to a verb the `names` of `OPTIONS`, in the order of its help, and `other` options."""
    chosen = {**OPTIONS, **other}
    names += ("allow",) * ("config" in names)
    for panel, below in _BY_PANEL.items():
        for name in below:
            chosen[name].__metadata__[0].rich_help_panel = panel
    return gathering({name: (chosen[name], None) for name in dict.fromkeys([*names, *other])})


def configuration(given: Given) -> RunConfig:
    """Build the configuration from a file and a verb's options; exit 2 for invalid values."""
    from bench.plan.trust import check_allowed, check_code
    from bench.settings.config import load_config
    from bench.settings.setting import parse_adapters, parse_arguments

    own = ("adapter", "config", "allow")
    values = {name: value for name, value in given.items() if name not in own}
    if "adapter" in given:
        values["adapters"] = parse_adapters(given["adapter"])
    if "template_args" in given:
        values["template_args"] = parse_arguments(given["template_args"])
    names = {name: f"--{name.replace('_', '-')}" for name in OPTIONS}
    file, allowed = given.get("config"), given.get("allow") or ()
    config = load_config(file, values, names)
    if file is not None and values.get("decoders") is None:
        check_code([config], file, allowed)
    check_allowed([config], file, allowed)
    return config


def console() -> Console:
    """Return a console on stdout, which need not be a terminal."""
    from rich.console import Console

    return Console()


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with right-aligned numbers; a piped table is not folded."""
    from rich.table import Table
    from rich.text import Text

    shown = console()
    if not shown.is_terminal:
        shown.width = _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if column else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    shown.print(table)
