"""Options that several verbs of the command line share, and the display that one of them chooses.

Nothing heavy at module level.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bench.progress import Progress

RESULTS = Path("results")
"""Where runs lie unless told otherwise."""


class Shown(StrEnum):
    """How progress is shown."""

    auto = "auto"
    rich = "rich"
    plain = "plain"
    none = "none"


Output = Annotated[Path, typer.Option("--output", "-o", help="Parent of run folders.")]
Progressing = Annotated[Shown, typer.Option(help="Live bar, plain lines, or nothing.")]

# what is asked alike by every command that opens models
Decoders = Annotated[
    str | None,
    typer.Option("--decoders", "-d", help="NAME[@LABEL][:option=value]…, comma-separated."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Folder, file.gguf, hub id or name. [default: zoo]"),
]
Draft = Annotated[str | None, typer.Option(help="Draft model. [default: the zoo's, for the zoo]")]
Adapters = Annotated[list[str] | None, typer.Option(help="NAME=PATH; repeatable.")]
Tasks = Annotated[
    str | None,
    typer.Option(
        "--tasks",
        "-t",
        help="zoo, some of its families (qa,rag), specbench[=PATH], jsonl=PATH or hf=ID.",
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-L", help="Conversations to time. [default: zoo 24]")
]
MaxNewTokens = Annotated[int | None, typer.Option(help="[default: 256]")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy. [default: 0]")]
TopP = Annotated[float | None, typer.Option(help="1 is off. [default: 1]")]
TopK = Annotated[int | None, typer.Option(help="0 is off. [default: 0]")]
Seed = Annotated[int | None, typer.Option(help="Repeat r uses seed + r. [default: 0]")]
DType = Annotated[
    str | None,
    typer.Option(
        help="[default: bfloat16 on CUDA, and above 50M weights on a CPU that has it; else float32]"
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1. [default: cuda if there is one]")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads. [default: cores]")]
Attention = Annotated[str | None, typer.Option(help="sdpa or eager. [default: what it has]")]
Timeout = Annotated[
    float | None, typer.Option(help="Seconds an answer may take. [default: 300, and 5 a token]")
]
Overlong = Annotated[str | None, typer.Option(help="Prompts past the context: skip or truncate.")]
Reference = Annotated[
    str | None, typer.Option(help="Published numbers beside ours, e.g. specbench-a100-7b.")
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML; options given here win.")
]


@contextmanager
def display(shown: Shown) -> Iterator[Progress]:
    """The display of progress, which gives the terminal back whatever happens."""
    from bench.progress import choose

    chosen = choose(shown.value)
    try:
        yield chosen
    finally:
        chosen.close()
