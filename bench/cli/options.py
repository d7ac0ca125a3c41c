"""Declare the command line's options, also those of a configuration's fields, and print tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.progress import ProgressStyle
from bench.progress import choose as choose
from bench.settings.setting import PANELS, Kind, Setting, field_settings, flag, option_type

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from bench.settings.config import RunConfig

of_results = partial(typer.Option, rich_help_panel=PANELS[-1])
_of_workers = partial(typer.Option, rich_help_panel="Several workers")
RESULTS = Path("results")
"""Default parent of run folders."""

Output = Annotated[Path, of_results("--output", "-o", help="Parent of run folders.")]
Progressing = Annotated[ProgressStyle, of_results(help="Live bar, plain lines, or nothing.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or `latest`.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Executing = Annotated[Kind, _of_workers("--executor", help="Way to start the workers.")]
Workers = Annotated[int, _of_workers("--workers", help="Number of parallel workers.")]
Executors = Annotated[
    list[str] | None, _of_workers("--executor-option", help="KEY=VALUE for ray or submitit.")
]
Part = Annotated[str | None, _of_workers(help="I/N: measure one part; `bench merge` joins parts.")]
Allowing = Annotated[
    list[str] | None,
    typer.Option("--allow", help="Code that the folder names and that may run. Repeatable."),
]
MODELS = ("decoders", "model", "draft", "adapters", "models", "tasks", "split", "limit")
SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "law")
MACHINE = ("dtype", "device", "threads", "quantize")
NUMERICS = ("numerics", "tile")

_compared = partial(Setting, panel=PANELS[0])
_FILE: dict[str, tuple[type, Setting]] = {
    "config": (Path, _compared(help="TOML file; options of the command override it.", short="-c")),
    "allow": (list[str], _compared(help="Code that --config names and that may run. Repeatable.")),
}
"""Options about a configuration's file, next to the options that set fields."""


def option(name: str, kind: Any, help: str) -> tuple[str, Any, Any]:
    """Return the name, type and default of an option that sets no field (bool: a switch)."""
    flags = typer.Option(f"--{name.replace('_', '-')}", help=help)
    return name, Annotated[kind, flags], False if kind is bool else None


def fields(
    *names: str, more: Iterable[tuple[str, Any, Any]] = (), **helps: str
) -> Callable[[], type]:
    """Return a function that declares the options of fields (none: all), `config` and `allow`.

    Options that are not set are None. `helps` are a verb's own help texts. `more` are options that
    set no field: names, types and defaults.
    """

    def declare() -> type:
        from bench.settings.config import RunConfig

        fields = RunConfig.model_fields
        options = {
            name: (list[str] if about.parse else option_type(fields[name].annotation), about)
            for name, about in field_settings(RunConfig).items()
            if about.panel
        } | _FILE
        ordered = sorted(options, key=lambda name: PANELS.index(str(options[name][1].panel)))
        declared = []
        for name in names or ordered:
            kind, about = options[name]
            long = flag(name, about)
            if kind is bool and fields[name].default is not False:
                long += f"/--no-{long.removeprefix('--')}"
            flags = (long, about.short) if about.short else (long,)
            text = helps.get(name, about.help)
            flag_option = typer.Option(*flags, help=text, rich_help_panel=about.panel)
            declared.append((name, Annotated[kind | None, flag_option], None))
        return make_dataclass("Options", [*declared, *more])

    return declare


def configuration(arguments: Mapping[str, Any]) -> RunConfig:
    """Build the configuration from a file and a verb's options (exit 2 for invalid values)."""
    from bench.plan.code import check_code, without_code

    config = load(arguments)
    if (file := arguments.get("config")) is not None:
        check_code([without_code(config, arguments)], file, arguments.get("allow") or ())
    return config


def load(arguments: Mapping[str, Any]) -> RunConfig:
    """Build the configuration without a check that the code that it names may run."""
    from bench.settings.config import RunConfig, load_config

    settings = field_settings(RunConfig)
    values = {name: value for name, value in arguments.items() if name in settings}
    for name, value in values.items():
        if isinstance(value, list | tuple) and (parse := settings[name].parse):
            values[name] = parse(value)
    names = {name: flag(name, setting) for name, setting in settings.items()}
    return load_config(arguments.get("config"), values, names)


def console() -> Console:
    """Return a console on stdout. Without a terminal it is as wide as a log: 120, or COLUMNS."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = shutil.get_terminal_size((120, 0)).columns
    return console


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with right-aligned numbers (as `print_table`)."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if column else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(table, console())


def print_table(table: Table, console: Console) -> None:
    """Print a table, folded to a terminal's width, or as wide as needed if it is piped."""
    from rich.measure import Measurement

    if not console.is_terminal:
        wide = console.options.update(width=1_000_000)
        console.width = Measurement.get(console, wide, table).maximum
    console.print(table)
