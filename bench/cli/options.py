"""Options of the command line, each declared once, and the display that one of them chooses.

Nothing heavy at module level.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.progress import ProgressStyle as ProgressStyle
from bench.settings.spread import Kind as Kind

if TYPE_CHECKING:
    from bench.progress import Progress
    from bench.settings.config import RunConfig

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_SPREAD = "Several workers"
RESULT_PANEL = "Plan, progress and results"
RESULTS = Path("results")
"""Where runs lie unless told otherwise."""

Output = Annotated[
    Path,
    typer.Option("--output", "-o", help="Parent of run folders.", rich_help_panel=RESULT_PANEL),
]
Progressing = Annotated[
    ProgressStyle,
    typer.Option(help="Live bar, plain lines, or nothing.", rich_help_panel=RESULT_PANEL),
]

Executing = Annotated[
    Kind, typer.Option("--executor", help="Who starts the workers.", rich_help_panel=_SPREAD)
]
Workers = Annotated[
    int, typer.Option("--workers", help="Blocks measured at once.", rich_help_panel=_SPREAD)
]
Executors = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-option", help="KEY=VALUE for ray or submitit.", rich_help_panel=_SPREAD
    ),
]

Part = Annotated[
    str | None,
    typer.Option(help="I/N: measure a part; `bench merge` joins them.", rich_help_panel=_SPREAD),
]

Published = Annotated[
    str | None, typer.Option(help="Published numbers beside ours, e.g. specbench-a100-7b.")
]

OPTIONS: dict[str, Any] = {
    "decoders": Annotated[
        str | None,
        typer.Option("--decoders", "-d", help="NAME[@LABEL][:option=value]…, comma-separated."),
    ],
    "model": Annotated[
        str | None,
        typer.Option("--model", "-m", help="Folder, file.gguf, hub id or name. [default: zoo]"),
    ],
    "draft": Annotated[
        str | None, typer.Option(help="Draft model. [default: the zoo's, for the zoo]")
    ],
    "adapter": Annotated[list[str] | None, typer.Option(help="NAME=PATH; repeatable.")],
    "tasks": Annotated[
        str | None,
        typer.Option(
            "--tasks",
            "-t",
            help="zoo, some of its families (qa,rag), specbench[=PATH], PATH of a file, or hf=ID.",
        ),
    ],
    "limit": Annotated[
        int | None, typer.Option("--limit", "-L", help="Conversations to time. [default: zoo 24]")
    ],
    "quality_limit": Annotated[
        int | None, typer.Option(help="Held-out prompts per family to score. [default: 40, zoo 20]")
    ],
    "phase_limit": Annotated[
        int | None, typer.Option(help="Prompts run again with instrumentation. [default: 6]")
    ],
    "repeats": Annotated[int | None, typer.Option(help="[default: 3]")],
    "batch_size": Annotated[int | None, typer.Option(help="Sequences at once. [default: 1]")],
    "max_new_tokens": Annotated[int | None, typer.Option(help="[default: 256]")],
    "temperature": Annotated[float | None, typer.Option(help="0 is greedy. [default: 0]")],
    "top_p": Annotated[float | None, typer.Option(help="1 is off. [default: 1]")],
    "top_k": Annotated[int | None, typer.Option(help="0 is off. [default: 0]")],
    "seed": Annotated[int | None, typer.Option(help="Repeat r uses seed + r. [default: 0]")],
    "dtype": Annotated[
        str | None,
        typer.Option(
            help="[default: bfloat16 on CUDA, and above 50M weights on a CPU that has it; "
            "else float32]"
        ),
    ],
    "device": Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1. [default: cuda if there is one]")
    ],
    "threads": Annotated[int | None, typer.Option(help="CPU threads. [default: cores]")],
    "attention": Annotated[str | None, typer.Option(help="sdpa or eager. [default: what it has]")],
    "compile": Annotated[
        bool | None,
        typer.Option(
            "--compile", help="Run calls as compiled graphs (torch.compile; CUDA graphs)."
        ),
    ],
    "quantize": Annotated[
        str | None, typer.Option(help="Weights of int8 or int4 on a CPU. [default: as they are]")
    ],
    "numerics": Annotated[
        str | None,
        typer.Option(help="invariant: a row's bits depend on its own text alone. [default: fast]"),
    ],
    "tile": Annotated[
        int | None, typer.Option(help="Rows of a product then: 8, 16 or 32. [default: measured]")
    ],
    "reuse_prefix": Annotated[
        bool | None,
        typer.Option(
            "--reuse-prefix", help="Later turns begin with the cache that the turn before left."
        ),
    ],
    "tensor_parallel": Annotated[
        int | None,
        typer.Option(help="Processes of torchrun that hold the models together (docs/cluster.md)."),
    ],
    "device_map": Annotated[
        str | None,
        typer.Option(help="Place the target's layers on several devices: auto, or a .json file."),
    ],
    "self_check": Annotated[
        bool | None,
        typer.Option(
            "--self-check/--no-self-check",
            help="Compare models with transformers' own forward first. [default: self-check]",
        ),
    ],
    "fixed_length": Annotated[
        bool | None, typer.Option("--fixed-length", help="Ignore EOS: every answer is as long.")
    ],
    "timeout": Annotated[
        float | None,
        typer.Option(help="Seconds an answer may take. [default: 300, and 5 a token]"),
    ],
    "overlong": Annotated[
        str | None, typer.Option(help="Prompts past the context: skip or truncate.")
    ],
    "prompt_tokens": Annotated[
        int | None,
        typer.Option(help="Pad (with other prompts) or cut every prompt to N tokens."),
    ],
    "cost": Annotated[
        str | None,
        typer.Option(help="Folder of `bench cost`: for options that are auto, and ar's limit."),
    ],
    "protocol": Annotated[
        str | None, typer.Option(help="specbench: its questions, template and counting.")
    ],
    "reference": Published,
    "run_name": Annotated[str | None, typer.Option(help="Part of the run folder's name.")],
    "config": Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML; options given here win.")
    ],
}
"""What makes a configuration, each option once; all are None unless given."""
_PANELS: Mapping[str, tuple[str, ...]] = {
    "What is compared": ("decoders", "model", "draft", "adapter", "tasks", "config"),
    "How much is measured": (
        *("limit", "quality_limit", "phase_limit", "repeats", "batch_size", "timeout"),
        *("overlong", "prompt_tokens", "fixed_length"),
    ),
    "Sampling": ("max_new_tokens", "temperature", "top_p", "top_k", "seed"),
    "Precision and devices": (
        *("dtype", "device", "threads", "attention", "compile", "quantize", "reuse_prefix"),
        *("numerics", "tile", "tensor_parallel", "device_map", "self_check"),
    ),
    RESULT_PANEL: ("cost", "protocol", "reference", "run_name"),
}
"""Headings of `bench run --help`, and the options below each."""
MODELS = ("decoders", "model", "draft", "adapter", "tasks", "limit")
SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
MACHINE = ("dtype", "device", "threads", "attention", "quantize")
NUMERICS = ("numerics", "tile")

Given = Mapping[str, Any]
Verb = Callable[..., None]


def gathering(declared: Mapping[str, tuple[Any, Any]]) -> Callable[[Verb], Verb]:
    """Gives a verb options that it takes together: its parameter `given` is what they are in.

    Args:
        declared: annotation and default of each option, in the order of the help.
    """

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
    """`gathering` of options of a configuration.

    Args:
        names: keys of `OPTIONS`, in the order of the help.
        other: options of this verb that stand in place of those of the same name.
    """
    chosen = {**OPTIONS, **other}
    for panel, below in _PANELS.items():
        for name in below:
            chosen[name].__metadata__[0].rich_help_panel = panel
    return gathering({name: (chosen[name], None) for name in names})


def configuration(given: Given) -> RunConfig:
    """The configuration that a file and the options of a verb make.

    Raises:
        BenchError: what `load_config` and `parse_adapters` refuse (exit 2).
    """
    from bench.settings.config import load_config, parse_adapters

    values = {name: value for name, value in given.items() if name not in ("adapter", "config")}
    if "adapter" in given:
        values["adapters"] = parse_adapters(given["adapter"])
    names = {name: f"--{name.replace('_', '-')}" for name in OPTIONS}
    return load_config(given.get("config"), values, names)


@contextmanager
def display(shown: ProgressStyle) -> Iterator[Progress]:
    """The display of progress, which gives the terminal back whatever happens."""
    from bench.progress import choose

    chosen = choose(shown.value)
    try:
        yield chosen
    finally:
        chosen.close()
